"""Groups built around one expensive op: what goes before it, and what is applied to its result.

What to apply inside is a minimum cut. Every elementwise op that could follow is either inside,
which takes all ops between it and the anchor along, or left to the loops outside; a value that
crosses from inside to outside is written and read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import is_identical
from treadle.engine.optimize.bodies import Note, Trial, accepted
from treadle.engine.optimize.groups import Groups, NodeGroup
from treadle.engine.optimize.kinds import (
    is_attention,
    is_contraction,
    is_elementwise,
    is_free,
    is_loop,
    is_static,
    is_view,
    is_window,
)
from treadle.graph.analysis import is_widening
from treadle.graph.flow import FOREVER, Cut
from treadle.graph.ir import Node, Value
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.conv import Convolution
from treadle.ops.matmul import MatrixProduct
from treadle.ops.movement import Concat, Reshape, Transpose

MOST_OPS = 48
MOST_EXTRA_READS = 2
MOST_EXTRA_WRITES = 2
"""Arrays of the result's size that an epilogue reads and writes besides the result: more of them
than this cost the product more registers and cache than they save."""


def contraction_groups(groups: Groups, trial: Trial, note: Note, *, plain: bool = False) -> None:
    """Form a group around every matrix product and convolution.

    `plain` applies only what each next op alone reads, so that every group has one result.
    """
    anchors = [i for i, n in enumerate(groups.nodes) if is_contraction(n) and is_static(n)]
    heavy = _bits(anchors) | _bits(i for i, n in enumerate(groups.nodes) if is_attention(n))
    for i in anchors:
        group = _with_operands(groups, i, "contraction", trial, note)
        grown = _epilogue(groups, group, heavy, trial, note, plain)
        _with_final_moves(groups, grown, trial)
        _with_statistics(groups, groups.owner[i], trial)


def attention_groups(groups: Groups, trial: Trial, note: Note) -> None:
    """Form a group of moves around every attention and attention gradient."""
    for i, node in enumerate(groups.nodes):
        if is_attention(node) and is_static(node):
            group = _with_operands(groups, i, "attention", trial, note)
            _with_final_moves(groups, group, trial)
            _with_concat(groups, groups.owner[i], trial)


def window_groups(groups: Groups, trial: Trial, note: Note) -> None:
    """Form a group of moves around every pooling and resizing."""
    for i, node in enumerate(groups.nodes):
        if is_window(node) and is_static(node):
            group = _with_operands(groups, i, "window", trial, note)
            _with_final_moves(groups, group, trial)


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for i in numbers:
        found |= 1 << i
    return found


# -- before the anchor -------------------------------------------------------------------------


def _with_operands(groups: Groups, anchor: int, kind: str, trial: Trial, note: Note) -> NodeGroup:
    """The anchor with those moves before it that it can read through."""
    group = groups.owner[anchor]
    whole = _between_transposes(groups, anchor, kind, trial)
    if whole is not None:
        return whole
    chains = [_moves_before(groups, v) for v in dict.fromkeys(groups.nodes[anchor].inputs)]
    group.kind, group.copies = kind, {i for chain in chains for i in chain}
    # Together first: what mixes layouts may be refused where all in one are not.
    if group.copies and not accepted(groups, group, trial):
        group.copies = set()
        for chain in chains:
            _read_through(groups, group, chain, trial, note)
    _read_narrow(groups, group, anchor, trial)
    group.kind = kind if group.copies else ""
    groups.add_copies(group, group.copies)
    return group


def _between_transposes(groups: Groups, anchor: int, kind: str, trial: Trial) -> NodeGroup | None:
    """The anchor with all moves before it and the transpose after it, as another layout has them.

    They are asked about together, since what mixes layouts may be refused where one is not.
    """
    turned = _turned(groups, anchor)
    chains = [_moves_before(groups, v) for v in dict.fromkeys(groups.nodes[anchor].inputs)]
    copies = {i for chain in chains for i in chain}
    if not turned or not copies:
        return None
    made = groups.joined((groups.owner[anchor], *(groups.owner[i] for i in turned)), kind)
    made.copies |= copies
    return groups.keep(made) if accepted(groups, made, trial) else None


def _read_through(
    groups: Groups, group: NodeGroup, chain: list[int], trial: Trial, note: Note
) -> None:
    """Copy a chain's moves into a group, or as many of its last ones as it accepts."""
    reason = ""
    while chain:
        before = set(group.copies)
        group.copies |= set(chain)
        answer = accepted(groups, group, trial)
        if answer:
            return
        group.copies, reason = before, answer.message
        chain = _useful(groups, chain[:-1])
    if reason:
        note(groups.nodes[group.members[0]], "operand is copied", reason)


def _read_narrow(groups: Groups, group: NodeGroup, anchor: int, trial: Trial) -> None:
    """Copy into a product's group what widens an operand, where its kernel does that by itself.

    Frozen operands, too: programs of several shapes would each keep a wide copy of small weights.
    """
    node = groups.nodes[anchor]
    if not isinstance(node.op, MatrixProduct):
        return
    for value in dict.fromkeys(node.inputs):
        before = value.producer
        while before is not None and groups.position[before] in group.copies:
            before = before.inputs[0].producer  # A move that the product reads through.
        if before is None or not is_widening(before):
            continue
        group.copies.add(groups.position[before])
        if not accepted(groups, group, trial):
            group.copies.remove(groups.position[before])


def _moves_before(groups: Groups, value: Value) -> list[int]:
    """Nodes that move the value to where it is read, the last one first."""
    chain: list[int] = []
    node = value.producer
    while node is not None and node.op.strided and is_static(node):
        if groups.owner[groups.position[node]].kind:
            break  # Another group writes its result in this order.
        if chain and _undoes(groups.nodes[chain[-1]], node):
            break  # A copy in another layout, which was chosen over reading it where it lies.
        chain.append(groups.position[node])
        node = node.inputs[0].producer
    return _useful(groups, chain)


def _undoes(node: Node, before: Node) -> bool:
    """Return whether a transpose puts back what the one before it moved."""
    if not isinstance(node.op, Transpose) or not isinstance(before.op, Transpose):
        return False
    order = before.op.permutation
    return all(order[axis] == i for i, axis in enumerate(node.op.permutation))


def _useful(groups: Groups, chain: list[int]) -> list[int]:
    """Return the chain without the moves at its far end that are views anyway."""
    while chain and is_view(groups.nodes[chain[-1]].op):
        chain = chain[:-1]
    return chain


# -- after the anchor --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Nodes that could be applied to the anchor's result inside its group."""

    groups: Groups
    anchor: int
    nodes: list[int]
    heavy: int

    def choose(self, barred: set[int]) -> list[int]:
        """The nodes inside at least cost; `barred` ones stay outside."""
        cut, inside = Cut(), {self.anchor, *self.nodes}
        for i in (self.anchor, *self.nodes):
            for value in self.groups.nodes[i].outputs:
                self._price(cut, i, value, inside)
            for value in self.groups.nodes[i].inputs:
                p = self._position(value)
                if i != self.anchor and p in inside:
                    cut.edge(i, p, FOREVER)
        for i in barred:
            cut.edge(i, _OUTSIDE, FOREVER)
        cut.edge(self.anchor, _OUTSIDE, 1e-9)  # so that both ends are known to the network
        _, chosen = cut.solve(self.anchor, _OUTSIDE)
        return [i for i in self.nodes if i in chosen]

    def _position(self, value: Value) -> int:
        return -1 if value.producer is None else self.groups.position[value.producer]

    def _price(self, cut: Cut, i: int, value: Value, inside: set[int]) -> None:
        """Make crossing cost a write and a read, or a read where it is written anyway."""
        users = self.groups.users[value]
        outside = [u for u in users if u not in inside]
        written = value in self.groups.results or any(self._must_read(u) for u in outside)
        cut.edge(i, ("read", value), estimate(value.type.open_nbytes) * (1 if written else 2))
        for u in users:
            if u in inside:
                cut.edge(("read", value), u, FOREVER)
            elif not self._must_read(u):
                cut.edge(("read", value), _OUTSIDE, FOREVER)

    def _must_read(self, user: int) -> bool:
        """Return whether no loop could compute the user together with the anchor's followers."""
        groups, node = self.groups, self.groups.nodes[user]
        if groups.owner[user].kind or not is_loop(node):
            return True
        between = groups.owner[user].above & groups.owner[self.anchor].below
        return bool(between & self.heavy)


_OUTSIDE = "outside"


def _epilogue(
    groups: Groups, group: NodeGroup, heavy: int, trial: Trial, note: Note, plain: bool
) -> NodeGroup:
    """The group with what is applied to its result."""
    anchor, *turned = group.members
    turned = turned or _turned(groups, anchor)
    last = turned[-1] if turned else anchor
    nodes = _followers(groups, last)
    nodes = _chain(groups, last, nodes) if plain else nodes
    if not nodes:
        return group
    candidates = _Candidates(groups, last, nodes, heavy)
    barred: set[int] = set()
    reason = ""
    for _ in range(MOST_TRIALS):
        chosen = candidates.choose(barred)
        if not chosen:
            break
        excess = _excess(groups, last, chosen)
        if excess:
            barred.update(excess)
            continue
        inside = (*turned, *chosen)
        grown = groups.joined((group, *(groups.owner[i] for i in inside)), "contraction")
        answer = accepted(groups, grown, trial)
        if answer:
            return groups.keep(grown)
        reason = answer.message
        barred.add(chosen[-1])
    if reason:
        note(groups.nodes[anchor], "epilogue is left out", reason)
    return group


MOST_TRIALS = 24


def _turned(groups: Groups, anchor: int) -> list[int]:
    """The transpose that is all that becomes of a result of an op that cares about layouts.

    What is applied to the result then works on it as it is written. Channels in blocks are split
    before that.
    """
    node = groups.nodes[anchor]
    if not isinstance(node.op, Convolution) and not is_window(node):
        return []
    found = _only_move(groups, node.output)
    if found and isinstance(groups.nodes[found[0]].op, Reshape):
        found = [*found, *_only_move(groups, groups.nodes[found[0]].output)]
    return found if found and isinstance(groups.nodes[found[-1]].op, Transpose) else []


def _only_move(groups: Groups, value: Value) -> list[int]:
    """The one node that reads a value, if it is a move that stands alone."""
    users = groups.users[value]
    if value in groups.results or len(users) != 1 or groups.owner[users[0]].kind:
        return []
    return users if isinstance(groups.nodes[users[0]].op, (Reshape, Transpose)) else []


def _followers(groups: Groups, anchor: int) -> list[int]:
    """Elementwise nodes of the result's shape that could run inside the anchor's group."""
    shape = groups.nodes[anchor].output.type.shape
    first = groups.owner[anchor]
    found: list[int] = []
    bits, inside = first.bits, 1 << anchor
    waiting = sorted(groups.users[groups.nodes[anchor].output])
    seen = set(waiting)
    while waiting and len(found) < MOST_OPS:
        i = waiting.pop(0)
        node = groups.nodes[i]
        if groups.owner[i].kind or not is_elementwise(node) or node.output.type.shape != shape:
            continue
        if not _is_ready(groups, node, bits, inside) or groups.is_apart(groups.owner[i], first):
            continue
        found.append(i)
        bits, inside = bits | 1 << i, inside | 1 << i
        waiting = sorted({*waiting, *(u for u in groups.users[node.output] if u not in seen)})
        seen.update(waiting)
    return found


def _chain(groups: Groups, anchor: int, nodes: list[int]) -> list[int]:
    """The followers up to the first whose result has several users."""
    chain: list[int] = []
    i = anchor
    while groups.nodes[i].output not in groups.results:
        users = groups.users[groups.nodes[i].output]
        if len(users) != 1 or users[0] not in nodes:
            break
        (i,) = users
        chain.append(i)
    return chain


def _is_ready(groups: Groups, node: Node, bits: int, inside: int) -> bool:
    """Return whether no operand depends on the group by a way that leaves it.

    `inside` are those of its nodes that are read where they are made.
    """
    for value in node.inputs:
        if value.producer is None:
            continue
        p = groups.position[value.producer]
        if inside >> p & 1:
            continue
        if (groups.owner[p].above | groups.owner[p].bits) & bits:
            return False
    return True


def _excess(groups: Groups, anchor: int, chosen: list[int]) -> list[int]:
    """The nodes by which the epilogue reads or writes too much, none where it does not.

    Those are all from the first that reads one array too many: a gradient that dozens are added to
    comes to its cut in two steps. Of those that write it is the last.
    """
    inside = {anchor, *chosen}
    size = product(groups.nodes[anchor].output.type.shape)
    reads: dict[Value, int] = {}
    writes: dict[Value, int] = {}
    for i in chosen:
        for value in groups.nodes[i].inputs:
            p = None if value.producer is None else groups.position[value.producer]
            if (
                p not in inside
                and is_identical(product(value.type.shape), size)
                and not is_free(value)
            ):
                reads.setdefault(value, i)
    for i in (anchor, *chosen):
        value = groups.nodes[i].output
        if value in groups.results or any(u not in inside for u in groups.users[value]):
            writes[value] = i
    if len(reads) > MOST_EXTRA_READS:
        return chosen[chosen.index(list(reads.values())[MOST_EXTRA_READS]) :]
    return chosen[-1:] if len(writes) > 1 + MOST_EXTRA_WRITES else []


# -- moves of the result -----------------------------------------------------------------------


def _with_final_moves(groups: Groups, group: NodeGroup, trial: Trial) -> None:
    """Write the group's results where a move would put them, if it accepts that."""
    if not is_static(groups.nodes[group.members[0]]):
        return
    for i in list(group.members):
        for value in groups.nodes[i].outputs:
            chain = _moves_after(groups, value)
            if not chain or _puts_back(groups, group, chain[0]):
                continue
            grown = groups.joined((group, *(groups.owner[m] for m in chain)), _kind(groups, group))
            if accepted(groups, grown, trial):
                group = groups.keep(grown)


def _with_statistics(groups: Groups, group: NodeGroup, trial: Trial) -> None:
    """Append statistics of what the group has just stored, if it accepts them."""
    values = [v for i in group.members for v in groups.nodes[i].outputs]
    for i in [u for v in values for u in groups.users[v]]:
        if isinstance(groups.nodes[i].op, ColumnMoments) and not groups.owner[i].kind:
            grown = groups.joined((group, groups.owner[i]), _kind(groups, group))
            if accepted(groups, grown, trial):
                group = groups.keep(grown)


def _puts_back(groups: Groups, group: NodeGroup, move: int) -> bool:
    """Return whether a move puts back what a transpose in the group moved, as borders of layouts
    do.

    Either another anchor reads through both, or it is a copy between layouts, which was chosen over
    writing the result in an order in which it is not made.
    """
    return any(_undoes(groups.nodes[move], groups.nodes[i]) for i in group.members)


def _with_concat(groups: Groups, group: NodeGroup, trial: Trial) -> None:
    """Write the group's results side by side where all they become is one concatenation.

    That is what becomes of the gradients of heads split from one packed projection.
    """
    added: list[int] = []
    ends: set[int] = set()
    made = groups.needed(group)
    for value in made:
        views, end = _concat_after(groups, value)
        added += views
        ends.add(end)
    if len(ends) != 1 or -1 in ends:
        return
    (end,) = ends
    if len(groups.nodes[end].inputs) != len(made):
        return
    added.append(end)
    grown = groups.joined((group, *(groups.owner[m] for m in added)), _kind(groups, group))
    if accepted(groups, grown, trial):
        groups.keep(grown)


def _concat_after(groups: Groups, value: Value) -> tuple[list[int], int]:
    """The views after a value that only a concatenation reads, and that one, -1 for none."""
    views: list[int] = []
    while value not in groups.results and len(groups.users[value]) == 1:
        (user,) = groups.users[value]
        node = groups.nodes[user]
        if groups.owner[user].kind or not (isinstance(node.op, Concat) or is_view(node.op)):
            break
        if isinstance(node.op, Concat):
            return views, user
        views.append(user)
        value = node.output
    return [], -1


def _kind(groups: Groups, group: NodeGroup) -> str:
    if group.kind:
        return group.kind
    node = groups.nodes[group.members[0]]
    if is_window(node):
        return "window"
    return "attention" if is_attention(node) else "contraction"


def _moves_after(groups: Groups, value: Value) -> list[int]:
    """Lone moves that are all that becomes of a value, up to the last that is not a view."""
    chain: list[int] = []
    while value not in groups.results and len(groups.users[value]) == 1:
        (user,) = groups.users[value]
        node = groups.nodes[user]
        if groups.owner[user].kind or not isinstance(node.op, (Reshape, Transpose)):
            break
        if any(user in groups.owner[u].copies for u in groups.users[node.output]):
            break
        if chain and _undoes(node, groups.nodes[chain[-1]]):
            break
        chain.append(user)
        value = node.output
    return _useful(groups, chain)
