"""Resizing: separable interpolation between grids, and its adjoint.

Along each axis every target cell is a weighted sum of a few source cells; ONNX's Resize takes the
target extents as an operand, so the mapping is not one to one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.guards import require
from treadle.base.shape import Shape, format_shape
from treadle.base.symbol import less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.precision import widen_array
from treadle.ops.windows import Index

MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "align_corners", "asymmetric")
CUBIC = -0.75
"""The slope parameter of the cubic kernel that OpenCV, PyTorch and MegEngine use."""

AxisTap: TypeAlias = tuple[Array, Array]
"""Source cells and their weights, one of each per target cell."""


@family
class Interpolation(Op):
    """Interpolation of a grid between its cells.

    `mode` is "nearest", "linear" or "cubic" (Keys' kernel with slope -0.75, edges repeated).
    `coordinates` tells where target cell i of m stands on n source cells: "half_pixel" at
    (i + 1/2) n / m - 1/2, "align_corners" at i (n - 1) / (m - 1), "asymmetric" at i n / m.
    "nearest" rounds down for asymmetric coordinates (MegEngine's rule), else to the nearest cell.
    """

    dtypes = dt.FLOATS
    keeps_axes = True
    mode: str
    coordinates: str

    def check_grid(self, x: TensorType, target: Shape) -> None:
        """Raise unless x [N,C,*S] can be interpolated to the extents `target`."""
        self.check_dtype((x,))
        self.check_ndim((x,), 0, 3, 4, 5)
        for what, value, known in (
            ("mode", self.mode, MODES),
            ("coordinates", self.coordinates, COORDINATES),
        ):
            if value not in known:
                raise self.error(f"{what} {value!r} is unknown", (x,), f"use one of {known}")

        def fail() -> ShapeError:
            return self.error(
                f"cannot interpolate extents {format_shape(x.shape[2:])} to {format_shape(target)}",
                (x,),
                "give one positive extent per spatial axis, and no empty input axis",
            )

        if len(target) != x.ndim - 2:
            raise fail()
        for extent in (*x.shape[2:], *target):
            require(less_equal(1, extent), fail)


@op
class Resize(Interpolation):
    """x [N,C,*S] interpolated to [N,C,*sizes], axis by axis."""

    sizes: Shape

    name = "resize"
    torch = (
        "F.interpolate(x, op.sizes, mode={'nearest': 'nearest' if op.coordinates == 'asymmetric' "
        "else 'nearest-exact', 'cubic': 'bicubic', 'linear': {3: 'linear', 4: 'bilinear', "
        "5: 'trilinear'}[x.ndim]}[op.mode], "
        "align_corners=None if op.mode == 'nearest' else op.coordinates == 'align_corners')"
    )

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_grid(x, self.sizes)
        return (x.with_shape((*x.shape[:2], *self.sizes)),)

    def reference(self, x: Array) -> Array:
        y = widen_array(x)
        for axis, size in enumerate(self.sizes, 2):
            taps = interpolation_taps(y.shape[axis], int(size), self.mode, self.coordinates)
            parts = [np.take(y, cells, axis) * _along(weights, axis, y) for cells, weights in taps]
            y = sum(parts[1:], start=parts[0])
        return y.astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        spatial = at.inputs[0].type.shape[2:]
        return (ResizeGrad(self.mode, self.coordinates, spatial)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(m, c, target), (Arg(x),)) for m, c, x, target in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        def make(mode: str = "linear", place: str = "half_pixel") -> Callable[[], Op]:
            return lambda: cls(mode, place, (2, 0))

        return (
            BadSample(make(), (Arg((1, 1, 3, 3)),), ShapeError, "[3,3] to [2,0]"),
            BadSample(make(), (Arg((1, 1, 3)),), ShapeError, "[3] to [2,0]"),
            BadSample(make("area"), (Arg((1, 1, 3, 3)),), ShapeError, "mode 'area' is unknown"),
            BadSample(make(place="left"), (Arg((1, 1, 3, 3)),), ShapeError, "coordinates 'left'"),
        )


@op
class ResizeGrad(Interpolation):
    """Adjoint of `Resize`: dy [N,C,*sizes] spread to [N,C,*spatial]."""

    spatial: Shape

    name = "resize_grad"
    operands = ("dy",)

    def infer(self, dy: TensorType) -> tuple[TensorType, ...]:
        self.check_grid(dy, self.spatial)
        return (dy.with_shape((*dy.shape[:2], *self.spatial)),)

    def reference(self, dy: Array) -> Array:
        dx = widen_array(dy)
        for axis, extent in enumerate(self.spatial, 2):
            n = int(extent)
            total = np.zeros((*dx.shape[:axis], n, *dx.shape[axis + 1 :]), dx.dtype)
            lead: Index = (slice(None),) * axis
            for cells, weights in interpolation_taps(
                n, dx.shape[axis], self.mode, self.coordinates
            ):
                # The cells of a tap never decrease, so equal ones are neighbors.
                targets, starts = np.unique(cells, return_index=True)
                sums = np.add.reduceat(dx * _along(weights, axis, dx), starts, axis)
                total[(*lead, targets)] += sums
            dx = total
        return dx.astype(dy.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        sizes = at.inputs[0].type.shape[2:]
        return (Resize(self.mode, self.coordinates, sizes)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(m, c, x[2:]), (Arg((*x[:2], *target)),)) for m, c, x, target in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                lambda: cls("linear", "half_pixel", (3,)),
                (Arg((1, 1, 3, 3)),),
                ShapeError,
                "[3,3] to [3]",
            ),
        )


_CASES: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("linear", "half_pixel", (1, 2, 3, 4), (5, 2)),
    ("linear", "align_corners", (2, 1, 3, 2), (4, 1)),
    ("linear", "half_pixel", (1, 2, 4), (7,)),
    ("linear", "align_corners", (1, 1, 2, 2, 3), (3, 1, 2)),
    ("nearest", "asymmetric", (1, 2, 3, 4), (5, 2)),
    ("nearest", "half_pixel", (1, 1, 5), (3,)),
    ("cubic", "half_pixel", (1, 1, 3, 5), (6, 3)),
    ("cubic", "align_corners", (1, 1, 2, 3), (3, 4)),
    ("linear", "half_pixel", (1, 1, 1, 1), (1, 1)),
    ("linear", "half_pixel", (0, 1, 2, 2), (3, 3)),
)
"""(mode, coordinates, shape of x, target extents) for samples."""


def _along(weights: Array, axis: int, like: Array) -> Array:
    """Weights as an array that varies along `axis` only, in the type of `like`."""
    shape = tuple(len(weights) if i == axis else 1 for i in range(like.ndim))
    return weights.reshape(shape).astype(like.dtype)


@lru_cache(maxsize=256)
def interpolation_taps(n: int, m: int, mode: str, coordinates: str) -> tuple[AxisTap, ...]:
    """Source cells (never decreasing) and weights of m target cells over n source cells."""
    if mode == "nearest":
        return ((_nearest(n, m, coordinates), np.ones(m)),)
    place = _places(n, m, coordinates)
    if mode == "linear":
        place = np.clip(place, 0, n - 1)
    base = np.floor(place)
    part, cell = place - base, base.astype(np.int64)
    weights = (1 - part, part) if mode == "linear" else _cubic_weights(part)
    first = 0 if mode == "linear" else -1
    return tuple((np.clip(cell + first + i, 0, n - 1), w) for i, w in enumerate(weights))


def _places(n: int, m: int, coordinates: str) -> Array:
    target = np.arange(m, dtype=np.float64)
    if coordinates == "half_pixel":
        return (target + 0.5) * n / m - 0.5
    if coordinates == "align_corners":
        return target * ((n - 1) / (m - 1) if m > 1 else 0.0)
    return target * n / m


def _nearest(n: int, m: int, coordinates: str) -> Array:
    """Nearest cells in integer arithmetic, so that ties do not depend on rounding."""
    target = np.arange(m)
    if coordinates == "half_pixel":
        return (2 * target + 1) * n // (2 * m)
    if coordinates == "asymmetric":
        return target * n // m
    return (2 * target * (n - 1) + m - 1) // (2 * (m - 1)) if m > 1 else target


def _cubic_weights(t: Array) -> tuple[Array, ...]:
    """Keys' kernel at the distances 1 + t, t, 1 - t and 2 - t.

    Source: Keys, Cubic convolution interpolation for digital image processing, IEEE Trans.
    Acoustics, Speech, and Signal Processing 29 (1981).
    """
    a = CUBIC

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((d - 5) * d + 8) * d * a - 4 * a

    return far(1 + t), near(t), near(1 - t), far(2 - t)
