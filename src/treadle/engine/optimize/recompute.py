"""Values that are cheaper to make again than to write and read.

Common subexpressions are shared as long as programs are simplified; here that is undone where the
reader could make the value of what it reads anyway, or of little more. A normalization, say, keeps
its means and deviations for the backward pass in place of the normalized values.
"""

from __future__ import annotations

from collections.abc import Collection

from treadle.base.estimates import estimate
from treadle.engine.optimize.bodies import Trial, accepted
from treadle.engine.optimize.groups import Groups, NodeGroup
from treadle.engine.optimize.kinds import is_closed, is_free
from treadle.graph.cells import is_scalar_op
from treadle.graph.ir import Node, Value
from treadle.ops.elementwise import Div
from treadle.ops.reduce import Mean, Sum

MOST_OPS = 6
"""Elementwise ops that are run again instead of reading a value."""


def recompute(groups: Groups) -> None:
    """Copy the makers of some values into loop groups that read them."""
    for group in groups.all():
        if group.kind == "loop":
            for value in groups.needed(group):
                _try(groups, group, value)


def _try(groups: Groups, group: NodeGroup, value: Value) -> None:
    readers = groups.readers(value) - {group}
    if value in groups.results or any(not _may_copy(groups, r) for r in readers):
        return
    if any(groups.is_apart(group, r) for r in readers):
        return
    found = _cone(groups, group, value)
    if found is None:
        return
    cone, border = found
    if len(border) == 1 and _nbytes(next(iter(border))) > _nbytes(value):
        return
    needed = set(groups.needed(group))
    inside = [v for v in border if v.producer and groups.position[v.producer] in group.members]
    spent = sum(_nbytes(v) for v in inside if v not in needed)
    for reader in readers:
        read = set(groups.operands(reader)[1])
        spent += sum(_nbytes(v) for v in border if v not in read)
    if spent < _nbytes(value) * (1 + len(readers)):
        for reader in readers:
            groups.add_copies(reader, cone)


def _may_copy(groups: Groups, reader: NodeGroup) -> bool:
    if reader.kind != "loop":
        return False
    first = groups.nodes[reader.members[0]]
    return len(reader.members) > 1 or (is_scalar_op(first.op) and not is_closed(first))


def _cone(groups: Groups, group: NodeGroup, value: Value) -> tuple[set[int], set[Value]] | None:
    """The elementwise nodes that make a value, and what they make it of; None if too many."""
    order, outside = groups.operands(group)
    needed = set(groups.needed(group)) - {value}
    cone: set[int] = set()
    border: set[Value] = set()
    waiting = [value]
    while waiting:
        v = waiting.pop()
        node = v.producer
        if v in needed or v in outside or node is None:
            border.add(v)
            continue
        i = groups.position[node]
        if i not in order or not is_scalar_op(node.op) or _inverts(groups, order, node):
            border.add(v)
        elif i not in cone:
            if node.op.costly or len(cone) == MOST_OPS:
                return None
            cone.add(i)
            waiting += node.inputs
    return (cone, border) if cone else None


def _inverts(groups: Groups, order: Collection[int], node: Node) -> bool:
    """Return whether the group may multiply by the inverse of a divisor in place of a division.

    It does so by what its sums decide (`loops.quotients`), the reader would divide, and a value
    that is compared with itself must be one number.
    """
    waiting = [node.inputs[1]] if isinstance(node.op, Div) else []
    while waiting:
        made = waiting.pop().producer
        if made is None or groups.position[made] not in order:
            continue
        if isinstance(made.op, Sum | Mean):
            return True
        waiting += made.inputs
    return False


def widen_again(groups: Groups, trial: Trial) -> None:
    """Make groups read narrow values, and widen them, where wide ones are made of narrow ones.

    Levels of a quantized network are bytes; what they stand for, four bytes, is made by whoever
    reads it.
    """
    for group in groups.all():
        if group.kind in ("contraction", "loop"):
            for value in groups.needed(group):
                _widen_again(groups, group, value, trial)


def _widen_again(groups: Groups, group: NodeGroup, value: Value, trial: Trial) -> None:
    readers = groups.readers(value) - {group}
    if value in groups.results or not readers:
        return
    cone = _widening(groups, group, value)
    if not cone or any(groups.is_apart(group, r) for r in readers):
        return
    for reader in readers:
        grown = groups.joined((reader,), reader.kind)
        grown.copies |= cone
        if reader.kind not in ("contraction", "loop") or not accepted(groups, grown, trial):
            return
    for reader in readers:
        groups.add_copies(reader, cone)


def _widening(groups: Groups, group: NodeGroup, value: Value) -> set[int]:
    """The elementwise nodes between a value and a narrower one that it is made of alone."""
    chain: list[int] = []
    best, size = 0, _nbytes(value)
    at = value
    while at.producer is not None and len(chain) < MOST_OPS:
        i = groups.position[at.producer]
        read = [v for v in at.producer.inputs if not is_free(v)]
        if i not in group.inside or not is_scalar_op(at.producer.op) or len(read) != 1:
            break
        chain.append(i)
        (at,) = read
        nbytes = _nbytes(at)
        if nbytes < size:
            best, size = len(chain), nbytes
    return set(chain[:best])


def _nbytes(value: Value) -> int:
    """Bytes of a value, a guess where it is symbolic: this is about speed."""
    return estimate(value.type.open_nbytes)
