"""Operators of networks in order, and what they are called that no file names."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence

from treadle.base.errors import GraphError
from treadle.engine.package.models import Model
from treadle.graph.ir import Value
from treadle.jit.naming import kind_of
from treadle.utils.network_node import (
    UNNAMED,
    ConstOpBase,
    Host2DeviceCopy,
    OpNode,
    VarNode,
    op_node,
)


def order_of(variables: Iterable[VarNode]) -> list[OpNode]:
    """Operators that the variables depend on, each after those that make its inputs.

    Raises:
        GraphError: they depend on themselves.
    """
    done: dict[int, OpNode] = {}
    open_: set[int] = set()
    stack = [(v.owner, False) for v in reversed(list(variables))]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            open_.discard(node.key)
            done[node.key] = node
        elif node.key not in done:
            if node.key in open_:
                raise GraphError("network", f"{node.name or node.type} depends on itself")
            open_.add(node.key)
            stack.append((node, True))
            stack += [(x.owner, False) for x in reversed(node.inputs) if x.owner.key not in done]
    return list(done.values())


def as_made(found: Sequence[OpNode]) -> list[OpNode]:
    """Operators, each after those that make its inputs, else as they were made."""
    waiting = {n.key: len({x.owner.key for x in n.inputs}) for n in found}
    users: dict[int, list[OpNode]] = {}
    for opr in found:
        for number in {x.owner.key for x in opr.inputs}:
            users.setdefault(number, []).append(opr)
    ready = [(n.key, n) for n in found if not waiting[n.key]]
    heapq.heapify(ready)
    done: list[OpNode] = []
    while ready:
        done.append(heapq.heappop(ready)[1])
        for user in users.get(done[-1].key, ()):
            waiting[user.key] -= 1
            if not waiting[user.key]:
                heapq.heappush(ready, (user.key, user))
    return done


def variables_of(model: Model) -> dict[Value, VarNode]:
    """Variables of a model's values; those without a name get one."""
    known: dict[Value, VarNode] = {}
    numbers = itertools.count()
    for value, name in zip(model.graph.inputs, model.inputs, strict=True):
        known[value] = Host2DeviceCopy(value.type, name, numbers).outputs[0]
    for node in model.graph.nodes:
        given = [known[v] for v in node.inputs]
        if node.op.name in _EITHER_WAY and isinstance(given[0].owner, ConstOpBase):
            given.reverse()  # MegEngine's files have constants last.
        made = op_node(node.op, given, node.names, [v.type for v in node.outputs], numbers)
        known.update(zip(node.outputs, made.outputs, strict=True))
        own = _automatic(made)
        for i, var in enumerate(made.outputs):
            var.name = var.name or (f"{own}:o{i}" if i else own)
        made.name = made.outputs[0].name
    return known


def _automatic(opr: OpNode) -> str:
    """Return the name of an operator that a file gives none: what it does, to what, its number.

    A constant has its value, or its shape if there are several numbers.
    """
    if isinstance(opr, ConstOpBase):
        var = opr.outputs[0]
        held = var.numpy().item() if var.shape == () else list(var.shape)
        held = int(held) if isinstance(held, float) and held.is_integer() else held
        return f"{UNNAMED}{held}>[{opr.id}]"
    given = (
        f"var[{x.id}]" if x.owner.inputs and "(" in x.name else x.name or f"var[{x.id}]"
        for x in opr.inputs
    )
    return f"{kind_of(opr.op) if opr.op else opr.type}({','.join(given)})[{opr.id}]"


_EITHER_WAY = ("add", "mul", "maximum", "minimum")
"""Ops whose operands may change places."""
