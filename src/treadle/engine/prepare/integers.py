"""Products of numbers that were integers: computed on the integers.

Models that were quantized elsewhere say where values are rounded, not what is computed on integers:
`dequantize`, an op on real numbers, `quantize`. This finds what those real numbers are: a value on
a grid is scale * (q - zero) for stored integers q. Convolutions and matrix products of two such
values become products of integers, whose sums are exact and are multiplied by both scales; ops that
only move or choose elements work on the integers. What follows, bias, activation, residual and the
next rounding, is elementwise, and fusion makes it the product's epilogue.

Where a rounding follows, its step is part of that factor, and a bias that is a multiple of the step
of the sums is added to them, as integer runtimes do. So a result differs from op after op by one
level at most, where real numbers lie next to a tie.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.shape import Shape, product
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.cleanup import DeadCode, Fold
from treadle.graph.ir import Graph, Node, Value, constant_of
from treadle.graph.regions import map_regions
from treadle.graph.rewrite import Found, P, Rule, rewrite
from treadle.ops.conv import Conv, IntConv
from treadle.ops.elementwise import Add, Cast, Sub
from treadle.ops.families import Movement
from treadle.ops.integer_products import conv_sums, matmul_sums
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.movement import Concat, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.pool import MaxPool
from treadle.ops.quant import Dequantize, FakeQuantize, Quantize, limits_of
from treadle.ops.select import Clip
from treadle.ops.slicing import Pad
from treadle.ops.transfer import Identity
from treadle.ops.unary import Relu

Notes: TypeAlias = Counter[tuple[str, str, str]]
"""Number of times something was said: about what, the outcome, and why."""
BYTES = (dt.int8, dt.uint8)
MOST = 1 << 30
"""Most that products may add up to, and biases as well, so that both fit into 32 bits."""
HALF = 128
"""Distance between int8 and uint8."""
NEAR = 1e-3
"""Largest distance from a whole number of steps of a bias that was rounded to steps once."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Stored integers and what they stand for: scale * (q - zero), per index of `axis` if given.

    `scale` is the value, and `steps` what is known of it.
    """

    q: Value
    scale: Value
    steps: Array | None
    zero: int | None
    axis: int | None

    @property
    def reach(self) -> int:
        """The largest magnitude of an integer less the zero point."""
        low, high = limits_of(self.q.type.dtype)
        zero = self.zero or 0
        return max(high - zero, zero - low)

    def is_like(self, other: Grid) -> bool:
        """Return whether equal integers stand for equal numbers."""
        same = self.scale is other.scale or (
            self.steps is not None
            and other.steps is not None
            and np.array_equal(self.steps, other.steps)
        )
        mine, theirs = self.q.type.dtype, other.q.type.dtype
        alike = mine is theirs and self.zero is not None and self.zero == other.zero
        return same and alike and self.axis is None and other.axis is None


@dataclass(frozen=True, slots=True)
class Sums:
    """int32 sums that stand for `steps` (float64, broadcasts) times themselves, cut at limits.

    `added` is the most that biases may have added to them.
    """

    value: Value
    steps: Array
    added: int = 0
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_cut(self) -> bool:
        """True if there are limits."""
        return self.low > -math.inf or self.high < math.inf

    def cut(self, low: float, high: float) -> Sums:
        """The same, cut once more; these limits win where the two have nothing in common."""
        first, last = (min(max(limit, low), high) for limit in (self.low, self.high))
        return replace(self, low=first, high=last)


def on_integers(graph: Graph) -> tuple[Graph, Notes]:
    """The graph with products on integers where both operands are, and what is to be reported."""
    notes: Notes = Counter()

    def changed(part: Graph) -> Graph:
        part = map_regions(part, changed)
        if not any(isinstance(n.op, (Dequantize, FakeQuantize)) for n in part.nodes):
            return part
        for kept in (Dequantize.name, FakeQuantize.name), (Dequantize.name,):
            # Scales may be computed of constants; weights are to stay integers.
            part = rewrite(Fold(keep=kept)(part), (_APART,))
        return DeadCode()(_Integers(part, notes).run())

    return changed(graph), notes


def _chooses(op: Op) -> bool:
    """Return whether a result is made of elements of the one operand, wherever they are."""
    return op.selects == "first" and isinstance(op, (Movement, MaxPool, Identity))


class _Integers:
    """One walk through a graph, which is built anew."""

    def __init__(self, graph: Graph, notes: Notes) -> None:
        self._graph, self._notes = graph, notes
        self._builder = GraphBuilder(graph.name)
        self._builder.adopt(graph.inputs, as_inputs=True)
        self._now: dict[Value, Value] = {v: v for v in graph.inputs}
        self._grids: dict[Value, Grid] = {}
        self._sums: dict[Value, Sums] = {}
        self._other: dict[Value, tuple[Value, int]] = {}
        self._ways: Mapping[type[Op], Callable[[Node], GraphOperand | None]] = {
            Quantize: self._quantize,
            Dequantize: self._dequantize,
            Conv: self._conv,
            Matmul: self._matmul,
            Add: self._add,
            Relu: self._cut,
            Clip: self._cut,
            Reshape: self._reshape,
            Transpose: self._transpose,
            Concat: self._concat,
            Pad: self._pad,
        }

    def run(self) -> Graph:
        """The graph that computes the same."""
        for node in self._graph.nodes:
            way = self._ways.get(type(node.op)) or (self._choose if _chooses(node.op) else None)
            made = None
            if way is not None:
                with self._builder.at(node.loc, node.group):
                    made = way(node)
            if made is not None and made.type == node.output.type:
                self._now[node.output] = made.value
                continue
            copy = self._builder.copy(node, tuple(self._now[v] for v in node.inputs))
            self._now.update(zip(node.outputs, copy.outputs, strict=True))
            if made is None and isinstance(node.op, Dequantize):
                self._note_grid(node, copy.output)
        outputs = tuple(self._now[v] for v in self._graph.outputs)
        built = self._builder.build()
        return Graph(self._graph.name, built.inputs, built.nodes, outputs, self._graph.guards)

    def _at(self, node: Node, index: int = 0) -> GraphOperand:
        """An operand of a node, as it is now."""
        return self._builder.operand(self._now[node.inputs[index]])

    def _grid_of(self, node: Node, index: int = 0) -> Grid | None:
        return self._grids.get(self._now[node.inputs[index]])

    # -- to the grid and from it -----------------------------------------------------------

    def _dequantize(self, node: Node) -> GraphOperand | None:
        """Real numbers of stored integers; those of the other type, where it has no zero point."""
        stored = self._now[node.inputs[0]]
        if stored not in self._other or node.op.attributes["axis"] is not None:
            return None
        q, offset = self._other[stored]
        zero = _level(self._now[node.inputs[2]], q.type.dtype, offset)
        if zero is None or node.output.type.dtype is not dt.float32:
            return None
        return self._real(Grid(q, *self._steps(node, 1), zero, None))

    def _note_grid(self, node: Node, made: Value) -> None:
        """Remember what the numbers of a plain `dequantize` are."""
        q = self._now[node.inputs[0]]
        zero = _level(self._now[node.inputs[2]], q.type.dtype)
        if q.type.dtype in BYTES and made.type.dtype is dt.float32:
            grid = Grid(q, *self._steps(node, 1), zero, node.op.attributes["axis"])
            self._grids[made] = grid

    def _steps(self, node: Node, index: int) -> tuple[Value, Array | None]:
        scale = self._now[node.inputs[index]]
        return scale, _known(scale)

    def _real(self, grid: Grid) -> GraphOperand:
        """The numbers of a grid, which they are remembered to be on."""
        q, scale = self._builder.operand(grid.q), self._builder.operand(grid.scale)
        shape = () if grid.axis is None else grid.scale.type.shape
        zero = q.constant(np.full(shape, grid.zero or 0, np.int32), dt.int32)
        made = Dequantize(grid.axis)(q, scale, zero)
        self._grids[made.value] = grid
        return made

    def _quantize(self, node: Node) -> GraphOperand | None:
        """Rounding: of sums by one factor; of what is on this very grid, not at all."""
        op: Any = node.op
        scale, steps = self._steps(node, 1)
        zero = _whole(self._now[node.inputs[2]])
        if zero is None or op.axis is not None or op.dtype not in BYTES or not _is_positive(steps):
            return None
        x = self._at(node)
        dtype, offset = _centered(op.dtype, zero)
        grid = Grid(Value(TensorType(dtype, x.type.shape)), scale, steps, zero + offset, None)
        on = self._grids.get(x.value)
        if on is not None and on.is_like(grid) and (op.qmin, op.qmax) == limits_of(op.dtype):
            return self._back(op.dtype, self._builder.operand(on.q), offset)
        sums, low, high = self._sums.get(x.value), op.qmin, op.qmax
        if sums is not None:
            x = _scaled(self._builder.operand(sums.value), sums.steps / float(steps))
            scale = x.constant(1.0, dt.float32).value
            limits = np.asarray([sums.low, sums.high], np.float32)
            low, high = map(int, op.reference(limits, np.float32(steps), np.int32(zero)))
        op = op.replace(dtype=dtype, qmin=low + offset, qmax=high + offset)
        by = self._builder.operand(scale)
        return self._back(
            node.output.type.dtype, op(x, by, x.constant(zero + offset, dt.int32)), offset
        )

    def _back(self, dtype: DType, q: GraphOperand, offset: int) -> GraphOperand:
        """The integers of the type that the model has, which nobody reads where all is well."""
        if not offset:
            return q
        made = (q.astype(dt.int16) - offset).astype(dtype)
        self._other[made.value] = q.value, offset
        return made

    # -- products --------------------------------------------------------------------------

    def _conv(self, node: Node) -> GraphOperand | None:
        x, w = self._grid_of(node), self._grid_of(node, 1)
        if x is None or w is None:
            return None
        why = _unfit(x) or _unfit_weight(w, 0) or _too_many(x, w, w.q.type.shape[1:])
        if why:
            self._left(node, why)
            return None
        op, (q, weight) = IntConv(**node.op.attributes), map(self._builder.operand, (x.q, w.q))
        sums = conv_sums(op, q, weight, x.zero or 0)
        return self._product(node, sums, x, w, (1, -1, *(1,) * (sums.type.ndim - 2)))

    def _matmul(self, node: Node) -> GraphOperand | None:
        x, y = self._grid_of(node), self._grid_of(node, 1)
        if x is None or y is None:
            return None
        op = IntMatmul(**node.op.attributes)
        columns = y.q.type.ndim - (2 if op.transpose_y else 1)
        why = _unfit(x) or (y.axis not in (None, columns) and "scales differ along the sum") or ""
        if y.zero is None:
            why = why or "its zero point is not known, or differs by channel"
        why = why or _too_many(x, y, x.q.type.shape[-2 if op.transpose_x else -1 :][:1])
        if why:
            self._left(node, why)
            return None
        first, second = map(self._builder.operand, (x.q, y.q))
        sums = matmul_sums(op, first, second, x.zero or None, y.zero or None)
        return self._product(node, sums, x, y, (-1,))

    def _left(self, node: Node, why: str) -> None:
        subject = f"{node.op.name} -> {node.output.type}"
        self._notes[subject, "left in float32", why] += 1

    def _product(
        self, node: Node, sums: GraphOperand, x: Grid, y: Grid, shape: tuple[int, ...]
    ) -> GraphOperand:
        """The numbers that sums stand for."""
        self._notes[f"{node.op.name} -> {node.output.type}", "on integers", ""] += 1
        along = shape if y.axis is not None else ()
        if x.steps is None or y.steps is None:
            by, other = self._builder.operand(x.scale), self._builder.operand(y.scale)
            return sums.astype(dt.float32) * (by * other.reshape(_given(along, y.scale)))
        steps = np.asarray(x.steps, np.float64) * np.asarray(y.steps, np.float64)
        return self._scaled_sums(Sums(sums.value, steps.reshape(along)))

    def _scaled_sums(self, sums: Sums) -> GraphOperand:
        made = _scaled(self._builder.operand(sums.value), sums.steps)
        self._sums[made.value] = sums
        return made

    # -- what follows products -------------------------------------------------------------

    def _add(self, node: Node) -> GraphOperand | None:
        """A bias that was rounded to the step of the sums is added to these."""
        for index in (0, 1):
            sums = self._sums.get(self._now[node.inputs[index]])
            bias = _known(self._now[node.inputs[1 - index]])
            if sums is None or bias is None or sums.is_cut:
                continue
            levels = _levels(bias, sums.steps)
            added = sums.added + _largest(levels)
            if levels is None or added >= MOST:
                continue
            value = self._shifted(sums.value, levels)
            return self._scaled_sums(replace(sums, value=value, added=added))
        return None

    def _shifted(self, sums: Value, levels: Array) -> Value:
        """Sums and a bias; one addition with the correction for a zero point, if there is one."""
        value, node = self._builder.operand(sums), sums.producer
        if node is None or not isinstance(node.op, Sub):
            return (value + value.constant(levels)).value
        plain, excess = map(self._builder.operand, node.inputs)
        return (plain + (excess.constant(levels) - excess)).value

    def _cut(self, node: Node) -> GraphOperand | None:
        """Remember that sums are cut at limits, which those of a rounding can do as well."""
        sums = self._sums.get(self._now[node.inputs[0]])
        if sums is None:
            return None
        low, high = 0.0, math.inf
        if isinstance(node.op, Clip):
            low = -math.inf if node.op.low is None else node.op.low
            high = math.inf if node.op.high is None else node.op.high
        made = node.op(self._at(node))
        self._sums[made.value] = sums.cut(low, high)
        return made

    # -- moves -----------------------------------------------------------------------------

    def _moved(self, op: Op, grid: Grid | None, axis: int | None = None) -> GraphOperand | None:
        if grid is None or grid.zero is None:
            return None
        q = op(self._builder.operand(grid.q))
        return self._real(replace(grid, q=q.value, axis=axis))

    def _choose(self, node: Node) -> GraphOperand | None:
        other = self._other.get(self._now[node.inputs[0]])
        if other is not None:  # The same of the integers of the other type.
            q, offset = other
            return self._back(node.output.type.dtype, node.op(self._builder.operand(q)), offset)
        grid = self._grid_of(node)
        if grid is None or grid.axis is not None:
            return None
        chooses = isinstance(node.op, MaxPool) and not _is_positive(grid.steps)
        return None if chooses else self._moved(node.op, grid)

    def _transpose(self, node: Node) -> GraphOperand | None:
        grid = self._grid_of(node)
        if grid is None or grid.axis is None:
            return self._choose(node)
        order = node.op.attributes["permutation"]
        return self._moved(node.op, grid, list(order).index(grid.axis))

    def _reshape(self, node: Node) -> GraphOperand | None:
        grid = self._grid_of(node)
        if grid is None or grid.axis is None:
            return self._choose(node)
        before, after = node.inputs[0].type.shape, node.output.type.shape
        wanted = product(before[: grid.axis]), before[grid.axis]
        for axis, extent in enumerate(after):
            if (product(after[:axis]), extent) == wanted:
                return self._moved(node.op, grid, axis)
        return None

    def _pad(self, node: Node) -> GraphOperand | None:
        op: Any = node.op
        grid = self._grid_of(node)
        if grid is None or grid.axis is not None or grid.zero is None:
            return None
        if op.mode != "constant":
            return self._moved(op, grid)
        return self._moved(op.replace(value=float(grid.zero)), grid) if op.value == 0 else None

    def _concat(self, node: Node) -> GraphOperand | None:
        grids = [self._grid_of(node, i) for i in range(len(node.inputs))]
        first, known = grids[0], [g for g in grids if g is not None]
        if first is None or len(known) < len(grids) or not all(first.is_like(g) for g in known):
            return None
        q = node.op(*[self._builder.operand(g.q) for g in known])
        return self._real(replace(first, q=q.value))


# -- rounding within real numbers --------------------------------------------------------------


def _apart(found: Found) -> Value | None:
    """Return as two ops what networks that were trained with rounding do in evaluation."""
    low, high = found.attribute("", "qmin"), found.attribute("", "qmax")
    dtype = next((d for d in BYTES if _holds(d, low) and _holds(d, high)), None)
    zero, scale = _whole(found["zero"]), found["scale"]
    if dtype is None or zero is None or found.type.dtype is not dt.float32:
        return None
    if not _is_positive(_known(scale)):
        return None
    axis = found.attribute("", "axis")
    zeros = found.literal(np.full(scale.type.shape, zero, np.int32))
    q = found.apply(Quantize(dtype, low, high, axis), found["x"], scale, zeros)
    return found.apply(Dequantize(axis), q, scale, zeros)


def _holds(dtype: DType, number: int) -> bool:
    low, high = limits_of(dtype)
    return low <= number <= high


_APART = Rule(
    "fake_quantize(x, s, z) => dequantize(quantize(x, s, z), s, z)",
    P(FakeQuantize, ("x", "scale", "zero")),
    _apart,
    "safe",
)
"""Pattern where scales and zero points are constants, as they are once a network is not trained."""


# -- what fits ---------------------------------------------------------------------------------


def _unfit(x: Grid) -> str:
    """Return why products do not take an operand's integers; `""` where they do."""
    if x.axis is not None:
        return "its input has scales per channel"
    return "its input's zero point is not known" if x.zero is None else ""


def _unfit_weight(w: Grid, axis: int) -> str:
    if w.q.type.dtype is not dt.int8 or w.zero != 0:
        return "its weight is not symmetric int8"
    return "" if w.axis in (None, axis) else "its weight's scales are not those of output channels"


def _too_many(x: Grid, y: Grid, terms: Shape) -> str:
    """Return whether sums of so many products may not fit into 32 bits, a bias included."""
    count = product(terms)
    fits = isinstance(count, int) and count * x.reach * y.reach <= MOST
    return "" if fits else "sums of so many products need more than 32 bits"


def _is_positive(steps: Array | None) -> TypeGuard[Array]:
    """Return whether larger integers stand for larger numbers."""
    return steps is not None and bool((np.isfinite(steps) & (steps > 0)).all())


def _given(along: tuple[int, ...], scale: Value) -> tuple[int, ...]:
    """A shape with one unknown extent, filled in for a scale."""
    return tuple(int(scale.type.shape[0]) if d == -1 else d for d in along)


def _centered(dtype: DType, zero: int) -> tuple[DType, int]:
    """The type of bytes in which a zero point is 0 if there is one, and what that adds to it."""
    if zero == HALF and dtype is dt.uint8:
        return dt.int8, -HALF
    if zero == -HALF and dtype is dt.int8:
        return dt.uint8, HALF
    return dtype, 0


def _known(value: Value) -> Array | None:
    """A small constant, converted or reshaped on its way as it may be."""
    data = constant_of(value)
    if data is not None:
        return data.array if data.is_present else None
    node = value.producer
    if node is None or not isinstance(node.op, (Cast, Reshape)):
        return None
    found = _known(node.inputs[0])
    return None if found is None else np.asarray(node.op.reference(found))


def _whole(value: Value) -> int | None:
    """The one integer, of 32 bits, that all elements of a constant are."""
    found = _known(value)
    if found is None or not found.size or (found != found.flat[0]).any():
        return None
    number = found.flat[0].item()
    return int(number) if abs(number) < 2**31 and number == np.rint(number) else None


def _level(value: Value, dtype: DType, offset: int = 0) -> int | None:
    """The one integer that all elements of a constant are, and an offset, if a type holds it."""
    found = _whole(value)
    return None if found is None or not _holds(dtype, found + offset) else found + offset


def _levels(bias: Array, steps: Array) -> Array | None:
    """A bias in steps, if it is a whole number of them everywhere."""
    with np.errstate(all="ignore"):
        levels = bias.astype(np.float64) / steps
        whole = np.rint(levels)
        # float32 holds the multiples of a step to 24 bits.
        close = np.abs(levels - whole) <= NEAR + np.abs(levels) * 2.0**-23
    if not close.all() or (np.abs(whole) >= MOST).any():
        return None
    return np.asarray(whole.astype(np.int32))


def _largest(levels: Array | None) -> int:
    return 0 if levels is None or not levels.size else int(np.abs(levels).max())


def _scaled(sums: GraphOperand, steps: Array) -> GraphOperand:
    """float32 sums times float32 steps."""
    return sums.astype(dt.float32) * sums.constant(steps.astype(np.float32), dt.float32)
