"""Indices of a program that may be out of range, and the checks that it makes of them.

Kernels hold every index inside of its axis, so that no byte outside is read or written; that an
index was outside is found by `CheckIndices` nodes. They are left out where the index is known to be
inside: constants, positions of sorts and maxima, counters, clipped and wrapped numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import size_of
from treadle.base.symbol import always, is_identical, less_equal
from treadle.graph.index_findings import Indexed, error_of, ranges_of
from treadle.graph.ir import Graph, Node, Value, constant_of
from treadle.graph.passes import register
from treadle.graph.regions import substituted_regions
from treadle.ops.bounds import Range
from treadle.ops.check import CheckIndices, InRange
from treadle.ops.elementwise import Cast
from treadle.ops.index_numpy import asking
from treadle.ops.slicing import Slice

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
        return _CheckWriter().write(graph)


class _CheckWriter:
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
            if isinstance(op, InRange):
                instead[node.output] = inputs[0]
            else:
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
            check = CheckIndices(asking(node.op), low, high, number)
            yield Node(check, (value,), node.loc, group="")


def _source(value: Value) -> Value:
    """Return the value with the same numbers that stands farthest up, as far as that can
    be seen.
    """
    while value.producer is not None and not _is_empty(value):
        op, (first, *_) = value.producer.op, (*value.producer.inputs, value)
        whole = op.strided and not isinstance(op, Slice)
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
    of = [_bounds(v, known, deep - 1) for v in node.inputs]
    found = node.op.bounds(of, [v.type for v in node.inputs], value.index)
    if found is None or not _lies(found, everything):
        found = everything
    known[value] = found
    return found


__all__ = ["CheckRanges"]
