"""Kernels over rows: how irregular ops divide their work into items, and the loops they share.

A row is the smallest independent part of an op, such as a slice that is copied or a line that is
sorted. An item is a run of `grain` rows that is worth a thread's while; both are parameters, so
that one kernel serves every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Kernel, Value, size
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim, maximum, minimum

_ITEM = 4_000.0
"""Nanoseconds of work that an item should hold."""
_FINER = 1000
"""What costs are multiplied by where integers compute with them."""
_ALONE = 10_000.0
"""Nanoseconds up to which a launch is not worth sharing."""
MOST_ITEMS = 256
_SHARED = ("rows", "grain")
"""Last parameters of kernels whose rows may be items of their own."""

Arguments = tuple[Ref | Dim, ...]
"""What a launch passes."""

BITS = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}


def bits_of(dtype: DType) -> DType:
    """The unsigned integer of the same size: what elements are moved and added as.

    Moving bits needs one kernel per size instead of one per type, and serves complex64, too.
    """
    return BITS[dtype.itemsize]


def row_kernel(
    name: str,
    parameters: Sequence[Value],
    write: Callable[[Builder, Value, Value], None],
    functions: Sequence[Function] = (),
) -> Kernel:
    """A kernel whose body `write(builder, first, stop)` covers a range of rows.

    `over_rows` launches it: it adds the parameters `rows` and `grain`.
    """

    rows, grain = (size(n) for n in _SHARED)

    def body(b: Builder, lo: Value, hi: Value) -> None:
        write(b, b.mul(lo, grain), b.min(b.mul(hi, grain), rows))

    return builder.kernel(name, (*parameters, rows, grain), body, functions)


def item_kernel(
    name: str,
    parameters: Sequence[Value],
    write: Callable[[Builder, Value, Value, Value], None],
    functions: Sequence[Function] = (),
) -> Kernel:
    """A `row_kernel` whose body is also told an item that no other call has, for its scratch."""
    rows, grain = size("rows"), size("share")

    def body(b: Builder, lo: Value, hi: Value) -> None:
        write(b, lo, b.mul(lo, grain), b.min(b.mul(hi, grain), rows))

    return builder.kernel(name, (*parameters, rows, grain), body, functions)


def over_rows(
    kernel: Kernel,
    arguments: Arguments,
    rows: Dim,
    cost: float,
    nbytes: Dim = 0,
    most: int = MOST_ITEMS,
) -> Launch:
    """A launch of a `row_kernel` over `rows` rows, each of about `cost` nanoseconds."""
    items, grain = divide(rows, cost, most)
    serial = is_serial(items, estimate(rows) * cost, _ALONE)
    given = (*arguments, rows, grain)
    return Launch(kernel, given, items=items, serial=serial, nbytes=nbytes)


def row_by_row(launch: Launch) -> Launch:
    """The launch with as many items as rows, if it is one of a `row_kernel`."""
    if tuple(p.name for p in launch.kernel.parameters[-2:]) != _SHARED:
        return launch
    *others, rows, _ = launch.arguments
    if not isinstance(rows, int):
        return launch
    return replace(launch, arguments=(*others, rows, 1), items=rows, serial=rows == 1)


def divide(rows: Dim, cost: float, most: int = MOST_ITEMS) -> tuple[Dim, Dim]:
    """How many items there are, and how many rows each has; the last may have fewer."""
    if isinstance(rows, int):
        wanted: Dim = min(max(int(rows * cost / _ITEM), 1), most, rows)
    else:
        enough = rows * max(round(cost * _FINER), 1) // round(_ITEM * _FINER)
        wanted = minimum(minimum(maximum(enough, 1), most), rows)
    grain = -(-rows // wanted)
    return -(-rows // grain), grain


def is_serial(items: Dim, cost: float, limit: float) -> bool:
    """Whether a launch of so many items, and nanoseconds in all, is not worth sharing."""
    return cost <= limit or (isinstance(items, int) and items == 1)


def unravel(b: Builder, row: Value, extents: Sequence[Value]) -> list[Value]:
    """Coordinates of a row number; the first extent is not needed."""
    coordinates: list[Value] = []
    for extent in reversed(extents[1:]):
        coordinates.insert(0, b.rem(row, extent))
        row = b.div(row, extent)
    return [row, *coordinates]


def walk(
    b: Builder,
    first: Value,
    stop: Value,
    extents: Sequence[Value],
    body: Callable[..., None],
) -> None:
    """`body(row, *coordinates)` for every row of [first, stop).

    Coordinates are counted on from row to row: divisions only happen at the first one.
    """
    if len(extents) == 1:
        b.loop(first, stop, 1, lambda row: body(row, row))
        return

    def turn(row: Value, *coordinates: Value) -> tuple[Value, ...]:
        body(row, *coordinates)
        return _next(b, coordinates, extents)

    b.loop(first, stop, 1, turn, unravel(b, first, extents))


def _next(b: Builder, coordinates: Sequence[Value], extents: Sequence[Value]) -> tuple[Value, ...]:
    """The coordinates that follow in row-major order."""
    step: Value | int = 1
    found: list[Value] = []
    for at, extent in zip(reversed(coordinates[1:]), reversed(extents[1:]), strict=True):
        moved = b.add(at, step)
        over = b.compare("eq", moved, extent)
        found.insert(0, b.select(over, 0, moved))
        step = b.cast(over, dt.int64)
    return (b.add(coordinates[0], step), *found)


def place(b: Builder, coordinates: Sequence[Value], strides: Sequence[Value]) -> Value:
    """The sum of coordinates times strides."""
    total = b.index(0)
    for at, stride in zip(coordinates, strides, strict=True):
        total = b.add(b.mul(at, stride), total)
    return total


def vector_loop(
    b: Builder,
    start: Value | int,
    stop: Value,
    lanes: int,
    body: Callable[..., Any],
    initial: Sequence[Value] = (),
    loop: Callable[..., tuple[Value, ...]] | None = None,
) -> tuple[Value, ...]:
    """`body(index, mask, *carried)` for every `lanes` elements of [start, stop).

    The mask is None but for a last, incomplete turn. `loop` makes all others; `b.loop` by default.
    """
    loop = loop or b.loop
    if lanes == 1:
        return loop(start, stop, 1, lambda i, *c: body(i, None, *c), initial)
    whole = b.bitwise("and", b.sub(stop, start), -lanes)
    full = b.add(start, whole)
    done = loop(start, full, lanes, lambda i, *c: body(i, None, *c), initial)

    def last(i: Value, *carried: Value) -> Any:
        return body(i, b.first_lanes(b.sub(stop, i), lanes), *carried)

    return b.loop(full, stop, lanes, last, done)


def overlapping_loop(
    b: Builder,
    start: Value | int,
    stop: Value,
    lanes: int,
    body: Callable[[Value, Value | None], None],
) -> None:
    """A `vector_loop` whose last turn does the last `lanes` elements, some of them again.

    For bodies that only write what they compute from elsewhere: masked stores are slow on some
    processors, so only a range that is shorter than a vector has one.
    """
    if lanes == 1:
        b.loop(start, stop, 1, lambda i: body(i, None))
        return
    count = b.sub(stop, start)
    full = b.add(start, b.bitwise("and", count, -lanes))
    b.loop(start, full, lanes, lambda i: body(i, None))

    def last() -> None:
        b.branch(
            b.compare("le", lanes, count),
            lambda: body(b.sub(stop, lanes), None),
            lambda: body(b.index(start), b.first_lanes(count, lanes)),
        )

    b.branch(b.compare("lt", full, stop), last)


def resolve(b: Builder, index: Value, extent: Value) -> Value:
    """An index operand's elements as int64 positions in [0, extent).

    Negative ones count from the end. What is still out of range is clamped, so that no kernel
    leaves its memory; the reference raises there.
    """
    wide = b.cast(index, dt.int64)
    from_end = b.add(wide, extent)
    wrapped = b.select(b.compare("lt", wide, 0), from_end, wide)
    return b.min(b.max(wrapped, 0), b.sub(extent, 1))
