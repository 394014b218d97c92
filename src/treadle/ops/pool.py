"""Pooling over moving windows: maxima, averages and their adjoints.

A maximum is a gather at the positions where the maxima stand; its gradient scatters to them.
Gather and scatter at the same positions are adjoints, so each is the other's gradient. ONNX
writes padding as all begins, then all ends, so these ops do not map one to one.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.errors import ShapeError
from treadle.base.shape import Shape, format_shape, require_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.precision import widen_array
from treadle.ops.windows import PLANES, Padding, Tap, Window, axis_taps, positions_and_taps

SAMPLED = (*dt.FLOATS, dt.int8, dt.uint8, dt.int64)
"""Element types that samples of maxima try; PyTorch, their oracle, does not pool int32."""

# ── what every pooling shares ─────────────────────────────────────────────────────────────────


class Pooling(Op):
    """An op between x [N,C,*S] and one cell per window, [N,C,*P]."""

    work = "reduction"
    dtypes = dt.FLOATS

    @abc.abstractmethod
    def extents(self, spatial: Shape, saw: str) -> Shape:
        """Number of windows along each axis of an input with extents `spatial`."""

    def infer_pooled(self, types: tuple[TensorType, ...]) -> Shape:
        """Shape with one cell per window of the first operand."""
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_ndim(types, 0, 3, 4, 5)
        x = types[0]
        return (*x.shape[:2], *self.extents(x.shape[2:], self.saw(types)))

    def check_shape(self, index: int, wanted: Shape, types: tuple[TensorType, ...]) -> None:
        """Raise `ShapeError` unless operand `index` has the shape `wanted`."""
        found = types[index].shape

        def fail() -> ShapeError:
            return self.error(
                f"{self.operands[index]} must be {format_shape(wanted)}, not {format_shape(found)}",
                types,
                "pass the array that belongs to this x and these windows",
            )

        if len(wanted) != len(found):
            raise fail()
        for want, have in zip(wanted, found, strict=True):
            require_equal(want, have, fail)


class ScatterToMaxima(Pooling):
    """x [N,C,*S] and dy [N,C,*P] to [N,C,*S]: dy added where the maxima of x stand."""

    operands = ("x", "dy")
    keeps_axes = True

    @abc.abstractmethod
    def adjoint(self) -> Op:
        """The gather at the same positions."""

    def infer(self, x: TensorType, dy: TensorType) -> tuple[TensorType, ...]:
        self.check_shape(1, self.infer_pooled((x, dy)), (x, dy))
        return (x,)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        # Small changes of x move no maximum, so only dy has a gradient.
        return None, self.adjoint()(at.inputs[0], at.dy) if at.needs[1] else None


class GatherAtMaxima(Pooling):
    """x and values [N,C,*S] to [N,C,*P]: the values where the maxima of x stand."""

    operands = ("x", "values")

    @abc.abstractmethod
    def adjoint(self) -> Op:
        """The scatter to the same positions."""

    def infer(self, x: TensorType, values: TensorType) -> tuple[TensorType, ...]:
        shape = self.infer_pooled((x, values))
        self.check_shape(1, x.shape, (x, values))
        return (x.with_shape(shape),)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return None, self.adjoint()(at.inputs[0], at.dy) if at.needs[1] else None


@family
class SpreadAverages(Pooling):
    """dy [N,C,*P], divided by the cells of its windows, to all of them, [N,C,*spatial]."""

    operands = ("dy",)
    spatial: Shape


# ── maxima over moving windows ────────────────────────────────────────────────────────────────


@family
class MaxWindow(Pooling):
    """Attributes of a maximum over windows; `padding` is (before, after) per spatial axis.

    Cells of the padding take no part. `ceil_mode` adds a last, incomplete window.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Padding
    dilation: tuple[int, ...]
    ceil_mode: bool

    @property
    def window(self) -> Window:
        """The moving window."""
        return Window(self.kernel, self.strides, self.padding, self.dilation, self.ceil_mode)

    def extents(self, spatial: Shape, saw: str) -> Shape:
        return self.window.extents(self.name, spatial, saw)

    def hits(self, x: Array) -> Iterator[tuple[Tap, Array]]:
        """Yield for each tap the windows that have their first maximum there; NaN counts as the
        largest.
        """
        extents, taps = positions_and_taps(self.window, x.shape[2:])
        best = _maxima(x, extents, taps)
        has_nan = bool((best != best).any())
        free = np.ones(best.shape, np.bool_)
        for tap in taps:
            seen, where = x[PLANES + tap.inputs], PLANES + tap.outputs
            hit = seen == best[where]
            if has_nan:
                hit |= seen != seen
            hit &= free[where]
            free[where] ^= hit
            yield tap, hit

    @classmethod
    def cases(cls) -> tuple[tuple[MaxWindow, tuple[int, ...], tuple[int, ...]], ...]:
        """(op, shape of x, shape of the result) for samples."""
        none, one = (0, 0), (1, 1)
        return (
            (cls((2, 2), (2, 2), (none, none), one, False), (1, 2, 5, 4), (1, 2, 2, 2)),
            (cls((3, 2), (2, 1), (one, one), one, False), (1, 1, 4, 3), (1, 1, 2, 4)),
            (cls((2, 2), (1, 1), (none, none), (2, 1), False), (1, 1, 3, 3), (1, 1, 1, 2)),
            (cls((3,), (2,), (one,), (1,), True), (1, 2, 4), (1, 2, 3)),
            (
                cls((2, 1, 2), (1, 1, 2), (none,) * 3, (1,) * 3, False),
                (1, 1, 2, 2, 4),
                (1, 1, 1, 2, 2),
            ),
            (cls((1, 1), (1, 1), (none, none), one, False), (1, 1, 1, 1), (1, 1, 1, 1)),
            (cls((2, 2), (2, 2), (none, none), one, False), (0, 2, 4, 4), (0, 2, 2, 2)),
        )


@op
class MaxPool(MaxWindow):
    """Largest cell of every window of x [N,C,*S], one to three spatial axes.

    A window that lies in the padding altogether gives the lowest value of the element type.
    """

    name = "max_pool"
    dtypes = dt.REALS
    torch = (
        "getattr(F, f'max_pool{x.ndim - 2}d')(x, op.kernel, op.strides, "
        "[p[0] for p in op.padding], op.dilation, op.ceil_mode)"
    )
    selects = "first"
    keeps_axes = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape(self.infer_pooled((x,))),)

    def reference(self, x: Array) -> Array:
        return _maxima(x, *positions_and_taps(self.window, x.shape[2:]))

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (MaxPoolGrad(**self.attributes)(at.inputs[0], at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(one, (Arg(x, distinct=True),), SAMPLED) for one, x, _ in cls.cases())

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        def make(kernel: int = 2, stride: int = 1, pad: int = 0) -> Callable[[], Op]:
            return lambda: cls((kernel,), (stride,), ((pad, pad),), (1,), False)

        return (
            BadSample(make(kernel=5), (Arg((1, 1, 4)),), ShapeError, "reaches over 5 cells"),
            BadSample(make(kernel=0), (Arg((1, 1, 4)),), ShapeError, "the kernel is empty"),
            BadSample(make(stride=0), (Arg((1, 1, 4)),), ShapeError, "strides must be positive"),
            BadSample(make(pad=-1), (Arg((1, 1, 4)),), ShapeError, "must not be negative"),
            BadSample(make(), (Arg((1, 1, 4, 4)),), ShapeError, "1 entries for 2 spatial"),
            BadSample(make(), (Arg((4,)),), ShapeError, "expects 3 or 4 or 5 axes"),
        )


@op
class MaxPoolGrad(MaxWindow, ScatterToMaxima):
    """Gradient of `MaxPool`: dy goes to the first maximum of its window."""

    name = "max_pool_grad"

    def adjoint(self) -> Op:
        return MaxPoolGather(**self.attributes)

    def reference(self, x: Array, dy: Array) -> Array:
        given = widen_array(dy)
        dx = np.zeros(x.shape, given.dtype)
        for tap, hit in self.hits(widen_array(x)):
            dx[PLANES + tap.inputs] += np.where(hit, given[PLANES + tap.outputs], 0)
        return dx.astype(dy.dtype, copy=False)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(one, (Arg(x, distinct=True), Arg(y))) for one, x, y in cls.cases())

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                lambda: cls((2,), (1,), ((0, 0),), (1,), False),
                (Arg((1, 1, 4)), Arg((1, 1, 2))),
                ShapeError,
                "dy must be [1,1,3], not [1,1,2]",
            ),
        )


@op
class MaxPoolGather(MaxWindow, GatherAtMaxima):
    """The values where x has the maximum of each window; 0 for a window without cells."""

    name = "max_pool_gather"

    def adjoint(self) -> Op:
        return MaxPoolGrad(**self.attributes)

    def reference(self, x: Array, values: Array) -> Array:
        extents, _ = positions_and_taps(self.window, x.shape[2:])
        y = np.zeros((*x.shape[:2], *extents), x.dtype)
        for tap, hit in self.hits(widen_array(x)):
            np.copyto(y[PLANES + tap.outputs], values[PLANES + tap.inputs], where=hit)
        return y

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(one, (Arg(x, distinct=True), Arg(x))) for one, x, _ in cls.cases())

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                lambda: cls((2,), (1,), ((0, 0),), (1,), False),
                (Arg((1, 1, 4)), Arg((1, 1, 3))),
                ShapeError,
                "values must be [1,1,4], not [1,1,3]",
            ),
        )


def _maxima(x: Array, extents: tuple[int, ...], taps: tuple[Tap, ...]) -> Array:
    """Largest cell of every window."""
    y = np.full((*x.shape[:2], *extents), _lowest(x), x.dtype)
    for tap in taps:
        kept = y[PLANES + tap.outputs]
        np.maximum(kept, x[PLANES + tap.inputs], out=kept)
    return y


def _lowest(x: Array) -> float | int:
    return -math.inf if as_dtype(x.dtype).is_float else int(np.iinfo(x.dtype).min)


# ── averages over moving windows ──────────────────────────────────────────────────────────────


@family
class AverageWindow(Pooling):
    """Attributes of an average over windows; sums of 16-bit floats are made in float32.

    The sum is divided by the number of cells in the window: of input cells alone, or, with
    `count_include_pad`, of input and padding. A window without cells averages to 0.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Padding
    count_include_pad: bool
    ceil_mode: bool

    keeps_axes = True

    @property
    def window(self) -> Window:
        """The moving window."""
        dilation = (1,) * len(self.kernel)
        return Window(self.kernel, self.strides, self.padding, dilation, self.ceil_mode)

    def extents(self, spatial: Shape, saw: str) -> Shape:
        return self.window.extents(self.name, spatial, saw)

    def counts(self, spatial: tuple[int, ...]) -> Array:
        """Return the divisors of the sums of all windows."""
        return _counts(self.window, self.count_include_pad, spatial)

    @classmethod
    def cases(cls) -> tuple[tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]], ...]:
        """(attributes, shape of x, shape of the result) for samples."""
        none, one = (0, 0), (1, 1)
        return (
            (((2, 2), (2, 2), (none, none), False, False), (1, 2, 5, 4), (1, 2, 2, 2)),
            (((3, 2), (2, 1), (one, one), False, False), (1, 1, 4, 3), (1, 1, 2, 4)),
            (((3, 2), (2, 1), (one, one), True, False), (1, 1, 4, 3), (1, 1, 2, 4)),
            (((3,), (2,), (one,), True, True), (1, 2, 4), (1, 2, 3)),
            (((3,), (2,), (one,), False, True), (1, 2, 4), (1, 2, 3)),
            (((2, 1, 2), (1, 1, 2), (none,) * 3, True, False), (1, 1, 2, 2, 4), (1, 1, 1, 2, 2)),
            (((1, 1), (1, 1), (none, none), False, False), (1, 1, 1, 1), (1, 1, 1, 1)),
            (((2, 2), (2, 2), (none, none), False, False), (0, 2, 4, 4), (0, 2, 2, 2)),
        )


@op
class AvgPool(AverageWindow):
    """Average of every window of x [N,C,*S], one to three spatial axes."""

    name = "avg_pool"
    torch = (
        "getattr(F, f'avg_pool{x.ndim - 2}d')(x, op.kernel, op.strides, "
        "[p[0] for p in op.padding], op.ceil_mode, op.count_include_pad)"
    )

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape(self.infer_pooled((x,))),)

    def reference(self, x: Array) -> Array:
        spatial = x.shape[2:]
        total: Array = widen_array(x)
        extents, _ = positions_and_taps(self.window, spatial)
        for axis, n in enumerate(spatial):
            taps = axis_taps(self.window, axis, n, extents[axis])
            moves = [(outputs, inputs) for _, outputs, inputs in taps]
            total = add_slices(total, axis + 2, extents[axis], moves)
        average: Array = total / self.counts(spatial).astype(total.dtype)
        return average.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (AvgPoolGrad(**self.attributes, spatial=at.inputs[0].type.shape[2:])(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(*attributes), (Arg(x),)) for attributes, x, _ in cls.cases())

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        def make(kernel: int, stride: int) -> Callable[[], Op]:
            return lambda: cls((kernel,), (stride,), ((0, 0),), False, False)

        return (
            BadSample(make(5, 1), (Arg((1, 1, 4)),), ShapeError, "reaches over 5 cells"),
            BadSample(make(2, 0), (Arg((1, 1, 4)),), ShapeError, "strides must be positive"),
        )


@op
class AvgPoolGrad(SpreadAverages, AverageWindow):
    """Adjoint of `AvgPool`: dy [N,C,*P] spread over the windows of [N,C,*spatial]."""

    name = "avg_pool_grad"

    def infer(self, dy: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((dy,))
        self.check_ndim((dy,), 0, 3, 4, 5)
        self.window.check_extents(self.name, self.spatial, dy.shape[2:], self.saw((dy,)))
        return (dy.with_shape((*dy.shape[:2], *self.spatial)),)

    def reference(self, dy: Array) -> Array:
        spatial = tuple(int(n) for n in self.spatial)
        total = widen_array(dy)
        total = total / self.counts(spatial).astype(total.dtype)
        for axis, n in enumerate(spatial):
            taps = axis_taps(self.window, axis, n, dy.shape[axis + 2])
            moves = [(inputs, outputs) for _, outputs, inputs in taps]
            total = add_slices(total, axis + 2, n, moves)
        return total.astype(dy.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        forward = {k: v for k, v in self.attributes.items() if k != "spatial"}
        return (AvgPool(**forward)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(k, s, p, include, ceil, x[2:]), (Arg(y),))
            for (k, s, p, include, ceil), x, y in cls.cases()
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                lambda: cls((2,), (1,), ((0, 0),), False, False, (4,)),
                (Arg((1, 1, 4)),),
                ShapeError,
                "give [3] positions, not [4]",
            ),
            BadSample(
                lambda: cls((2,), (1,), ((0,),), False, False, (4,)),  # type: ignore[arg-type]
                (Arg((1, 1, 3)),),
                ShapeError,
                "padding is not a tuple of pairs",
            ),
        )


def add_slices(
    source: Array, axis: int, extent: int, moves: Iterable[tuple[slice, slice]]
) -> Array:
    """Zeros with `extent` cells along `axis`, plus (target slice, source slice) pairs of source."""
    total = np.zeros((*source.shape[:axis], extent, *source.shape[axis + 1 :]), source.dtype)
    lead = (slice(None),) * axis
    for to, origin in moves:
        total[(*lead, to)] += source[(*lead, origin)]
    return total


@lru_cache(maxsize=512)
def _counts(window: Window, include_padding: bool, spatial: tuple[int, ...]) -> Array:
    """Number of cells of every window, at least 1."""
    extents, _ = positions_and_taps(window, spatial)
    counts = np.ones((), np.int64)
    for axis, n in enumerate(spatial):
        before, after = window.padding[axis]
        start = np.arange(extents[axis]) * window.strides[axis] - before
        low, high = (-before, n + after) if include_padding else (0, n)
        stop = np.minimum(start + int(window.kernel[axis]), high)
        counts = counts[..., None] * np.maximum(stop - np.maximum(start, low), 0)
    return np.maximum(counts, 1)
