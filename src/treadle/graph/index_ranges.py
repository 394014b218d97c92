"""Indices of a program that may be out of range, and the checks that it makes of them.

Kernels hold every index inside of its axis, so that no byte outside is read or written; that an
index was outside is found by `CheckIndices` nodes. They are left out where the index is known to be
inside: constants, positions of sorts and maxima, counters, clipped and wrapped numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import size_of
from treadle.base.symbol import Dim, always, is_identical, less_equal, maximum, minimum
from treadle.graph.index_findings import Indexed, Range, error_of, ranges_of
from treadle.graph.ir import Graph, Node, Value, constant_of
from treadle.graph.passes import register
from treadle.graph.regions import substituted_regions
from treadle.ops.check import CheckIndices
from treadle.ops.creation import Full, Iota
from treadle.ops.elementwise import Add, Cast, Maximum, Minimum, Mod, Mul, Sub
from treadle.ops.gather import Index, Take
from treadle.ops.gather_along import TakeAlongAxis
from treadle.ops.movement import Broadcast, Concat, Flip, Reshape, Roll, Transpose
from treadle.ops.op import Op
from treadle.ops.reduce import ArgExtremum, Extremum
from treadle.ops.select import Clip, Where
from treadle.ops.slicing import Slice
from treadle.ops.sort import Ordering
from treadle.ops.transfer import Identity, StopGradient, Transfer

_SAME = (Reshape, Transpose, Broadcast, Identity, StopGradient, Flip, Roll)
"""Ops whose results have the elements of their operands."""
_PICKED = (*_SAME, Transfer, Slice, Take, Index, TakeAlongAxis, Extremum)
"""Ops whose results are some of the elements of their first operand."""
_DEEP = 24
"""Ops that are looked through to find the range of an index."""


@register
@dataclass(frozen=True, slots=True)
class CheckRanges:
    """Checks all indices that may be out of range, each range once."""

    name: ClassVar[str] = "check_ranges"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph with its checks.

        Raises:
            IndexRangeError: a constant index is out of range.
        """
        return _Writer().write(graph)


class _Writer:
    """Counts indices while it writes checks."""

    def __init__(self) -> None:
        self._number = 0
        self._bounds: dict[Value, Range] = {}

    def write(self, graph: Graph, *, taken: bool = True) -> Graph:
        """The graph with its checks; `taken`: it runs in any case, so that constants can raise."""
        known: dict[Value, list[Range]] = {}
        instead: dict[Value, Value] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            inputs = tuple([instead.get(v, v) for v in node.inputs])
            if isinstance(node.op, CheckIndices):
                known.setdefault(inputs[0], []).append((node.op.low, node.op.high))
            op = substituted_regions(node.op, self._region)
            current = node
            if op is not node.op or inputs != node.inputs:
                current = Node(op, inputs, node.loc, node.names, node.group)
                instead.update(zip(node.outputs, current.outputs, strict=True))
            nodes += self._checks(node, current, known, taken)
            nodes.append(current)
        if len(nodes) == len(graph.nodes) and not instead:
            return graph
        return graph.with_nodes(nodes, [instead.get(v, v) for v in graph.outputs])

    def _region(self, graph: Graph) -> Graph:
        return self.write(graph, taken=False)

    def _checks(
        self, node: Node, current: Node, known: dict[Value, list[Range]], taken: bool
    ) -> Iterator[Node]:
        for operand, low, high in ranges_of(node):
            number, value = self._number, _source(current.inputs[operand])
            self._number += 1
            least, beyond = _bounds(value, self._bounds)
            if _lies((least, beyond), (low, high)) or _is_empty(value):
                continue
            ranges = known.setdefault(value, [])
            if any(_lies(found, (low, high)) for found in ranges):
                continue
            numbers = isinstance(low, int) and isinstance(high, int)
            if taken and numbers and constant_of(value) is not None:
                wrong = int(least if least < low else beyond - 1)
                raise error_of(Indexed(number, node, operand, (low, high)), wrong)
            ranges.append((low, high))
            check = CheckIndices(node.op.name, low, high, number)
            yield Node(check, (value,), node.loc, group="")


def _source(value: Value) -> Value:
    """Return the value with the same numbers that stands farthest up, as far as that can
    be seen.
    """
    while value.producer is not None and not _is_empty(value):
        op, (first, *_) = value.producer.op, (*value.producer.inputs, value)
        whole = isinstance(op, Reshape | Transpose | Broadcast | Identity | StopGradient)
        if not whole and not (isinstance(op, Cast) and _keeps(first.type.dtype, value.type.dtype)):
            break
        value = first
    return value


def _keeps(before: DType, after: DType) -> bool:
    """Return whether one type of integers has all numbers of another."""
    if not (before.is_integer and after.is_integer):
        return False
    (low, high), (least, beyond) = _all_of(before), _all_of(after)
    return _lies((low, high), (least, beyond))


def _is_empty(value: Value) -> bool:
    """Return whether a value is known to have no elements."""
    return any(is_identical(d, 0) for d in value.type.shape)


def _lies(inner: Range, outer: Range) -> bool:
    """Return whether a range is known to lie in another one; nothing is decided by it."""
    return always(less_equal(outer[0], inner[0])) and always(less_equal(inner[1], outer[1]))


def _all_of(dtype: DType) -> Range:
    """The numbers of a type."""
    if not dtype.is_integer:
        return (0, 2) if dtype is dt.bool_ else (-(1 << 70), 1 << 70)
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max) + 1


# -- what is known about numbers ---------------------------------------------------------------


def _bounds(value: Value, known: dict[Value, Range], deep: int = _DEEP) -> Range:
    """Numbers that the elements of a value lie between, as far as the graph tells."""
    everything = _all_of(value.type.dtype)
    node, data = value.producer, constant_of(value)
    if node is None or not value.type.dtype.is_integer or not deep:
        return everything
    if value in known:
        return known[value]
    if data is not None:
        if not data.is_present or not size_of(value.type.shape):
            return everything
        return int(data.array.min()), int(data.array.max()) + 1
    found = _of_op(node, value.index, [_bounds(v, known, deep - 1) for v in node.inputs])
    if found is None or not _lies(found, everything):
        found = everything
    known[value] = found
    return found


def _of_op(node: Node, output: int, of: list[Range]) -> Range | None:
    """The bounds of a result, from those of the operands."""
    op: Any = node.op
    if isinstance(op, _PICKED):
        return of[0]
    if isinstance(op, Concat):
        return _least([low for low, _ in of]), _most([high for _, high in of])
    if isinstance(op, Ordering):
        return (0, _extent(node, op.axis)) if output == 1 else of[0]
    if isinstance(op, ArgExtremum):
        return 0, _extent(node, op.axis)
    if isinstance(op, Full | Iota):
        return _made(op)
    if isinstance(op, Cast):
        inside = node.inputs[0].type.dtype.is_integer or node.inputs[0].type.dtype is dt.bool_
        return of[0] if inside else None
    if isinstance(op, Where):
        return minimum(of[1][0], of[2][0]), maximum(of[1][1], of[2][1])
    if isinstance(op, Clip):
        low, high = of[0]
        least = low if op.low is None else maximum(low, int(op.low))
        most = high - 1 if op.high is None else minimum(maximum(high - 1, least), int(op.high))
        return minimum(least, most), most + 1
    return _of_two(op, of) if len(of) == 2 else None


def _made(op: Full | Iota) -> Range | None:
    """Of what is made of nothing."""
    if isinstance(op, Iota) and not isinstance(op.n, int):
        if not (isinstance(op.start, int) and isinstance(op.step, int)):
            return None
        ends = op.start, op.start + (op.n - 1) * op.step
        return minimum(*ends), maximum(*ends) + 1
    made = op.replace(shape=()) if isinstance(op, Full) else op
    array = np.asarray(made.reference())
    return (int(array.min()), int(array.max()) + 1) if array.size else None


def _of_two(op: Op, of: list[Range]) -> Range | None:
    """Of arithmetic on two operands."""
    (a, b), (c, d) = [(low, high - 1) for low, high in of]
    if isinstance(op, Add):
        return a + c, b + d + 1
    if isinstance(op, Sub):
        return a - d, b - c + 1
    if isinstance(op, Mul):
        ends = [x * y for x in (a, b) for y in (c, d)]
        return _least(ends), _most(ends) + 1
    if isinstance(op, Mod) and always(less_equal(1, c)):
        return 0, d
    if isinstance(op, Maximum):
        return maximum(a, c), maximum(b, d) + 1
    if isinstance(op, Minimum):
        return minimum(a, c), minimum(b, d) + 1
    return None


def _extent(node: Node, axis: int) -> Dim:
    return node.inputs[0].type.shape[axis]


def _least(numbers: Sequence[Dim]) -> Dim:
    return reduce(minimum, numbers)


def _most(numbers: Sequence[Dim]) -> Dim:
    return reduce(maximum, numbers)


__all__ = ["CheckRanges"]
