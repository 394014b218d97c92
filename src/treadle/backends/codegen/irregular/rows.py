"""Kernels over rows: how irregular ops divide their work into items, and the loops they share.

A row is the smallest independent part of an op, such as a slice that is copied or a line that is
sorted. An item is a run of `grain` rows that is worth a thread's while; both are parameters, so
that one kernel serves every shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from treadle.backends.codegen.kernel.builder import Builder, Changing, KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule, KernelRoutine
from treadle.backends.codegen.kernel.language import InstructionOperand, Value, select, size
from treadle.backends.codegen.kernel.language import maximum as greatest
from treadle.backends.codegen.kernel.language import minimum as least
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import at_most, estimate
from treadle.base.symbol import Dim, maximum, minimum

_ITEM = 4_000.0
"""Nanoseconds of work that an item should hold."""
_FINER = 1000
"""The factor of costs where integers compute with them."""
_ALONE = 10_000.0
"""Nanoseconds up to which a launch is not worth sharing."""
MOST_ITEMS = 256
_SHARED, _SCRATCH = ("rows", "grain"), ("rows", "share")
"""Last parameters of kernels whose rows may be items of their own, and of others."""


class RowCost(NamedTuple):
    """Nanoseconds that a row of any length takes: `fixed`, and `each` for every element."""

    fixed: float
    each: float
    length: Dim

    @property
    def thousandths(self) -> Dim:
        """The same in thousandths, for integers."""
        return round(self.fixed * _FINER) + self.length * max(round(self.each * _FINER), 1)


class RowParameters(Record[P, S]):
    """First parameters of most kernels: what they write and what they read."""

    target: P
    x: P


class Gradient(RowParameters[P, S]):
    """First parameters of gradients."""

    dy: P


BITS = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}


def bits_of(dtype: DType) -> DType:
    """The unsigned integer of the same size: what elements are moved and added as.

    Moving bits needs one kernel per size instead of one per type, and serves complex64, too.
    """
    return BITS[dtype.itemsize]


class RowBuilder(KernelBuilder):
    """Writes a kernel over rows, of which an item has `grain`; `over_rows` launches it.

    An item covers the rows [first, stop). With `scratch`, items have memory of their own, numbered
    by `item`, and are never made smaller.
    """

    def __init__(
        self, parameters: Iterable[InstructionOperand] = (), *, scratch: bool = False
    ) -> None:
        super().__init__(parameters)
        self.item = self.lo
        self._rows, self._grain = (self.adopt(size(n)) for n in (_SCRATCH if scratch else _SHARED))
        self.first = self.lo * self._grain
        self.stop = least(self.hi * self._grain, self._rows)

    def rows(self, *extents: Value) -> AbstractContextManager[tuple[Value, ...]]:
        """A block that is run for every row, which is told its number and its coordinates."""
        return walk(self, self.first, self.stop, extents)

    def kernel(
        self, name: str, functions: Sequence[KernelRoutine] = (), features: Sequence[str] = ()
    ) -> KernelModule:
        self.parameters += self._rows, self._grain
        return super().kernel(name, functions, features)


def over_rows(
    kernel: RecordedKernel,
    given: Record[Ref, Dim],
    rows: Dim,
    cost: float | RowCost,
    nbytes: Dim = 0,
    most: int = MOST_ITEMS,
) -> Launch:
    """A launch of a `RowBuilder`'s kernel over `rows` rows, each of about `cost` nanoseconds."""
    if isinstance(cost, RowCost) and isinstance(cost.length, int):
        cost = cost.fixed + cost.length * cost.each
    items, grain = divide(rows, cost, most)
    if isinstance(cost, RowCost):  # At most lengths it may be one item.
        longest = at_most(rows * cost.thousandths)
        serial = longest is not None and is_serial(items, longest / _FINER, _ALONE)
    else:
        serial = is_serial(items, estimate(rows) * cost, _ALONE)
    return kernel.launch(given, rows, grain, items=items, serial=serial, nbytes=nbytes)


def row_by_row(launch: Launch) -> Launch:
    """The launch with as many items as rows, if it is one of `over_rows` without scratch."""
    if tuple(p.name for p in launch.kernel.parameters[-2:]) != _SHARED:
        return launch
    *others, rows, _ = launch.arguments
    if not isinstance(rows, int):
        return launch
    return replace(launch, arguments=(*others, rows, 1), items=rows, serial=rows == 1)


def divide(rows: Dim, cost: float | RowCost, most: int = MOST_ITEMS) -> tuple[Dim, Dim]:
    """Return the number of items and of rows in each; the last may have fewer."""
    if isinstance(rows, int) and not isinstance(cost, RowCost):
        wanted: Dim = min(max(int(rows * cost / _ITEM), 1), most, rows)
    else:
        if isinstance(cost, RowCost):
            each = cost.thousandths
        else:
            each = max(round(cost * _FINER), 1)
        enough = rows * each // round(_ITEM * _FINER)
        wanted = minimum(minimum(maximum(enough, 1), most), rows)
    grain = -(-rows // wanted)
    return -(-rows // grain), grain


def is_serial(items: Dim, cost: float, limit: float) -> bool:
    """Return whether a launch of so many items, and nanoseconds in all, is not worth sharing."""
    return cost <= limit or (isinstance(items, int) and items == 1)


def unravel(row: Value, extents: Sequence[Value]) -> list[Value]:
    """Coordinates of a row number; the first extent is not needed."""
    coordinates: list[Value] = []
    for extent in reversed(extents[1:]):
        coordinates.insert(0, row % extent)
        row = row // extent
    return [row, *coordinates]


@contextmanager
def walk(
    e: Builder, first: Value, stop: Value, extents: Sequence[Value]
) -> Iterator[tuple[Value, ...]]:
    """A block for every row of [first, stop), which is told (row, *coordinates).

    Coordinates are counted on from row to row: divisions only happen at the first one.
    """
    if len(extents) < 2:
        with e.loop(first, stop) as row:
            yield (row,) * (1 + len(extents))
        return
    coordinates = unravel(first, extents)
    with e.loop(first, stop, carrying=coordinates) as row:
        here = tuple(coordinates)
        yield (row, *here)
        coordinates[:] = stepped(here, extents)


def stepped(coordinates: Sequence[Value], extents: Sequence[Value]) -> tuple[Value, ...]:
    """The coordinates that follow in row-major order."""
    step: Value | int = 1
    found: list[Value] = []
    for at, extent in zip(reversed(coordinates[1:]), reversed(extents[1:]), strict=True):
        moved = at + step
        over = moved == extent
        found.insert(0, select(over, 0, moved))
        step = over.cast(dt.int64)
    return (coordinates[0] + step, *found)


def place(coordinates: Sequence[Value], strides: Sequence[Value]) -> Value | int:
    """The sum of coordinates times strides."""
    total: Value | int = 0
    for at, stride in zip(coordinates, strides, strict=True):
        total = at * stride + total
    return total


def vector_loop(
    e: Builder,
    start: Value | int,
    stop: Value,
    lanes: int,
    carrying: Changing[Any] = (),
    loop: Callable[..., AbstractContextManager[Value]] | None = None,
) -> Iterator[tuple[Value, Value | None]]:
    """Blocks for every `lanes` elements of [start, stop): (index, mask) of whole vectors, and again
    of a last, incomplete one, if there is any. Only that one has a mask. `loop` makes the first
    block; `e.loop` by default.
    """
    loop = loop or e.loop
    if lanes == 1:
        with loop(start, stop, 1, carrying=carrying) as i:
            yield i, None
        return
    full = start + ((stop - start) & -lanes)
    with loop(start, full, lanes, carrying=carrying) as i:
        yield i, None
    with e.loop(full, stop, lanes, carrying=carrying) as i:
        yield i, e.first_lanes(stop - i, lanes)


def overlapping_loop(
    e: Builder, start: Value | int, stop: Value, lanes: int
) -> Iterator[tuple[Value, Value | None]]:
    """A `vector_loop` whose last turn does the last `lanes` elements, some of them again.

    For bodies that only write what they compute from elsewhere: masked stores are slow on some
    processors, so only a range that is shorter than a vector has one.
    """
    if lanes == 1:
        with e.loop(start, stop) as i:
            yield i, None
        return
    count = stop - start
    full = start + (count & -lanes)
    with e.loop(start, full, lanes) as i:
        yield i, None
    with e.when(full < stop):
        with e.when(lanes <= count):
            yield stop - lanes, None
        with e.otherwise():
            yield e.index(start), e.first_lanes(count, lanes)


def resolve(index: Value, extent: Value) -> Value:
    """An index operand's elements as int64 positions in [0, extent).

    Negative ones count from the end. What is still out of range is clamped, so that no kernel
    leaves its memory; the reference raises there.
    """
    wide = index.cast(dt.int64)
    from_end = wide + extent
    wrapped = select(wide < 0, from_end, wide)
    return least(greatest(wrapped, 0), extent - 1)
