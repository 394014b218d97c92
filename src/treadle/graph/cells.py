"""Cells: what one element of a loop nest is computed from.

`CellBuilder` walks a body backwards from an element of an output: movement ops become changes of
position, elementwise ops become `AppliedOp`, inputs become `Load`. Equal cells are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.shape import Shape, normalize_axis, product
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.graph.ir import Graph, Node, Value
from treadle.graph.positions import ZERO, Position, Positions, linear, shifted, times
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.creation import Extent, Eye, Full, Iota
from treadle.ops.elementwise import Add, Cast, Mul
from treadle.ops.families import Elementwise, Reduce
from treadle.ops.gather import OneHot, Take
from treadle.ops.gather_along import TakeAlongAxis
from treadle.ops.logic import Equal
from treadle.ops.movement import Broadcast, Concat, Flip, Reshape, Roll, Transpose
from treadle.ops.op import Op
from treadle.ops.slicing import Pad, Slice, SliceUpdate
from treadle.ops.transfer import Identity, StopGradient

Index = tuple[Position, ...]


class Guard(NamedTuple):
    """The condition that a position lies in [0, extent)."""

    position: Position
    extent: Dim


Guards = tuple[Guard, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A number that the loops compute, of storage type `dtype`.

    `varies` is the bitset of counters it depends on, `stage` the number of reductions that have
    to be complete, one after the other, before it can be computed.
    """

    dtype: DType
    varies: int
    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class Load(Cell):
    """Element `place` of input number `source` (those after the inputs: the nest's tables).

    Where a guard fails the element need not exist, and the cell may have any value.
    """

    source: int
    place: Position
    guards: Guards


@dataclass(frozen=True, slots=True, eq=False)
class AppliedOp(Cell):
    """An elementwise op applied to cells."""

    op: Elementwise
    args: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Cell):
    """A number."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Sequence(Cell):
    """start + step * place, as `Iota` computes it."""

    start: float
    step: float
    place: Position


@dataclass(frozen=True, slots=True, eq=False)
class GuardedCell(Cell):
    """`inside` where every guard holds, else `outside`."""

    guards: Guards
    inside: Cell
    outside: Cell


@dataclass(frozen=True, slots=True, eq=False)
class Total(Cell):
    """A reduction of `arg` over the reduced counters, of `count` elements.

    `place` is the place of the element in the dense result of `node`.
    """

    op: Reduce
    arg: Cell
    count: Dim
    node: Node
    place: Position


class CellRefused(Exception):
    """A value cannot be computed by one loop nest."""


C = TypeVar("C", bound=Cell)
Method = Callable[["CellBuilder", Node, Any, Index, Guards], Cell]


class CellBuilder:
    """Makes the cells of one loop nest.

    Args:
        body: the program; composites are expanded.
        positions: the counters.
        reduced: bitset of the counters that row reductions run over.
        foreign: reductions that are not computed inside this nest.
    """

    def __init__(
        self, body: Graph, positions: Positions, reduced: int, foreign: frozenset[Node]
    ) -> None:
        self.positions = positions
        self.reduced = reduced
        self.foreign = foreign
        self.inputs = {v: i for i, v in enumerate(body.inputs)}
        self.tables: list[ArrayData] = []
        self.totals: dict[Node, tuple[Index, Total]] = {}
        self._known: dict[Any, Cell] = {}
        self._cells: dict[Any, Cell] = {}

    @property
    def cells(self) -> int:
        """Number of different cells made so far."""
        return len(self._cells)

    def cell(self, value: Value, index: Index, guards: Guards = ()) -> Cell:
        """The element of a value at a position, which counts only where the guards hold."""
        key = (value, index, guards)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(value, index, guards)
        return found

    def _make(self, value: Value, index: Index, guards: Guards) -> Cell:
        node, shape = value.producer, extents(value)
        if value in self.inputs:
            return self.load(self.inputs[value], value.type.dtype, linear(index, shape), guards)
        if node is None:
            raise CellRefused("a value comes from outside the body")
        rule = RULES.get(type(node.op))
        if rule is not None:
            return rule(self, node, node.op, index, guards)
        if isinstance(node.op, Reduce):
            return self._total(node, node.op, index, guards)
        if is_scalar_op(node.op):
            return self._elementwise(node, node.op, index, guards)
        raise CellRefused(f"{node.op.name} is not part of a loop nest")

    def share(self, key: Any, make: Callable[[], C]) -> C:
        """The one cell of this description."""
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = make()
        return found  # type: ignore[return-value]  # keys name the class

    def load(self, source: int, dtype: DType, place: Position, guards: Guards) -> Load:
        """An element of an input or table."""
        needed = tuple(g for g in guards if not _holds(g))
        varies = place.varies | _varies(needed)
        stage = max([place.stage, *(g.position.stage for g in needed)])
        return self.share(
            (Load, source, place, needed), lambda: Load(dtype, varies, stage, source, place, needed)
        )

    def apply(self, op: Elementwise, dtype: DType, args: tuple[Cell, ...]) -> AppliedOp:
        """An elementwise op on cells."""
        varies = stage = 0
        for a in args:
            varies, stage = varies | a.varies, max(stage, a.stage)
        return self.share(
            (AppliedOp, op, dtype, tuple(map(id, args))),
            lambda: AppliedOp(dtype, varies, stage, op, args),
        )

    def literal(self, value: Any, dtype: DType) -> Literal:
        """A number."""
        return self.share((Literal, repr(value), dtype), lambda: Literal(dtype, 0, 0, value))

    def sequence(self, dtype: DType, place: Position, start: float = 0, step: float = 1) -> Cell:
        """start + step * place."""
        key = (Sequence, dtype, repr(start), repr(step), place)
        return self.share(
            key, lambda: Sequence(dtype, place.varies, place.stage, start, step, place)
        )

    def choice(self, guards: Guards, inside: Callable[[], Cell], outside: Cell) -> Cell:
        """`inside` where the guards hold; one that never does leaves `outside`."""
        open_ = tuple(g for g in guards if not _holds(g))
        if any(_fails(g) for g in open_):
            return outside
        chosen = inside()
        if not open_:
            return chosen
        varies = chosen.varies | outside.varies | _varies(open_)
        stage = max(chosen.stage, outside.stage, *(g.position.stage for g in open_))
        key = (GuardedCell, open_, id(chosen), id(outside))
        return self.share(
            key, lambda: GuardedCell(chosen.dtype, varies, stage, open_, chosen, outside)
        )

    def _elementwise(self, node: Node, op: Elementwise, index: Index, guards: Guards) -> Cell:
        args = tuple(self.cell(v, aligned(v, node.output, index), guards) for v in node.inputs)
        return self.apply(op, node.output.type.dtype, args)

    def _total(self, node: Node, op: Reduce, index: Index, guards: Guards) -> Cell:
        (x,), dtype = node.inputs, node.output.type.dtype
        if 0 in extents(x):
            nothing = np.zeros((0,), x.type.dtype.numpy)
            identity = type(op)((0,)).reference(nothing)
            return self.literal(number_of(np.asarray(identity)), dtype)
        if not reduces(node):
            kept = iter(p for a, p in enumerate(index) if not op.keepdims or a not in op.axes)
            same = (ZERO if a in op.axes else next(kept) for a in range(x.type.ndim))
            return self.cell(x, tuple(same), guards)
        if node in self.foreign:
            raise CellRefused(f"the result of {op.name} over other axes is used inside the nest")
        if guards:
            raise CellRefused(f"the result of {op.name} is padded")
        if any(p.varies & self.reduced for p in index):
            raise CellRefused(f"the result of {op.name} is read along the axes that are reduced")
        if node in self.totals:
            seen, total = self.totals[node]
            if seen != index:
                raise CellRefused(f"the result of {op.name} is read in two orders")
            return total
        arg = self.cell(x, self._reduced_index(x, op, index))
        count = product(x.type.shape[a] for a in op.axes)
        varies = (arg.varies | _union(index)) & ~self.reduced
        place = linear(index, extents(node.output))
        total = Total(dtype, varies | place.varies, arg.stage + 1, op, arg, count, node, place)
        self.totals[node] = index, total
        return total

    def _reduced_index(self, x: Value, op: Reduce, index: Index) -> Index:
        """Return the position that the operand is read at: the result's index, and all reduced
        counters.
        """
        shape, positions = extents(x), self.positions
        inner = [c for c in positions.counters if c.varies & self.reduced]
        place = linear([positions.counter(c.number) for c in inner], [c.extent for c in inner])
        moving = iter(positions.unravel(place, [shape[a] for a in op.axes]))
        kept = iter(p for a, p in enumerate(index) if not op.keepdims or a not in op.axes)
        return tuple(next(moving) if a in op.axes else next(kept) for a in range(len(shape)))


def reduces(node: Node) -> bool:
    """Return whether a node combines several elements, not none and not single ones."""
    if not isinstance(node.op, Reduce):
        return False
    shape = extents(node.inputs[0])
    return 0 not in shape and not all(is_identical(shape[a], 1) for a in node.op.axes)


def extents(value: Value) -> Shape:
    """The shape of a value, whose extents are numbers or given by the call."""
    return value.type.shape


def is_scalar_op(op: Op) -> TypeGuard[Elementwise]:
    """Return whether an op is elementwise and says what it does to one element."""
    return isinstance(op, Elementwise) and type(op).scalar is not Elementwise.scalar


def aligned(operand: Value, result: Value, index: Index) -> Index:
    """Return the position that a broadcast operand is read at: its last axes, 0 where its extent is
    1.
    """
    count = operand.type.ndim
    ends = zip(operand.type.shape, result.type.shape[-count:] if count else (), strict=True)
    places = zip(ends, index[len(index) - count :], strict=True)
    # An open extent that the result has, too, is not asked for.
    return tuple(
        [ZERO if (d is not e or isinstance(d, int)) and d == 1 else p for (d, e), p in places]
    )


def _holds(guard: Guard) -> bool:
    low, high = guard.position.bounds
    return low >= 0 and high < guard.extent


def _fails(guard: Guard) -> bool:
    low, high = guard.position.bounds
    return high < 0 or low >= guard.extent


def _varies(guards: Guards) -> int:
    return _union(g.position for g in guards)


def _union(positions: Any) -> int:
    found = 0
    for p in positions:
        found |= p.varies
    return found


# -- rules: how a result's element is found among the operands' ----------------------------------


def _same(b: CellBuilder, node: Node, op: Op, index: Index, guards: Guards) -> Cell:
    return b.cell(node.inputs[0], index, guards)


def _reshape(b: CellBuilder, node: Node, op: Reshape, index: Index, guards: Guards) -> Cell:
    source, target = extents(node.output), extents(node.inputs[0])
    return b.cell(node.inputs[0], b.positions.reshape(index, source, target), guards)


def _transpose(b: CellBuilder, node: Node, op: Transpose, index: Index, guards: Guards) -> Cell:
    moved: list[Position] = [ZERO] * len(index)
    for position, axis in zip(index, op.permutation, strict=True):
        moved[axis] = position
    return b.cell(node.inputs[0], tuple(moved), guards)


def _broadcast(b: CellBuilder, node: Node, op: Broadcast, index: Index, guards: Guards) -> Cell:
    return b.cell(node.inputs[0], aligned(node.inputs[0], node.output, index), guards)


def _flip(b: CellBuilder, node: Node, op: Flip, index: Index, guards: Guards) -> Cell:
    shape = extents(node.output)
    flipped = tuple(
        shifted(times(p, -1), shape[a] - 1) if a in op.axes else p for a, p in enumerate(index)
    )
    return b.cell(node.inputs[0], flipped, guards)


def _roll(b: CellBuilder, node: Node, op: Roll, index: Index, guards: Guards) -> Cell:
    shape, moved = extents(node.output), list(index)
    for shift, axis in zip(op.shifts, op.axes, strict=True):
        moved[axis] = shifted(moved[axis], -shift % shape[axis])
    (x,) = node.inputs
    if len(op.axes) == 1 and x in b.inputs:
        return _in_two_pieces(b, x, op.axes[0], tuple(moved), guards)
    for axis in op.axes:
        moved[axis] = b.positions.divide(moved[axis], shape[axis])[1]
    return b.cell(x, tuple(moved), guards)


def _in_two_pieces(b: CellBuilder, x: Value, axis: int, index: Index, guards: Guards) -> Cell:
    """An element of an input that begins again after its end: both pieces are contiguous."""
    extent = extents(x)[axis]
    first = Guard(index[axis], extent)
    second = Guard(shifted(index[axis], -extent), extent)
    again = (*index[:axis], second.position, *index[axis + 1 :])
    rest = b.cell(x, again, (*guards, second))
    return b.choice((first,), lambda: b.cell(x, index, (*guards, first)), rest)


def _slice(b: CellBuilder, node: Node, op: Slice, index: Index, guards: Guards) -> Cell:
    inner = tuple(
        shifted(times(p, step), s) for p, s, step in zip(index, op.starts, op.steps, strict=True)
    )
    return b.cell(node.inputs[0], inner, guards)


def _slice_update(
    b: CellBuilder, node: Node, op: SliceUpdate, index: Index, guards: Guards
) -> Cell:
    x, v = node.inputs
    kept = b.cell(x, index, guards)
    inner: list[Position] = []
    inside: list[Guard] = []
    for p, start, step, extent in zip(index, op.starts, op.steps, extents(v), strict=True):
        place = shifted(p, -start)
        place = times(place, -1) if step < 0 else place
        if abs(step) > 1:
            raise CellRefused("a box with steps is replaced")
        inner.append(ZERO if extent == 1 else place)
        inside.append(Guard(place, extent))
    if 0 in extents(v):
        return kept
    return b.choice(tuple(inside), lambda: b.cell(v, tuple(inner), (*guards, *inside)), kept)


def _pad(b: CellBuilder, node: Node, op: Pad, index: Index, guards: Guards) -> Cell:
    (x,), moved = node.inputs, []
    shape = extents(x)
    places = [shifted(p, -low) for p, (low, _) in zip(index, op.widths, strict=True)]
    if op.mode != "constant":
        bend = b.positions.clamp if op.mode == "edge" else b.positions.mirror
        moved = [bend(p, d) for p, d in zip(places, shape, strict=True)]
        return b.cell(x, tuple(moved), guards)
    dtype = x.type.dtype
    border = b.literal(number_of(np.asarray(op.value).astype(dtype.numpy)), dtype)
    if 0 in shape:
        return border
    inside = tuple(Guard(p, d) for p, d in zip(places, shape, strict=True))
    return b.choice(inside, lambda: b.cell(x, tuple(places), (*guards, *inside)), border)


def _concat(b: CellBuilder, node: Node, op: Concat, index: Index, guards: Guards) -> Cell:
    if len(node.inputs) > MOST_PIECES:
        raise CellRefused(f"{len(node.inputs)} pieces are joined")
    axis = normalize_axis(op.axis, len(index), op.name)
    start, chosen = 0, None
    for x in node.inputs:
        extent = extents(x)[axis]
        place = shifted(index[axis], -start)
        start += extent
        if extent == 0:
            continue
        moved = (*index[:axis], ZERO if is_identical(extent, 1) else place, *index[axis + 1 :])
        guard = Guard(place, extent)
        piece = b.cell(x, moved, (*guards, guard))
        chosen = piece if chosen is None else b.choice((guard,), lambda p=piece: p, chosen)  # type: ignore[misc]
    if chosen is None:
        raise CellRefused("nothing is joined")
    return chosen


MOST_PIECES = 4
"""Pieces of a concat inside a nest: every element is tested against each."""


def _full(b: CellBuilder, node: Node, op: Full, index: Index, guards: Guards) -> Cell:
    return b.literal(number_of(op.replace(shape=()).reference()), op.dtype)


def _extent(b: CellBuilder, node: Node, op: Extent, index: Index, guards: Guards) -> Cell:
    if isinstance(op.extent, Expr):
        return b.sequence(op.dtype, Position(op.extent))
    return b.literal(number_of(op.reference()), op.dtype)


def _iota(b: CellBuilder, node: Node, op: Iota, index: Index, guards: Guards) -> Cell:
    if not isinstance(op.start, Expr) and not isinstance(op.step, Expr):
        return b.sequence(op.dtype, index[0], op.start, op.step)
    start, step = (v if isinstance(v, Expr) else int(v) for v in (op.start, op.step))
    if isinstance(step, int):
        return b.sequence(op.dtype, shifted(times(index[0], step), start))
    wide = dt.int64
    grown = b.apply(Mul(), wide, (b.sequence(wide, index[0]), b.sequence(wide, Position(step))))
    found = b.apply(Add(), wide, (grown, b.sequence(wide, Position(start))))
    return b.apply(Cast(op.dtype), op.dtype, (found,))


def _eye(b: CellBuilder, node: Node, op: Eye, index: Index, guards: Guards) -> Cell:
    row = b.sequence(dt.int64, shifted(index[0], op.k))
    hit = b.apply(Equal(), dt.bool_, (row, b.sequence(dt.int64, index[1])))
    return b.apply(Cast(op.dtype), op.dtype, (hit,))


def _one_hot(b: CellBuilder, node: Node, op: OneHot, index: Index, guards: Guards) -> Cell:
    (x,), dtype = node.inputs, node.output.type.dtype
    wanted = b.cell(x, index[:-1], guards)
    hit = b.apply(Equal(), dt.bool_, (wanted, b.sequence(dtype, index[-1])))
    return b.apply(Cast(dtype), dtype, (hit,))


def _constant(b: CellBuilder, node: Node, op: Constant, index: Index, guards: Guards) -> Cell:
    if not op.data.is_present:
        raise CellRefused("the data of a constant is not attached")
    array = op.data.array
    first = array.reshape(-1)[:1]
    if op.data.nbytes <= SMALL_BYTES and array.tobytes() == first.tobytes() * array.size:
        return b.literal(number_of(first.reshape(())), op.data.dtype)
    if op.data not in b.tables:
        b.tables.append(op.data)
    source = len(b.inputs) + b.tables.index(op.data)
    return b.load(source, op.data.dtype, linear(index, array.shape), guards)


SMALL_BYTES = 4096
"""Constants up to this size are searched for one value that they repeat."""


def _take(b: CellBuilder, node: Node, op: Take, index: Index, guards: Guards) -> Cell:
    x, places = node.inputs
    axis = normalize_axis(op.axis, x.type.ndim, op.name)
    inner = index[axis : axis + places.type.ndim]
    if not extents(x)[axis]:
        return _nothing(b, node)
    fetched = b.positions.fetch(b.cell(places, inner, guards), extents(x)[axis])
    moved = (*index[:axis], fetched, *index[axis + places.type.ndim :])
    return b.cell(x, moved, guards)


def _take_along(
    b: CellBuilder, node: Node, op: TakeAlongAxis, index: Index, guards: Guards
) -> Cell:
    x, places = node.inputs
    axis = normalize_axis(op.axis, x.type.ndim, op.name)
    if not extents(x)[axis]:
        return _nothing(b, node)
    fetched = b.positions.fetch(b.cell(places, index, guards), extents(x)[axis])
    return b.cell(x, (*index[:axis], fetched, *index[axis + 1 :]), guards)


def _nothing(b: CellBuilder, node: Node) -> Cell:
    """An element out of none: programs stop there, and nothing is read before they do."""
    dtype = node.output.type.dtype
    return b.literal(number_of(np.zeros((), dtype.numpy)), dtype)


def number_of(array: Any) -> Any:
    """The Python number that a 0-d array holds."""
    kind = array.dtype.kind
    if kind == "c":
        return complex(array)
    return bool(array) if kind == "b" else int(array) if kind in "iu" else float(array)


RULES: Mapping[type[Op], Method] = {
    Identity: _same,
    StopGradient: _same,
    Reshape: _reshape,
    Transpose: _transpose,
    Broadcast: _broadcast,
    Flip: _flip,
    Roll: _roll,
    Slice: _slice,
    SliceUpdate: _slice_update,
    Pad: _pad,
    Concat: _concat,
    Full: _full,
    Extent: _extent,
    Iota: _iota,
    Eye: _eye,
    OneHot: _one_hot,
    Constant: _constant,
    Take: _take,
    TakeAlongAxis: _take_along,
}
"""Ops that move or make elements."""
