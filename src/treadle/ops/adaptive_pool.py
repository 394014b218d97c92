"""Pooling to a fixed number of cells, whatever the input's extents.

Window i of m over n cells reaches from floor(i n / m) to ceil((i + 1) n / m), so that windows
cover the input and overlap where n is not a multiple of m.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.errors import ShapeError
from treadle.base.guards import require
from treadle.base.shape import Shape, format_shape
from treadle.base.symbol import less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.creation import allocate
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.pool import (
    SAMPLED,
    GatherAtMaxima,
    Pooling,
    ScatterToMaxima,
    SpreadAverages,
    add_slices,
)
from treadle.ops.precision import widen_array
from treadle.ops.windows import PLANES, Index

_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((2, 2), (1, 2, 4, 4), (1, 2, 2, 2)),
    ((3, 2), (1, 2, 4, 5), (1, 2, 3, 2)),
    ((5,), (2, 1, 3), (2, 1, 5)),
    ((1, 2, 1), (1, 1, 2, 3, 2), (1, 1, 1, 2, 1)),
    ((1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    ((2, 2), (0, 2, 4, 4), (0, 2, 2, 2)),
)
"""(output_shape, shape of x, shape of the result) for samples."""


@family
class AdaptiveWindow(Pooling):
    """The attribute of adaptive pooling: the result's spatial extents."""

    output_shape: tuple[int, ...]

    def extents(self, spatial: Shape, saw: str) -> Shape:
        seen = f"{saw}; input extents {format_shape(spatial)}"
        if len(self.output_shape) != len(spatial) or min(self.output_shape) < 1:
            raise ShapeError(
                self.name,
                f"output_shape {format_shape(self.output_shape)} does not fit "
                f"{len(spatial)} spatial axes",
                saw=seen,
                hint="give one positive extent per spatial axis",
            )
        for n in spatial:
            require(
                less_equal(1, n),
                lambda: ShapeError(
                    self.name, "an input axis is empty", saw=seen, hint="pool non-empty axes"
                ),
            )
        return self.output_shape


@family
class AdaptiveMaxWindow(AdaptiveWindow):
    """Adaptive windows and where their maxima stand."""

    def positions(self, x: Array) -> Array:
        """Flat spatial index of every window's first maximum, [N,C,*output_shape]."""
        x, spatial = widen_array(x), x.shape[2:]
        cells = np.arange(math.prod(spatial)).reshape(spatial)
        found = np.empty((*x.shape[:2], *self.output_shape), np.int64)
        sides = [_windows(n, m) for n, m in zip(spatial, self.output_shape, strict=True)]
        for target in itertools.product(*(range(m) for m in self.output_shape)):
            window: Index = tuple(side[i] for side, i in zip(sides, target, strict=True))
            numbers = cells[window].ravel()
            seen = x[PLANES + window].reshape(*x.shape[:2], numbers.size)
            found[PLANES + target] = numbers[np.argmax(seen, axis=-1)]
        return found


@op
class AdaptiveMaxPool(AdaptiveMaxWindow):
    """Largest cell of each of `output_shape` windows over x [N,C,*S]."""

    name = "adaptive_max_pool"
    dtypes = dt.REALS
    torch = "getattr(F, f'adaptive_max_pool{x.ndim - 2}d')(x, op.output_shape)"
    selects = "first"
    keeps_axes = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape(self.infer_pooled((x,))),)

    def reference(self, x: Array) -> Array:
        return _take(x, self.positions(x))

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (AdaptiveMaxPoolGrad(self.output_shape)(at.inputs[0], at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(shape), (Arg(x, distinct=True),), SAMPLED) for shape, x, _ in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls((2,)), (Arg((1, 1, 4, 4)),), ShapeError, "2 spatial axes"),
            BadSample(lambda: cls((0,)), (Arg((1, 1, 4)),), ShapeError, "output_shape [0]"),
            BadSample(lambda: cls((2,)), (Arg((1, 1, 0)),), ShapeError, "axis is empty"),
        )


@op
class AdaptiveMaxPoolGrad(AdaptiveMaxWindow, ScatterToMaxima):
    """Gradient of `AdaptiveMaxPool`: dy goes to the first maximum of its window."""

    name = "adaptive_max_pool_grad"

    def adjoint(self) -> Op:
        return AdaptiveMaxPoolGather(self.output_shape)

    def reference(self, x: Array, dy: Array) -> Array:
        return _put(dy, self.positions(x), x.shape[2:])

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(shape), (Arg(x, distinct=True), Arg(y))) for shape, x, y in _CASES)


@op
class AdaptiveMaxPoolGather(AdaptiveMaxWindow, GatherAtMaxima):
    """The values where x has the maximum of each adaptive window."""

    name = "adaptive_max_pool_gather"

    def adjoint(self) -> Op:
        return AdaptiveMaxPoolGrad(self.output_shape)

    def reference(self, x: Array, values: Array) -> Array:
        return _take(values, self.positions(x))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(shape), (Arg(x, distinct=True), Arg(x))) for shape, x, _ in _CASES)


@op
class AdaptiveAvgPool(AdaptiveWindow):
    """Average of each of `output_shape` windows over x [N,C,*S]."""

    name = "adaptive_avg_pool"
    torch = "getattr(F, f'adaptive_avg_pool{x.ndim - 2}d')(x, op.output_shape)"
    keeps_axes = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape(self.infer_pooled((x,))),)

    def reference(self, x: Array) -> Array:
        total = widen_array(x)
        # Windows are listed one by one: first, whether there is room for the result.
        allocate(self, (*x.shape[:2], *self.output_shape), as_dtype(x.dtype))
        for axis, (n, m) in enumerate(zip(x.shape[2:], self.output_shape, strict=True), 2):
            total = _window_sums(total, axis, _windows(n, m))
        average: Array = total / _areas(x.shape[2:], self.output_shape).astype(total.dtype)
        return average.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        spatial = at.inputs[0].type.shape[2:]
        return (AdaptiveAvgPoolGrad(self.output_shape, spatial)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(shape), (Arg(x),)) for shape, x, _ in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls((2,)), (Arg((1, 1, 4, 4)),), ShapeError, "2 spatial axes"),)


@op
class AdaptiveAvgPoolGrad(SpreadAverages, AdaptiveWindow):
    """Adjoint of `AdaptiveAvgPool`: dy [N,C,*output_shape] spread over [N,C,*spatial]."""

    name = "adaptive_avg_pool_grad"
    keeps_axes = True

    def infer(self, dy: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((dy,))
        self.check_ndim((dy,), 0, 3, 4, 5)
        extents = self.extents(self.spatial, self.saw((dy,)))
        self.check_shape(0, (*dy.shape[:2], *extents), (dy,))
        return (dy.with_shape((*dy.shape[:2], *self.spatial)),)

    def reference(self, dy: Array) -> Array:
        spatial = tuple(int(n) for n in self.spatial)
        total = widen_array(dy)
        total = total / _areas(spatial, self.output_shape).astype(total.dtype)
        for axis, (n, m) in enumerate(zip(spatial, self.output_shape, strict=True), 2):
            moves = [(window, slice(i, i + 1)) for i, window in enumerate(_windows(n, m))]
            total = add_slices(total, axis, n, moves)
        return total.astype(dy.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (AdaptiveAvgPool(self.output_shape)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(shape, x[2:]), (Arg(y),)) for shape, x, y in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                lambda: cls((2,), (4,)), (Arg((1, 1, 4)),), ShapeError, "must be [1,1,2], not"
            ),
        )


def _take(values: Array, positions: Array) -> Array:
    """Cells of values [N,C,*S] at flat spatial positions [N,C,*P]."""
    n, channels = values.shape[:2]
    flat = values.reshape(n, channels, math.prod(values.shape[2:]))
    where = positions.reshape(n, channels, math.prod(positions.shape[2:]))
    found: Array = np.take_along_axis(flat, where, axis=2)
    return found.reshape(positions.shape)


def _put(dy: Array, positions: Array, spatial: tuple[int, ...]) -> Array:
    """The adjoint of `_take`: dy [N,C,*P] summed into zeros [N,C,*spatial]."""
    planes, cells = math.prod(dy.shape[:2]), math.prod(spatial)
    where = positions.reshape(planes, math.prod(positions.shape[2:]))
    target = where + np.arange(planes)[:, None] * cells
    total = np.bincount(target.ravel(), weights=dy.ravel(), minlength=planes * cells)
    return total.astype(dy.dtype).reshape(*dy.shape[:2], *spatial)


def _windows(n: int, m: int) -> list[slice]:
    return [slice(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]


def _window_sums(x: Array, axis: int, windows: list[slice]) -> Array:
    lead = (slice(None),) * axis
    return np.stack([x[(*lead, window)].sum(axis=axis) for window in windows], axis=axis)


def _areas(spatial: tuple[int, ...], output_shape: tuple[int, ...]) -> Array:
    """Number of cells of every window."""
    areas = np.ones((), np.int64)
    for n, m in zip(spatial, output_shape, strict=True):
        areas = areas[..., None] * np.array([w.stop - w.start for w in _windows(n, m)])
    return areas
