"""Schedules of loop nests: which axis vectors lie along, what is kept, how work is divided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from treadle.backends.codegen.loops.index_map import factor_of
from treadle.backends.codegen.loops.moments import Moments, are_early, moments_of
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.backends.codegen.scalars.cost import cost_of
from treadle.backends.codegen.target import Target
from treadle.base.estimates import estimate, is_multiple
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical, maximum
from treadle.graph.cells import AppliedOp, Cell, Literal, Load, Total
from treadle.graph.domains import Collected, CounterAxis, LoopNest, Output, arguments
from treadle.graph.positions import Position
from treadle.ops.families import Elementwise
from treadle.ops.scalar import Scalar

LIGHT = 80.0
HEAVY = 200.0
"""Weights of a body up to which four, and two, vectors are worked on at a time.

Independent chains hide latencies, which is worth more than the registers that spill for it.
"""
COLUMNS = 8.0
"""Weight of a body up to which eight vectors of columns are reduced at a time."""
MOST_LANES = 64
"""Elements that are worked on at a time at most."""
SHORT = 8
"""Times that vectors fit a row from which on its end is not felt."""
WORTH_SAVING = 8.0
"""From this weight on, an element is kept for the next stage instead of computed again."""
ROW_BYTES = 1 << 16
"""Largest row that is kept on the stack, per cell."""


@lru_cache(maxsize=1024)
def weight(op: Elementwise) -> float:
    """Return the number of vector instructions of an elementwise op."""
    return cost_of(op.scalar(*(Scalar("input") for _ in op.operands)))


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass over the reduced axes: what it reduces and what it stores."""

    number: int
    totals: tuple[Total, ...]
    outputs: tuple[Output, ...]
    collected: tuple[Collected, ...]
    needed: frozenset[Cell]


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """The schedule of one nest.

    Attributes:
        lane_axis: the axis vectors lie along; None for a nest of one point.
        lanes: elements that are worked on at a time.
        tile_axis: a parallel axis along which `turned` loads are contiguous: squares of `lanes`
            by `lanes` elements of them are transposed in registers.
        turned: those loads.
        outer: parallel axes besides `lane_axis` and `tile_axis`: a point of them is a row.
        loops: reduced axes besides `lane_axis`, outermost first.
        stages: passes over the reduced axes.
        last: outputs that are stored once per row.
        saved: cells kept in a row buffer between stages.
        row: elements of such a buffer.
        moments: means that are reduced together with the squares about them.
        is_early: one pass over the reduced axes is enough for all reductions.
        points: points of the domain.
        weight: vector instructions per vector of the domain.
        cost: estimated nanoseconds per point of the domain.
        flops: operations on elements in all.
        nbytes: bytes read and written at least.
    """

    lane_axis: CounterAxis | None
    lanes: int
    tile_axis: CounterAxis | None
    turned: tuple[Load, ...]
    outer: tuple[CounterAxis, ...]
    loops: tuple[CounterAxis, ...]
    stages: tuple[Stage, ...]
    last: tuple[Output, ...]
    saved: tuple[Cell, ...]
    row: Dim
    moments: tuple[Moments, ...]
    is_early: bool
    points: Dim
    weight: float
    cost: float
    flops: Dim
    nbytes: Dim

    @property
    def split_axis(self) -> CounterAxis | None:
        """The reduced axis that is divided where rows are too few: the outermost one."""
        if self.loops:
            return self.loops[0]
        return self.lane_axis if self.rows_reduced else None

    @property
    def rows_reduced(self) -> bool:
        """True where vectors lie along a reduced axis, so that their lanes are combined."""
        return self.lane_axis is not None and self.lane_axis.reduced


def plan(nest: LoopNest, target: Target, nbytes: Dim) -> LoopSchedule:
    """Choose a schedule; `nbytes` is what the nest reads and writes."""
    lane_axis = _lane_axis(nest, target)
    reduced = _mask(a for a in nest.axes if a.reduced)
    stages, last = _stages(nest, reduced)
    row = product(a.extent for a in nest.axes if a.reduced)
    in_rows = lane_axis is not None and lane_axis.reduced
    total = sum(weight(c.op) for s in stages for c in s.needed if isinstance(c, AppliedOp))
    native = _native(nest, target, lane_axis)
    tile_axis, turned = _tiles(nest, lane_axis)
    lanes = native * _vectors(nest, total, lane_axis, native, target)
    points = maximum(product(a.extent for a in nest.axes), 1)
    moments = moments_of(nest)
    return LoopSchedule(
        lane_axis,
        min(native, MOST_TILE) if turned else lanes,
        tile_axis,
        turned,
        tuple(a for a in nest.axes if not a.reduced and a not in (lane_axis, tile_axis)),
        tuple(a for a in nest.axes if a.reduced and a is not lane_axis),
        stages,
        last,
        _saved(stages, reduced, row) if in_rows else (),
        row,
        moments,
        are_early(nest, moments),
        points,
        weight=total,
        cost=total / native / 2.5 + estimate(nbytes) / estimate(points) / (6.0 if turned else 12.0),
        flops=points * sum(isinstance(c, AppliedOp | Total) for c in nest.cells()),
        nbytes=nbytes,
    )


MOST_TILE = 16
"""Largest side of a square that is transposed in registers."""


def _lane_axis(nest: LoopNest, target: Target) -> CounterAxis | None:
    """The axis along which most of what is stored and loaded is contiguous."""
    if nest.collected:
        # Their results lie along the reduced axes.
        return [a for a in nest.axes if a.reduced][-1]
    best: CounterAxis | None = None
    score = 0.0
    for axis in nest.axes:
        found = _contiguous(nest, axis, estimate(axis.extent) < _native(nest, target, axis))
        if best is None or found >= score:
            best, score = axis, found
    return best


def _contiguous(nest: LoopNest, axis: CounterAxis, is_narrow: bool) -> float:
    """Return the number of elements that are read and written side by side along an axis.

    Stores along one that is narrower than a vector are no better than element by element.
    """
    stored = sum(
        points_of(nest, o.place) for o in nest.outputs if is_identical(factor_of(o.place, axis), 1)
    )
    loads = [c.place for c in nest.cells() if isinstance(c, Load)]
    steps = [(p, factor_of(p, axis)) for p in loads if not is_identical(factor_of(p, axis), 0)]
    near = sum(points_of(nest, p) for p, step in steps if is_identical(step, 1))
    far = sum(points_of(nest, p) for p, step in steps if not is_identical(step, 1))
    # Nests without reductions transpose what they load, so stores decide; others gather.
    if nest.totals:
        return stored + near - 4.0 * far
    return (0.5 if is_narrow else 4.0) * stored + near


def points_of(nest: LoopNest, place: Position) -> int:
    """Return the number of different places that a position takes in a nest."""
    return estimate(product(a.extent for a in nest.axes if a.varies & place.varies))


def _tiles(
    nest: LoopNest, lane_axis: CounterAxis | None
) -> tuple[CounterAxis | None, tuple[Load, ...]]:
    """The axis along which loads that jump along `lane_axis` are contiguous, and those loads."""
    best: tuple[CounterAxis | None, tuple[Load, ...]] = None, ()
    if (
        lane_axis is None
        or nest.totals
        or nest.collected
        or estimate(lane_axis.extent) < LEAST_TILE
    ):
        return best
    for axis in nest.axes:
        if axis is lane_axis or estimate(axis.extent) < LEAST_TILE:
            continue
        turned = tuple(
            c for c in nest.cells() if isinstance(c, Load) and _is_turned(c, lane_axis, axis)
        )
        if len(turned) > len(best[1]):
            best = axis, turned
    return best


LEAST_TILE = 4
"""Extent from which on transposing in registers is worth it."""


def _is_turned(cell: Load, lane_axis: CounterAxis, axis: CounterAxis) -> bool:
    place, moving = cell.place, lane_axis.varies | axis.varies
    affine = all(a.kind == "counter" or not a.varies & moving for a, _ in place.terms)
    far = factor_of(place, lane_axis) not in (0, 1)
    return affine and far and factor_of(place, axis) == 1 and not cell.guards


def _stages(nest: LoopNest, reduced: int) -> tuple[tuple[Stage, ...], tuple[Output, ...]]:
    """The passes, and the outputs that are stored after the last."""
    full = [o for o in nest.outputs if o.place.varies & reduced or not reduced]
    made = []
    for number in range(nest.stages):
        totals = tuple(t for t in nest.totals if t.arg.stage == number)
        outputs = tuple(o for o in full if o.cell.stage == number)
        collected = tuple(c for c in nest.collected if c.cell.stage == number)
        if totals or outputs or collected:
            kept = [*(o.cell for o in outputs), *(c.cell for c in collected)]
            roots = [*(t.arg for t in totals), *kept]
            made.append(Stage(number, totals, outputs, collected, _needed(roots)))
    return tuple(made), tuple(o for o in nest.outputs if o not in full)


def _needed(roots: Iterable[Cell]) -> frozenset[Cell]:
    """The cells that are evaluated for some others, those behind reductions left out."""
    found: set[Cell] = set()
    waiting = list(roots)
    while waiting:
        cell = waiting.pop()
        if cell not in found:
            found.add(cell)
            if not isinstance(cell, Total):
                waiting += arguments(cell)
    return frozenset(found)


def _saved(stages: tuple[Stage, ...], reduced: int, row: Dim) -> tuple[Cell, ...]:
    """Costly cells that several stages need: the largest ones that they share."""
    shared: set[Cell] = set()
    for i, first in enumerate(stages):
        for second in stages[i + 1 :]:
            shared |= {c for c in first.needed & second.needed if c.varies & reduced and _costly(c)}
    inner = {a for c in shared for a in _needed(arguments(c))}
    return tuple(c for c in shared - inner if row * compute_dtype(c.dtype).itemsize <= ROW_BYTES)


def _costly(cell: Cell) -> bool:
    inside = _needed([cell])
    return sum(weight(c.op) for c in inside if isinstance(c, AppliedOp)) >= WORTH_SAVING


def _native(nest: LoopNest, target: Target, lane_axis: CounterAxis | None) -> int:
    """Lanes of one vector register of the widest type that vectors hold."""
    if lane_axis is None:
        return 1
    widest = 1
    for cell in nest.cells():
        varies = cell.varies | (cell.arg.varies if isinstance(cell, Total) else 0)
        if varies & lane_axis.varies and not isinstance(cell, Literal):
            widest = max(widest, compute_dtype(cell.dtype).itemsize)
    for output in nest.outputs:
        widest = max(widest, compute_dtype(output.cell.dtype).itemsize)
    return max(target.vector_bytes // widest, 1)


def _vectors(
    nest: LoopNest, total: float, lane_axis: CounterAxis | None, native: int, target: Target
) -> int:
    """Return the number of vectors in work at a time."""
    if lane_axis is None or target.fine:
        return 1
    most = 4 if total <= LIGHT else 2 if total <= HEAVY else 1
    if not lane_axis.reduced and len(nest.totals) == 1 and total <= COLUMNS:
        # Sums of columns jump from row to row: what they read of each had better be long.
        most = 8
    if any(isinstance(c, Load) and c.guards for c in nest.cells()):
        # Masks that depend on more than the end of a row stay in registers of their own.
        most = 1
    extent = estimate(lane_axis.extent)
    while most > 1 and native * most > min(extent, MOST_LANES):
        most //= 2
    # Stores of a part of a vector are slow, so short rows had better be whole ones.
    if extent >= SHORT * native * most:
        return most
    least = most // 2 if nest.totals and not lane_axis.reduced else 1
    counts = (n for n in (8, 4, 2, 1) if least <= n <= most)
    fits = (n for n in counts if is_multiple(lane_axis.extent, native * n))
    return next(fits, most)


def _mask(axes: Iterable[CounterAxis]) -> int:
    found = 0
    for axis in axes:
        found |= axis.varies
    return found
