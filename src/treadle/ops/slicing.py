"""Ops on boxes of a tensor: cut one out, replace one, put a border around it."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Literal

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.guards import require
from treadle.base.shape import Shape, format_shape, require_equal
from treadle.base.symbol import Dim, less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.families import Movement
from treadle.ops.index_numpy import writable
from treadle.ops.op import BadSample, Permuted, Pullback, Sample, Types, V, family, op
from treadle.ops.orders import Orders, placed


@family
class Box(Movement):
    """An op on elements start, start + step, ... of every axis, up to and without stop.

    One entry per axis, as `slice.indices` gives them: from 0 to the extent where the step is
    positive, from -1 to the extent - 1 where it is negative. A stop that lies before the start
    (symbolic ones may not) makes the box empty.
    """

    starts: tuple[Dim, ...]
    stops: tuple[Dim, ...]
    steps: tuple[int, ...]

    keeps_axes = True

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        order = orders(types[0].ndim)
        starts, stops, steps = (placed(n, order) for n in (self.starts, self.stops, self.steps))
        made = self.replace(starts=starts, stops=stops, steps=steps)
        return Permuted(made, (len(order),) * len(types))

    @cached_property
    def forward(self) -> tuple[slice, ...]:
        """The same elements with positive steps: of `flipped` axes in reverse order."""
        bounds = zip(self.starts, self.stops, self.steps, strict=True)
        return tuple(_forward(int(a), int(b), s) for a, b, s in bounds)

    @cached_property
    def flipped(self) -> tuple[int, ...]:
        """The axes with negative steps."""
        return tuple(i for i, s in enumerate(self.steps) if s < 0)

    def box_shape(self, x: TensorType, types: tuple[TensorType, ...]) -> Shape:
        """Shape of the box within x; bounds that are not normalized raise `ShapeError`."""
        if not len(self.starts) == len(self.stops) == len(self.steps) == x.ndim:
            raise self.error(
                f"has bounds for {len(self.starts)} axes, x has {x.ndim}",
                types,
                "give start, stop and step for every axis",
            )
        return tuple(self._extent(i, d, types) for i, d in enumerate(x.shape))

    def _extent(self, axis: int, extent: Dim, types: tuple[TensorType, ...]) -> Dim:
        start, stop, step = self.starts[axis], self.stops[axis], self.steps[axis]
        low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
        if isinstance(low, int) and isinstance(high, int) and high < low:
            low = high = start if step > 0 else start + 1

        def otherwise() -> ShapeError:
            return self.error(
                f"{start}:{stop}:{step} are not bounds of axis {axis} with extent {extent}",
                types,
                "normalize them with slice.indices(extent)",
            )

        if step == 0:
            raise otherwise()
        for relation in (less_equal(0, low), less_equal(low, high), less_equal(high, extent)):
            require(relation, otherwise)
        return (high - low + abs(step) - 1) // abs(step)

    def cut(self, x: Array) -> Array:
        """The box as a view."""
        box: Array = x[self.forward]
        return np.flip(box, self.flipped) if self.flipped else box


def _forward(start: int, stop: int, step: int) -> slice:
    """The elements of a slice in increasing order."""
    if step > 0:
        return slice(start, stop, step)
    count = (start - stop - step - 1) // -step
    return slice(start + (count - 1) * step, start + 1, -step) if count > 0 else slice(0, 0)


@op
class Slice(Box):
    """Elements start, start + step, ... of every axis; steps may be negative."""

    name = "slice"
    strided = True
    torch = "torch.flip(x[op.forward], op.flipped)"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape(self.box_shape(x, (x,))),)

    def reference(self, x: Array) -> Array:
        return self.cut(x)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        zeros = at.dy.constant(0.0).broadcast_to(at.inputs[0].type.shape)
        return (SliceUpdate(self.starts, self.stops, self.steps)(zeros, at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1, 0), (3, 4), (1, 2)), (Arg((3, 4)),)),
            Sample(cls((3, 1), (-1, -1), (-2, -1)), (Arg((4, 3)),)),
            Sample(cls((2, 0), (2, 3), (1, 1)), (Arg((4, 3)),)),
            Sample(cls((-1,), (-1,), (-1,)), (Arg((3,)),)),
            Sample(cls((2, 0), (1, 2), (1, -1)), (Arg((3, 3)),)),
            Sample(cls((), (), ()), (Arg(()),)),
            Sample(cls((0, 0), (0, 3), (1, 3)), (Arg((0, 3)),)),
            Sample(cls((0,), (1,), (1,)), (Arg((1,)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((0,), (4,), (1,)), (Arg((3,)),), ShapeError, "0:4:1"),
            BadSample(lambda: cls((0,), (3,), (0,)), (Arg((3,)),), ShapeError, "0:3:0"),
            BadSample(lambda: cls((3,), (-1,), (-1,)), (Arg((3,)),), ShapeError, "3:-1:-1"),
            BadSample(lambda: cls((), (), ()), (Arg((3,)),), ShapeError, "x has 1"),
        )


@op
class SliceUpdate(Box):
    """x with the box replaced by v, whose shape is the box's (see `Slice`)."""

    name = "slice_update"
    selects = "any"
    operands = ("x", "v")

    def infer(self, x: TensorType, v: TensorType) -> tuple[TensorType, ...]:
        self.check_same_dtype((x, v))
        box = self.box_shape(x, (x, v))
        self.check_ndim((x, v), 1, len(box))
        for mine, theirs in zip(box, v.shape, strict=True):
            require_equal(mine, theirs, lambda: self._mismatch(box, x, v))
        return (x.with_shape(x.shape),)

    def _mismatch(self, box: Shape, x: TensorType, v: TensorType) -> ShapeError:
        return self.error(
            f"cannot write {format_shape(v.shape)} into a box of {format_shape(box)}",
            (x, v),
            "broadcast the value to the shape of the box",
        )

    def reference(self, x: Array, v: Array) -> Array:
        result = writable(x)
        result[self.forward] = np.flip(v, self.flipped)
        return result

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        dx = dv = None
        if at.needs[0]:
            zeros = at.dy.constant(0.0).broadcast_to(at.inputs[1].type.shape)
            dx = SliceUpdate(self.starts, self.stops, self.steps)(at.dy, zeros)
        if at.needs[1]:
            dv = Slice(self.starts, self.stops, self.steps)(at.dy)
        return dx, dv

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls((1, 0), (3, 4), (1, 2)), (Arg((3, 4)), Arg((2, 2)))),
            Sample(cls((3, 1), (-1, -1), (-2, -1)), (Arg((4, 3)), Arg((2, 2)))),
            Sample(cls((2, 0), (2, 3), (1, 1)), (Arg((4, 3)), Arg((0, 3)))),
            Sample(cls((), (), ()), (Arg(()), Arg(()))),
            Sample(cls((0,), (1,), (1,)), (Arg((1,)), Arg((1,)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        box = (1,), (3,), (1,)
        return (
            BadSample(lambda: cls(*box), (Arg((3,)), Arg((3,))), ShapeError, "cannot write [3]"),
            BadSample(lambda: cls(*box), (Arg((2,)), Arg((2,))), ShapeError, "1:3:1"),
            BadSample(lambda: cls(*box), (Arg((3,)), Arg((2,), dt.int32)), DTypeError, "differ in"),
        )


Mode = Literal["constant", "edge", "reflect"]


@op
class Pad(Movement):
    """x with a border: `widths` holds (before, after) for every axis.

    The border holds `value` (cast to x's element type), the nearest element of x (`"edge"`), or
    the elements mirrored at the outermost one (`"reflect"`: widths are less than the extent).
    """

    widths: tuple[tuple[Dim, Dim], ...]
    mode: Mode = "constant"
    value: float = 0.0

    name = "pad"
    selects = "any"

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        order = orders(types[0].ndim)
        return Permuted(self.replace(widths=placed(self.widths, order)), (len(order),))

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        if len(self.widths) != x.ndim:
            raise self.error(
                f"has widths for {len(self.widths)} axes, x has {x.ndim}",
                (x,),
                "give (before, after) for every axis",
            )
        if self.mode not in ("constant", "edge", "reflect"):
            raise self.error(f"knows no mode {self.mode!r}", (x,), "use constant, edge or reflect")
        if x.dtype.is_integer and not math.isfinite(self.value):
            raise DTypeError(
                self.name,
                f"{self.value} is not a value of {x.dtype.name}",
                saw=self.saw((x,)),
                hint="pad with a whole number, or cast with astype()",
            )
        for axis in range(x.ndim):
            self._check_axis(axis, x)
        sums = zip(x.shape, self.widths, strict=True)
        return (x.with_shape(tuple(d + low + high for d, (low, high) in sums)),)

    def _check_axis(self, axis: int, x: TensorType) -> None:
        for width in self.widths[axis]:
            relations = [less_equal(0, width)]
            if width != 0 and self.mode != "constant":
                needed = 1 if self.mode == "edge" else width + 1
                relations.append(less_equal(needed, x.shape[axis]))
            for relation in relations:
                require(relation, lambda width=width: self._bad_width(axis, width, x))  # type: ignore[misc]

    def _bad_width(self, axis: int, width: Dim, x: TensorType) -> ShapeError:
        return self.error(
            f"cannot pad axis {axis} with extent {x.shape[axis]} by {width} ({self.mode})",
            (x,),
            "widths are 0 or more; edge needs an element, reflect one more than the width",
        )

    def reference(self, x: Array) -> Array:
        widths = [(int(low), int(high)) for low, high in self.widths]
        if self.mode != "constant":
            return np.pad(x, widths, mode=self.mode) if x.ndim else np.array(x)
        shape = [d + low + high for d, (low, high) in zip(x.shape, widths, strict=True)]
        result = np.full(shape, np.asarray(self.value).astype(x.dtype))
        inside = (slice(low, low + d) for d, (low, _) in zip(x.shape, widths, strict=True))
        result[tuple(inside)] = x
        return result

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        dx, shape = at.dy, at.inputs[0].type.shape
        for axis, (before, after) in enumerate(self.widths):
            if before != 0 or after != 0:
                dx = self._fold(dx, axis, shape[axis])
        return (dx,)

    def _fold(self, dy: V, axis: int, extent: Dim) -> V:
        """Cut the border of one axis off; where it repeats elements of x, add it to those."""
        before, after = self.widths[axis]
        inner = along(dy, axis, before, before + extent)
        if self.mode == "constant":
            return inner
        if before != 0:
            low = along(dy, axis, 0, before)
            inner = inner + (
                _padded(low.sum(axis, keepdims=True), axis, 0, extent - 1)
                if self.mode == "edge"
                else _padded(_reversed(low, axis, before), axis, 1, extent - 1 - before)
            )
        if after != 0:
            high = along(dy, axis, before + extent, before + extent + after)
            inner = inner + (
                _padded(high.sum(axis, keepdims=True), axis, extent - 1, 0)
                if self.mode == "edge"
                else _padded(_reversed(high, axis, after), axis, extent - 1 - after, 1)
            )
        return inner

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        real = dt.REALS
        return (
            Sample(cls(((1, 0), (0, 2)), value=1.5), (Arg((2, 3)),)),
            Sample(cls(((2, 1), (1, 0)), "edge"), (Arg((2, 3)),), dtypes=real),
            Sample(cls(((1, 0), (2, 2)), "reflect"), (Arg((2, 3)),), dtypes=real),
            Sample(cls(()), (Arg(()),)),
            Sample(cls(((1, 0), (0, 0))), (Arg((0, 3)),)),
            Sample(cls(((0, 0), (0, 3)), "edge"), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(((-1, 0),)), (Arg((3,)),), ShapeError, "by -1"),
            BadSample(lambda: cls(((3, 0),), "reflect"), (Arg((3,)),), ShapeError, "by 3"),
            BadSample(lambda: cls(((1, 0),), "edge"), (Arg((0,)),), ShapeError, "by 1 (edge)"),
            BadSample(lambda: cls(((1, 0),)), (Arg((2, 3)),), ShapeError, "x has 2"),
            BadSample(
                lambda: cls(((1, 0),), value=math.nan), (Arg((3,), dt.int32),), DTypeError, "nan is"
            ),
        )


def along(x: V, axis: int, start: Dim, stop: Dim) -> V:
    """Elements start to stop of one axis, all of the others."""
    ndim, shape = x.type.ndim, x.type.shape
    starts = tuple(start if i == axis else 0 for i in range(ndim))
    stops = tuple(stop if i == axis else d for i, d in enumerate(shape))
    return Slice(starts, stops, (1,) * ndim)(x)


def _padded(x: V, axis: int, before: Dim, after: Dim) -> V:
    """Zeros before and after x on one axis."""
    return Pad(tuple((before, after) if i == axis else (0, 0) for i in range(x.type.ndim)))(x)


def _reversed(x: V, axis: int, extent: Dim) -> V:
    """x in reverse order on one axis."""
    ndim, shape = x.type.ndim, x.type.shape
    starts = tuple(extent - 1 if i == axis else 0 for i in range(ndim))
    stops = tuple(-1 if i == axis else d for i, d in enumerate(shape))
    return Slice(starts, stops, tuple(-1 if i == axis else 1 for i in range(ndim)))(x)
