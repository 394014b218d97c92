"""Division of a loop nest's work into units, parts of reductions, and whole launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from treadle.backends.codegen.irregular.rows import divide, is_serial
from treadle.backends.codegen.loops.index_map import factor_of
from treadle.backends.codegen.loops.plan import LEAST_TILE, LoopSchedule, points_of
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.backends.codegen.target import Target
from treadle.base.estimates import at_most, estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim
from treadle.graph.cells import Cell, Load
from treadle.graph.domains import Collected, CounterAxis, LoopNest, arguments
from treadle.graph.ir import Node

BLOCK = 4096
"""Elements of the lane axis that a unit of work has at least, where the axis is parallel."""
MOST_ITEMS = 1024
"""Items a launch is divided into at most."""
ALONE = 8_000.0
"""Nanoseconds up to which a launch is not worth sharing among threads."""
PART = 16_000.0
"""Nanoseconds that a part of a divided reduction takes at least."""
MOST_PARTS = 64
"""Parts of a divided reduction."""
ENOUGH_UNITS = 8
"""Units of work from which on reductions are not divided."""
FINE = 256
"""Parts of a reduction on a target with many threads, and elements that a part has at least."""
FINE_UNITS = 4096
"""Units of work from which on reductions are not divided there."""
LINE = 64
"""Bytes of a cache line."""
TILE_BLOCK = 16
"""Squares that a unit transposes one after the other along the lane axis."""
STRIP = 32
"""Rows that sums of columns are taken over at a time: what they read stays in the first caches."""
MOST_STRIPS = 512
"""Parts that columns are divided into, as long as those stay shorter than `LONGEST_STRIP`."""
LONGEST_STRIP = 2048
"""Rows of a part at most."""
LONGEST_RUN = 512
"""Rows that are taken in one after the other at most: the error of sums grows with them."""
STRIPS = 12_000.0
"""Nanoseconds from which on columns are divided."""
STARVED = 100_000.0
"""Nanoseconds from which on a nest with few rows is computed stage by stage."""


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a nest's work.

    A unit is a row, one of `blocks` blocks of `block` elements of it, or one of `parts` parts of
    its reductions, each of `length` elements of the split axis. Where squares are transposed, a
    unit is also one of `bands` bands of `band` elements of the tile axis. An item is `grain` units.
    """

    units: Dim
    items: Dim
    grain: Dim
    serial: bool
    blocks: Dim = 1
    block: Dim = 0
    parts: Dim = 1
    length: Dim = 0
    bands: Dim = 1
    band: Dim = 0


def divided(nest: LoopNest, plan: LoopSchedule, joins: bool, target: Target) -> Division:
    """Units and items of a nest; one that `joins` parts keeps its reductions whole."""
    rows = _product(plan.outer)
    total = _time(nest, plan)
    if nest.collected:
        known = estimate(rows)
        shares = max(min(known // LEAST_TILE, MOST_PARTS, int(total / PART)), 1)
        run = min(-(-known // shares), LONGEST_RUN)
        number = -(-rows // run)
        return Division(rows, number, run, is_serial(number, total, ALONE))
    if plan.tile_axis is not None:
        return _banded(plan, plan.tile_axis, rows, total, target)
    blocks, block = _blocks(plan, target)
    parts, length = (1, 0) if joins else _parts(nest, plan, rows * blocks, total, target)
    units = rows * blocks * parts
    items, grain = _items(units, total, target)
    serial = is_serial(items, total, ALONE)
    return Division(units, items, grain, serial, blocks, block, parts, length)


def _items(units: Dim, total: float, target: Target) -> tuple[Dim, Dim]:
    """Items, and the units of each."""
    return (units, 1) if target.fine else divide(units, total / estimate(units), MOST_ITEMS)


def _time(nest: LoopNest, plan: LoopSchedule) -> float:
    """Estimated nanoseconds of a nest."""
    return plan.cost * max(estimate(_product(nest.axes)), 1)


def _banded(
    plan: LoopSchedule, axis: CounterAxis, rows: Dim, total: float, target: Target
) -> Division:
    """Bands as wide as a cache line, so that each line is read by one unit."""
    band = max(LINE // min(compute_dtype(c.dtype).itemsize for c in plan.turned), plan.lanes)
    bands = -(-axis.extent // band)
    length = plan.lane_axis.extent if plan.lane_axis is not None else 1
    block = plan.lanes if target.fine else TILE_BLOCK * plan.lanes
    blocks = -(-length // block)
    units = rows * bands * blocks
    items, grain = _items(units, total, target)
    serial = is_serial(items, total, ALONE)
    return Division(units, items, grain, serial, blocks, block, 1, 0, bands, band)


def _blocks(plan: LoopSchedule, target: Target) -> tuple[Dim, Dim]:
    """Blocks along the lane axis, where it is parallel, and their extent."""
    axis = plan.lane_axis
    if axis is None or axis.reduced:
        return 1, 0
    inner = estimate(_product(plan.loops))
    least = plan.lanes if target.fine else max(BLOCK // inner // plan.lanes, 1) * plan.lanes
    if estimate(axis.extent) < 2 * least:
        return 1, 0
    return -(-axis.extent // least), least


# -- parts of reductions -------------------------------------------------------------------------


def _parts(
    nest: LoopNest, plan: LoopSchedule, units: Dim, total: float, target: Target
) -> tuple[Dim, Dim]:
    """Parts of reductions that would keep few threads busy otherwise, and their length.

    Their number depends on nothing but the shapes: rounding must not depend on threads. Where the
    axis is symbolic, their length does not depend on the call either.
    """
    axis = plan.split_axis
    if axis is None or not nest.totals or not plan.is_early:
        return 1, 0
    if target.fine:
        length = _fine_part(plan, axis, units)
    elif not plan.rows_reduced:
        length = _strip(plan, axis, units, total, target)
    elif estimate(units) < ENOUGH_UNITS:
        parts = min(MOST_PARTS // estimate(units), int(total / PART))
        length = -(-estimate(axis.extent) // max(parts, 1))
    else:
        return 1, 0
    if axis is plan.lane_axis:
        length = -(-length // plan.lanes) * plan.lanes
    parts = -(-axis.extent // length)
    return (parts, length) if estimate(parts) > 1 else (1, 0)


def _fine_part(plan: LoopSchedule, axis: CounterAxis, units: Dim) -> Dim:
    """Elements of the split axis of a part where every part is a thread of its own."""
    inner = _product(plan.loops) // axis.extent if axis in plan.loops else 1
    if units >= FINE_UNITS or axis.extent * inner < 2 * FINE:
        return axis.extent
    parts = min(FINE, axis.extent * inner // FINE, -(-FINE_UNITS // units))
    return -(-axis.extent // parts)


def _strip(plan: LoopSchedule, axis: CounterAxis, units: Dim, total: float, target: Target) -> Dim:
    """Elements of the split axis that columns are reduced over at a time."""
    rows = estimate(_product(plan.loops))
    if total < STRIPS or rows < 2 * STRIP or _stays(plan, units, target):
        return axis.extent
    length = min(max(rows // MOST_STRIPS, STRIP), LONGEST_STRIP)
    return max(length // max(rows // estimate(axis.extent), 1), 1)


def _stays(plan: LoopSchedule, units: Dim, target: Target) -> bool:
    """True if columns of several tables are reduced, each small enough for its core's cache."""
    row = estimate(plan.nbytes) // max(estimate(plan.points), 1) * plan.lanes
    several = bool(plan.outer) and estimate(units) >= ENOUGH_UNITS
    return several and estimate(_product(plan.loops)) * row <= target.l2 // 4


def is_cut(nest: LoopNest, plan: LoopSchedule, division: Division, target: Target) -> bool:
    """True if the first reductions, and what follows from them per row, had better run alone.

    What comes then is another launch, which can be divided among threads, and which reads whole
    rows where the reductions were those of columns.
    """
    if not nest.totals or nest.collected or plan.tile_axis is not None:
        return False
    if plan.is_early and not any(s.number and s.outputs for s in plan.stages):
        return False
    total = _time(nest, plan)
    if estimate(division.units) < ENOUGH_UNITS and total >= STARVED:
        return True
    if plan.rows_reduced or plan.split_axis is None or plan.lane_axis is None:
        return False
    large = total >= 2 * STRIPS and estimate(_product(plan.loops)) >= 2 * STRIP
    return large and not _stays(plan, division.units, target)


def first_reductions(nest: LoopNest, plan: LoopSchedule) -> list[Node]:
    """The reductions of the first of several passes.

    Those that no later one needs wait for the next pass, which may read the same arrays.
    """
    second = {m.squares for m in plan.moments}
    late = [t for t in nest.totals if t.stage > 1 and t not in second]
    wanted: set[Cell] = set()
    waiting: list[Cell] = list(late)
    while waiting:
        cell = waiting.pop()
        if cell not in wanted:
            wanted.add(cell)
            waiting += arguments(cell)
    wanted |= {m.squares for m in plan.moments if m.mean in wanted}
    first = [t for t in nest.totals if t.stage == 1 or t in second]
    return [t.node for t in first if not late or t in wanted]


def by_rows(nest: LoopNest, plan: LoopSchedule, target: Target) -> LoopNest | None:
    """A nest that reduces whole columns, as one that takes in row after row.

    Reading along rows is what memory is fast at; the sums then go through memory themselves, but
    that of the first cache. None where columns are better reduced on their own, strip by strip: in
    registers, where those hold a row, or where the operands are in the cache.
    """
    kept = [a for a in nest.axes if not a.reduced]
    columns = _product(kept)
    leading = nest.axes[: len(nest.axes) - len(kept)]
    if (
        not nest.totals
        or not plan.is_early
        or nest.collected
        or not all(a.reduced for a in leading)
        or not LEAST_COLUMNS <= estimate(columns) <= (at_most(columns) or 0) <= MOST_COLUMNS
        or (len(kept) == 1 and plan.lane_axis is kept[0] and estimate(columns) <= plan.lanes)
        or estimate(nest.row) < LEAST_ROWS
        or estimate(plan.nbytes) < target.l2
    ):
        return None
    return _turned_around(nest, plan)


LEAST_COLUMNS = 64
MOST_COLUMNS = 1 << 14
LEAST_ROWS = 128
"""Extents between which sums of columns are taken in by rows."""


def _turned_around(nest: LoopNest, plan: LoopSchedule) -> LoopNest | None:
    """Rows and columns in each other's roles: reductions become collected ones."""
    reduced = sum(a.varies for a in nest.axes if a.reduced)
    full = tuple(o for o in nest.outputs if o.place.varies & reduced)
    if any(o.cell.stage for o in full):
        return None
    means = {m.squares: m.mean for m in plan.moments}
    collected = []
    for t in nest.totals:
        mean = means.get(t)
        cell, about = (t.arg, None) if mean is None else (mean.arg, mean.node)
        collected.append(Collected(t.node, cell, t.place, t.count, about))
    return LoopNest(
        nest.body,
        tuple(replace(a, reduced=not a.reduced) for a in nest.axes),
        full,
        (),
        tuple(collected),
        tuple(o.number for o in nest.outputs if o not in full),
        nest.tables,
    )


def jumps(nest: LoopNest, plan: LoopSchedule) -> bool:
    """Return whether many elements are gathered one by one from rows far apart.

    A transposed operand is better copied by a nest of its own, which turns it in registers.
    """
    axis = plan.lane_axis
    if axis is None:
        return False
    return any(
        abs(estimate(factor_of(c.place, axis))) >= FAR and points_of(nest, c.place) >= MANY
        for c in nest.cells()
        if isinstance(c, Load) and c not in plan.turned
    )


FAR = 16
"""Stride from which on neighboring lanes lie on cache lines of their own."""
MANY = 16_384
"""Elements that may be gathered."""


def _product(axes: Iterable[CounterAxis]) -> Dim:
    return product(a.extent for a in axes)
