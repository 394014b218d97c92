"""Sorting: sort, top_k, and random permutations; `sort_lines` has what is done to a line."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Literal

from treadle.backends.codegen.irregular.ordering import key_type
from treadle.backends.codegen.irregular.random_bits import draw
from treadle.backends.codegen.irregular.rows import RowBuilder, over_rows, unravel
from treadle.backends.codegen.irregular.sort_heads import sort_by_heads
from treadle.backends.codegen.irregular.sort_lines import (
    SAMPLES,
    SHORT,
    fill,
    keep_least,
    line_in,
    scratch_bytes,
    sort_line,
)
from treadle.backends.codegen.irregular.top_k import MANY, lower_few, worth_a_list
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical
from treadle.base.types import TensorType
from treadle.ops.distribution import RandomPermutation
from treadle.ops.sort import Sort, TopK

_MOST_ITEMS = 16
"""Each has its own scratch."""
_HEADS = 1 << 16
"""Elements up to which float64 numbers mostly differ in their upper halves."""

Way = Literal["all", "few", "heads"]
"""All of a line is sorted; most of it is left out first; upper halves of keys are sorted first."""


@lowers(Sort)
def lower_sort(
    op: Sort, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """All elements of every line."""
    x = types[0]
    return _sorted(x, op.axis, x.shape[op.axis], op.descending, target)


@lowers(TopK)
def lower_top_k(
    op: TopK, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """The first k: of a few a list is kept, of many, or an open number, all are sorted."""
    x = types[0]
    if x.dtype.itemsize < 8 and worth_a_list(op.k, estimate(x.shape[op.axis])):
        return lower_few(op, x, target)
    return _sorted(x, op.axis, op.k, op.largest, target)


@lowers(RandomPermutation)
def lower_random_permutation(
    op: RandomPermutation, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """The order of n random keys: pairs of words are 64-bit integers, low word first."""
    n = op.n
    keys = draw(Ref("workspace", 0), "bits", dt.uint32, 2 * n, target)
    refs = Ref("output", 0), Ref("output", 0), Ref("workspace", 0), Ref("workspace", 1)
    kernel = _sort_kernel(dt.uint64, target.lanes(dt.uint64), True, False, "heads", values=False)
    order, scratch = _launch(kernel, refs, dt.uint64, (1, n, 1), n)
    return Lowered((keys, order), (8 * n, scratch))


def _sorted(x: TensorType, axis: int, kept: Dim, descending: bool, target: Target) -> Lowered:
    """x as [outer, extent, inner]; of every line the first `kept` elements in order.

    All ways give the same, whatever the extent; one is chosen that is quick at the hint.
    """
    shape, axis = x.shape, axis % len(x.shape)
    dims = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    dense, extent = is_identical(dims[2], 1), estimate(dims[1])
    lanes = target.lanes(key_type(x.dtype)) if dense else 1
    way: Way = "all"
    if extent >= MANY and estimate(kept) * 2 <= extent:
        way = "few"
    elif x.dtype is dt.float64 and extent <= _HEADS:
        way = "heads"
    kernel = _sort_kernel(x.dtype, lanes, dense, descending, way)
    refs = Ref("output", 0), Ref("output", 1), Ref("input", 0), Ref("workspace", 0)
    launch, scratch = _launch(kernel, refs, x.dtype, dims, kept)
    return Lowered((launch,), (scratch,))


def _launch(
    kernel: RecordedKernel,
    refs: tuple[Ref, Ref, Ref, Ref],
    dtype: DType,
    dims: tuple[Dim, Dim, Dim],
    kept: Dim,
) -> tuple[Launch, Dim]:
    """The launch and the bytes of its scratch."""
    outer, extent, inner = dims
    known = estimate(extent)
    cost = known * 0.4 * known if known <= SHORT else 2000 + known * 4.0 * dtype.itemsize
    share = min(estimate(kept) / known, 1.0)
    # Three standard deviations above the rank that the last one kept has among the samples.
    rank = math.ceil(SAMPLES * share + 3 * math.sqrt(SAMPLES * share * (1 - share))) + 1
    given = _SortedLines(*refs, extent, inner, kept, rank)
    launch = over_rows(kernel, given, outer * inner, cost, most=_MOST_ITEMS)
    return launch, scratch_bytes(extent, key_type(dtype), launch.items)


class _SortedLines(Record[P, S]):
    target: P
    order: P
    x: P
    scratch: P
    extent: S
    inner: S
    kept: S
    rank: S


@cache
def _sort_kernel(
    dtype: DType, lanes: int, dense: bool, descending: bool, way: Way, values: bool = True
) -> RecordedKernel:
    """Return the kernel; each row of the launch is a line."""
    e, kind = RowBuilder(scratch=True), _SortedLines[Pointer, Value]
    p = e.record(kind, target=dtype, order=dt.int32, x=dtype, scratch=dt.uint64)
    whole = line_in(e, p.scratch, e.item, p.extent, key_type(dtype))

    with e.loop(e.first, e.stop) as number:
        outer, column = unravel(number, (p.inner, p.inner))
        source = p.x + (outer * p.extent * p.inner + column)
        step = None if dense else p.inner
        make = partial(fill, e, whole, source, step, descending, lanes)
        make()
        line = keep_least(e, whole, p.kept, p.rank, make) if way == "few" else whole
        at = sort_by_heads(e, line) if way == "heads" else sort_line(e, line)
        to = outer * p.kept * p.inner + column

        with e.loop(p.kept) as i:
            place, found = to + i * p.inner, line.number(at + i)
            p.order[place] = found.cast(dt.int32)
            if values:
                p.target[place] = source[found * p.inner]

    name = f"sort_{dtype.name}_{lanes}" + "_dense" * dense + "_down" * descending
    name += f"_{way}" + "_order" * (not values)
    return RecordedKernel(e.kernel(name), p)
