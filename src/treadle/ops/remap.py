"""Sampling an image at given coordinates, and the adjoint.

A sample is a product of two one-dimensional weights per axis, so its derivatives along the
coordinates are samples with differentiated weights: two ops cover every order.
Affine and perspective warps make the coordinates out of ordinary arithmetic and sample with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.base.guards import require
from treadle.base.shape import Shape, format_shape, require_equal
from treadle.base.symbol import less_equal
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.ops.precision import widen_array

INTERPOLATIONS = ("nearest", "linear")
BORDERS = ("replicate", "reflect", "reflect_101", "wrap", "constant")
_FAR = 2.0**31
"""Coordinates are limited to this range, where their conversion to integers is safe."""


@family
class Sampling(Op):
    """Sampling of an image at coordinates that lie between or outside its cells.

    `border` tells what stands outside of cells abcd: "replicate" aaa|abcd|ddd, "reflect"
    cba|abcd|dcb, "reflect_101" dcb|abcd|cba, "wrap" bcd|abcd|abc, or "constant". `derivative`
    is the order, 0 or 1, of differentiation along (x, y).
    """

    dtypes = dt.FLOATS
    interpolation: str
    border: str
    derivative: tuple[int, int]

    def check_map(self, types: tuple[TensorType, ...], image: Shape) -> None:
        """Raise unless the operands are an image-like and a map [N,OH,OW,2] of one type."""
        self.check_dtype(types)
        self.check_same_dtype(types)
        self.check_ndim(types, 0, 4)
        self.check_ndim(types, 1, 4)
        for what, value, known in (
            ("interpolation", self.interpolation, INTERPOLATIONS),
            ("border", self.border, BORDERS),
        ):
            if value not in known:
                raise self.error(f"{what} {value!r} is unknown", types, f"use one of {known}")
        self._check_extents(types, image)

    def _check_extents(self, types: tuple[TensorType, ...], image: Shape) -> None:
        first, second = types

        def fail() -> ShapeError:
            return self.error(
                f"the map {format_shape(second.shape)} does not fit the image "
                f"{format_shape(image)}",
                types,
                "the map is [N,OH,OW,2] with the same N, and the image is not empty",
            )

        require_equal(first.shape[0], second.shape[0], fail)
        require_equal(second.shape[3], 2, fail)
        for extent in image:
            require(less_equal(1, extent), fail)


@op
class Remap(Sampling):
    """x [N,C,H,W] sampled at map [N,OH,OW,2], pairs (x, y) in pixels: result [N,C,OH,OW].

    Pixel centers have integer coordinates. "nearest" rounds halves up; "linear" weighs the four
    neighbors. `scalar` is the value outside for the border "constant".
    """

    scalar: float

    name = "remap"
    operands = ("x", "map")

    def infer(self, x: TensorType, map: TensorType) -> tuple[TensorType, ...]:
        self.check_map((x, map), x.shape[2:])
        return (x.with_shape((*x.shape[:2], map.shape[1], map.shape[2])),)

    def reference(self, x: Array, map: Array) -> Array:
        n, channels, height, width = x.shape
        flat = widen_array(x).reshape(n, channels, height * width)
        y = np.zeros((n, channels, math.prod(map.shape[1:3])), flat.dtype)
        for cells, weights, inside in _corners(self, map, height, width):
            found = np.take_along_axis(flat, cells[:, None], axis=2)
            if self.border == "constant":
                found = np.where(inside[:, None], found, flat.dtype.type(self.scalar))
            y += found * weights[:, None].astype(flat.dtype)
        return y.reshape(n, channels, *map.shape[1:3]).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, map = at.inputs
        dx = dmap = None
        if at.needs[0]:
            spatial = x.type.shape[2:]
            dx = RemapGrad(self.interpolation, self.border, self.derivative, spatial)(map, at.dy)
        if at.needs[1]:
            dmap = _map_gradient(self, self.scalar, x, map, at.dy)
        return dx, dmap

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(i, b, d, 0.5), (Arg(x), coordinates)) for i, b, d, x, coordinates in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, map = Arg((2, 1, 3, 3)), Arg((2, 2, 2, 2))

        def make(interpolation: str = "linear", border: str = "wrap") -> Op:
            return cls(interpolation, border, (0, 0), 0.0)

        return (
            BadSample(make, (x, Arg((1, 2, 2, 2))), ShapeError, "does not fit the image [3,3]"),
            BadSample(make, (x, Arg((2, 2, 2, 3))), ShapeError, "does not fit the image [3,3]"),
            BadSample(make, (Arg((2, 1, 0, 3)), map), ShapeError, "does not fit the image [0,3]"),
            BadSample(lambda: make("cubic"), (x, map), ShapeError, "'cubic' is unknown"),
            BadSample(lambda: make(border="none"), (x, map), ShapeError, "'none' is unknown"),
        )


@op
class RemapGrad(Sampling):
    """Adjoint of `Remap` in x: dy [N,C,OH,OW] spread along map [N,OH,OW,2] to [N,C,*spatial]."""

    spatial: Shape

    name = "remap_grad"
    operands = ("map", "dy")

    def infer(self, map: TensorType, dy: TensorType) -> tuple[TensorType, ...]:
        if len(self.spatial) != 2:
            raise self.error("spatial must be (height, width)", (map, dy), "give two extents")
        self.check_map((dy, map), self.spatial)
        for wanted, found in zip(map.shape[1:3], dy.shape[2:], strict=True):
            require_equal(
                wanted,
                found,
                lambda: self.error("dy and map differ in extent", (map, dy), "pass the same grid"),
            )
        return (dy.with_shape((*dy.shape[:2], *self.spatial)),)

    def reference(self, map: Array, dy: Array) -> Array:
        n, channels = dy.shape[:2]
        height, width = (int(s) for s in self.spatial)
        planes = np.arange(n * channels).reshape(n, channels, 1) * (height * width)
        given = widen_array(dy).reshape(n, channels, math.prod(dy.shape[2:]))
        dx = np.zeros(n * channels * height * width)
        for cells, weights, inside in _corners(self, map, height, width):
            parts = given * weights[:, None]
            if self.border == "constant":
                parts = np.where(inside[:, None], parts, 0)
            dx += np.bincount((planes + cells[:, None]).ravel(), parts.ravel(), dx.size)
        return dx.astype(dy.dtype).reshape(n, channels, height, width)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        map, dy = at.inputs
        dmap = ddy = None
        if at.needs[0]:
            # <g, RemapGrad(map, dy)> = <Remap(g, map), dy>, with nothing outside.
            dmap = _map_gradient(self, 0.0, at.dy, map, dy)
        if at.needs[1]:
            ddy = Remap(self.interpolation, self.border, self.derivative, 0.0)(at.dy, map)
        return dmap, ddy

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                cls(i, b, d, x[2:]),
                (coordinates, Arg((*x[:2], *coordinates.shape[1:3]))),
            )
            for i, b, d, x, coordinates in _CASES
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        def make(*spatial: int) -> Op:
            return cls("linear", "wrap", (0, 0), spatial)

        map, dy = Arg((1, 2, 2, 2)), Arg((1, 1, 2, 3))
        return (
            BadSample(lambda: make(3, 3), (map, dy), ShapeError, "dy and map differ"),
            BadSample(lambda: make(3), (map, dy), ShapeError, "must be (height, width)"),
        )


def _map_gradient(how: Sampling, scalar: float, x: V, map: V, dy: V) -> V | None:
    """Cotangent of the map: per axis, dy times the sample of x differentiated along it."""
    total: V | None = None
    for axis in (0, 1):
        if how.interpolation == "nearest" or how.derivative[axis]:
            continue  # The weights are piecewise constant along this axis.
        order = (1, how.derivative[1]) if axis == 0 else (how.derivative[0], 1)
        slope = Remap(how.interpolation, how.border, order, scalar)(x, map)
        along = (dy * slope).sum((1,)).reshape((*map.type.shape[:3], 1))
        unit = map.constant(np.eye(2)[axis], map.type.dtype)
        part = along * unit
        total = part if total is None else total + part
    return total


def _corners(
    how: Sampling, map: Array, height: int, width: int
) -> Iterator[tuple[Array, Array, Array]]:
    """(flat cell, weight, whether the cell is in the image) of each neighbor, all [N,P]."""
    places = widen_array(map).reshape(len(map), math.prod(map.shape[1:3]), 2)
    across = list(_neighbors(places[..., 0], how, how.derivative[0], width))
    for row, row_weight, row_inside in _neighbors(places[..., 1], how, how.derivative[1], height):
        for column, column_weight, column_inside in across:
            cell, weight = row * width + column, row_weight * column_weight
            yield cell, weight, row_inside & column_inside


def _neighbors(
    place: Array, how: Sampling, order: int, n: int
) -> Iterator[tuple[Array, Array, Array]]:
    """(cell, weight, whether inside) of the cells next to each place on an axis of n cells."""
    if how.interpolation == "nearest":
        base = np.floor(place + 0.5)
        weights = [np.full_like(place, 1 - order)]
    else:
        base = np.floor(place)
        part = place - base
        ones = np.ones_like(part)
        weights = [-ones, ones] if order else [1 - part, part]
    first = np.nan_to_num(np.clip(base, -_FAR, _FAR)).astype(np.int64)
    for i, weight in enumerate(weights):
        cell = first + i
        yield _inside(cell, how.border, n), weight, (cell >= 0) & (cell < n)


def _inside(cell: Array, border: str, n: int) -> Array:
    """The image cell that a border rule puts at a position outside."""
    if border == "wrap":
        return cell % n
    if border == "reflect":
        cell = cell % (2 * n)
        cell = np.minimum(cell, 2 * n - 1 - cell)
    elif border == "reflect_101" and n > 1:
        cell = cell % (2 * n - 2)
        cell = np.minimum(cell, 2 * n - 2 - cell)
    return np.clip(cell, 0, n - 1)


_WHOLE = (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
_HALVES = (-1.5, -0.5, 0.5, 1.5, 2.5)
_MAP = Arg((1, 2, 3, 2), low=-2.0, high=3.0, avoid=_WHOLE)
_CASES = (
    ("linear", "replicate", (0, 0), (1, 2, 3, 3), _MAP),
    ("linear", "reflect", (0, 0), (1, 1, 2, 3), _MAP),
    ("linear", "reflect_101", (0, 0), (1, 1, 3, 2), _MAP),
    ("linear", "wrap", (1, 0), (1, 1, 2, 3), _MAP),
    ("linear", "constant", (0, 0), (1, 2, 2, 3), _MAP),
    ("linear", "constant", (1, 1), (1, 1, 2, 2), _MAP),
    ("nearest", "constant", (0, 0), (1, 2, 2, 2), Arg((1, 2, 2, 2), low=-2, high=3, avoid=_HALVES)),
    ("linear", "reflect_101", (0, 0), (1, 1, 1, 1), Arg((1, 1, 1, 2), avoid=_WHOLE)),
    ("linear", "wrap", (0, 0), (0, 1, 2, 2), Arg((0, 2, 2, 2))),
)
"""(interpolation, border, derivative, shape of x, map) for samples."""
