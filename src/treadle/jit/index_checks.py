"""Indices among the arguments of a program are checked before it runs, as eager calls check them.

Kernels clamp an index that is out of range, so that no memory outside a tensor is touched. Where an
argument is used as an index as it is, but for its shape, its values can be looked at before the
run, which then leaves all state alone. Indices that the program computes are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.dtype import DType
from treadle.base.errors import IndexRangeError
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.elementwise import Cast
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.transfer import Identity, StopGradient

FEW = 16
"""Elements up to which Python finds the smallest and the largest sooner than NumPy."""
_UNSIGNED = {4: np.uint32, 8: np.uint64}
_BILLIONS = 1 << 31
"""Negative numbers of 32 bits become at least this."""
_SAME = (Reshape, Transpose, Broadcast, Identity, StopGradient)
"""Ops whose results have the elements of their operands."""


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """Elements of input number `number` are at least `low` and less than `high`, for `node`."""

    number: int
    low: int
    high: int
    node: Node

    def __call__(self, array: Any) -> None:
        """Raise `IndexRangeError` if an element of the input is out of range."""
        size = array.size
        if size > FEW:
            # Negative numbers are the largest ones without a sign, which one look finds.
            unsigned = None if self.low or self.high > _BILLIONS else _UNSIGNED.get(array.itemsize)
            if unsigned is not None and array.view(unsigned).max() < self.high:
                return
            least, most = array.min(), array.max()
        elif size == 1:
            least = most = array.item()
        elif size:
            flat = array.ravel().tolist()
            least, most = min(flat), max(flat)
        else:
            return
        if least < self.low or most >= self.high:
            raise self._error(int(least if least < self.low else most))

    def _error(self, index: int) -> IndexRangeError:
        op = self.node.op
        return IndexRangeError(
            op.name,
            f"index {index} is out of range",
            saw=op.saw(tuple(v.type for v in self.node.inputs)),
            hint=f"use {self.low} to {self.high - 1}" if self.high else "there are no elements",
            at=self.node.loc,
        )


def index_checks(graph: Graph, arguments: int) -> tuple[IndexCheck, ...]:
    """What has to be checked of the first inputs of a graph, each range once.

    Regions are left out: a branch that is not taken has no index.
    """
    found = {(c.number, c.low, c.high): c for c in reversed(list(_all(graph, arguments)))}
    return tuple(found.values())


def _all(graph: Graph, arguments: int) -> Iterator[IndexCheck]:
    for node in graph.nodes:
        types = tuple(v.type for v in node.inputs)
        if not all(t.is_static for t in types):
            continue
        for operand, low, high in node.op.index_ranges(types):
            source = _source(node.inputs[operand])
            if source.producer is None and source.index < arguments:
                yield IndexCheck(source.index, low, high, node)


def _source(value: Value) -> Value:
    """What has the same elements as the value, as far up as that can be seen."""
    while value.producer is not None and 0 not in value.type.shape:
        op, (first, *_) = value.producer.op, (*value.producer.inputs, value)
        if not isinstance(op, _SAME) and not (
            isinstance(op, Cast) and _keeps(first.type.dtype, value.type.dtype)
        ):
            break
        value = first
    return value


def _keeps(before: DType, after: DType) -> bool:
    """Whether one type of integers has all numbers of another."""
    signed = before.kind == after.kind == "int"
    return signed and after.itemsize >= before.itemsize
