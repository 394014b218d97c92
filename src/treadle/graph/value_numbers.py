"""Values that are equal since equal ops made them of equal values."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.graph.analysis import is_opaque
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Value, op_key
from treadle.ops.op import Op


class Deciding:
    """Appends ops to a graph; those whose extent data decide once for equal operands.

    A mask that is used twice has one count then, which is one symbol.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._made: dict[object, tuple[GraphOperand, ...]] = {}
        self._number: dict[Value, int] = {}
        self._known: dict[object, int] = {}
        self._expected: list[tuple[Op, Sequence[GraphOperand], tuple[GraphOperand, ...]]] = []

    def apply(self, op: Op, operands: Sequence[GraphOperand]) -> tuple[GraphOperand, ...]:
        """The results of an op."""
        if type(op).bounded is Op.bounded:
            return self._builder.apply(op, operands)
        if self._builder.expects(op, operands):  # Those that nothing equals are nodes.
            made = self._builder.apply(op, operands)
            self._expected.append((op, operands, made))
            return made
        for earlier in self._expected:
            self._made[self._key(*earlier[:2])] = earlier[2]
        self._expected.clear()
        key = self._key(op, operands)
        if key not in self._made:
            self._made[key] = self._builder.apply(op, operands)
        return self._made[key]

    def _key(self, op: Op, operands: Sequence[GraphOperand]) -> object:
        return op_key(op), *[self._numbered(x.value) for x in operands]

    def _numbered(self, value: Value) -> int:
        """A number that equal values have, as far as ops tell."""
        waiting = [value]
        while waiting:
            now = waiting[-1]
            node = now.producer
            missing = [] if node is None else [v for v in node.inputs if v not in self._number]
            if missing and now not in self._number:
                waiting += missing
                continue
            waiting.pop()
            key: object = now
            if node is not None and not is_opaque(node.op):
                key = op_key(node.op), tuple([self._number[v] for v in node.inputs]), now.index
            self._number[now] = self._known.setdefault(key, len(self._known))
        return self._number[value]


__all__ = ["Deciding"]
