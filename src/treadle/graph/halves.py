"""Graphs whose float32 values are stored in 16 bits: MegEngine's `enable_io16xc32` and `_ioc16`.

Inputs and outputs keep their types; weights, and what ops hand on to each other, are float16.
"""

from __future__ import annotations

from treadle.base import dtype as dt
from treadle.base.errors import DTypeError
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.elementwise import Cast
from treadle.ops.families import Movement


def with_halves(graph: Graph, wide: bool = True) -> Graph:
    """The graph with float16 wherever it has float32 between its inputs and outputs.

    Args:
        graph: what a model computes.
        wide: whether ops compute in float32 all the same; else in float16, where they can.
    """
    return _Halves(wide).graph(graph)


class _Halves:
    def __init__(self, wide: bool) -> None:
        self._wide = wide
        self._nodes: list[Node] = []
        self._known: dict[Value, Value] = {}
        self._widened: dict[Value, Value] = {}

    def graph(self, graph: Graph) -> Graph:
        for value in graph.inputs:
            self._known[value] = self._cast(value, dt.float16) if _is_float(value) else value
        for node in graph.nodes:
            self._node(node)
        outputs = tuple(
            self._cast(self._known[v], dt.float32, v.name) if _is_float(v) else self._known[v]
            for v in graph.outputs
        )
        return Graph(graph.name, graph.inputs, tuple(self._nodes), outputs, graph.guards)

    def _node(self, node: Node) -> None:
        if isinstance(node.op, Constant) and _is_float(node.outputs[0]):
            half = ArrayData(node.op.data.array.astype(dt.float16.numpy))
            made = self._add(Node(Constant(half, node.op.device), (), node.loc, node.names))
        else:
            moves = isinstance(node.op, Movement)  # which computes nothing
            narrow = self._narrow(node) if moves or not self._wide else None
            made = self._as_before(node) if narrow is None else narrow
        for before, after in zip(node.outputs, made.outputs, strict=True):
            float_ = _is_float(before) and after.type.dtype is dt.float32
            self._known[before] = self._cast(after, dt.float16) if float_ else after

    def _as_before(self, node: Node) -> Node:
        given = [self._as_it_was(v) for v in node.inputs]
        return self._add(Node(node.op, tuple(given), node.loc, node.names, node.group))

    def _narrow(self, node: Node) -> Node | None:
        """The node on float16; None where its op does not take it, or takes nothing."""
        if not any(_is_float(v) for v in node.inputs):
            return None
        try:
            given = tuple([self._known[v] for v in node.inputs])
            return self._add(Node(node.op, given, node.loc, node.names, node.group))
        except DTypeError:
            return None

    def _as_it_was(self, value: Value) -> Value:
        known = self._known[value]
        if not _is_float(value):
            return known
        if value not in self._widened:
            self._widened[value] = self._cast(known, dt.float32)
        return self._widened[value]

    def _cast(self, value: Value, dtype: dt.DType, name: str = "") -> Value:
        return self._add(Node(Cast(dtype), (value,), names=(name,))).outputs[0]

    def _add(self, node: Node) -> Node:
        self._nodes.append(node)
        return node


def _is_float(value: Value) -> bool:
    return value.type.dtype is dt.float32


__all__ = ["with_halves"]
