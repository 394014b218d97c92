"""Images sampled at given coordinates, and the adjoint, which adds up plane by plane."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.rows import RowBuilder, RowParameters, over_rows
from treadle.backends.codegen.irregular.scatter import is_half
from treadle.backends.codegen.kernel.language import Pointer, Value, floor, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.remap import Remap, RemapGrad, Sampling

_FAR = 2.0**31
"""Coordinates are limited to this range, as in the reference."""


class _Rule(NamedTuple):
    """The facts of an op on which a kernel depends."""

    interpolation: str
    border: str
    derivative: tuple[int, int]


class _Corner(NamedTuple):
    """A cell beside a place: where it is, its weight, whether it is inside."""

    cell: Value
    weight: Value
    inside: Value


def _rule(op: Sampling) -> _Rule:
    return _Rule(op.interpolation, op.border, op.derivative)


@lowers(Remap)
def lower_remap(
    op: Remap, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A line of places at a time, in all channels."""
    x, places = types
    n, channels, height, width = x.shape
    rows, columns = places.shape[1:3]
    kernel = _sample_kernel(_rule(op), op.scalar, x.dtype)
    sizes = _Sizes[Ref, Dim](channels, height, width, rows, columns)
    given = _Sampled(Ref("output", 0), Ref("input", 0), Ref("input", 1), sizes)
    cost = estimate(columns) * (15 + 6 * estimate(channels))
    return Lowered((over_rows(kernel, given, n * rows, cost),))


@lowers(RemapGrad)
def lower_remap_grad(
    op: RemapGrad, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A plane at a time, place after place."""
    dy = types[1]
    n, channels, rows, columns = dy.shape
    height, width = op.spatial
    count, half, out = n * channels * height * width, is_half(dy.dtype), Ref("output", 0)
    sums = Ref("workspace", 0) if half else out
    kernel = _spread_kernel(_rule(op), dy.dtype)
    sizes = _Sizes[Ref, Dim](channels, height, width, rows, columns)
    given = _Spread(sums, Ref("input", 1), Ref("input", 0), sizes)
    cost = estimate(rows) * estimate(columns) * 25.0
    launches: tuple[Launch, ...] = (over_rows(kernel, given, n * channels, cost),)
    if half:
        launches += (convert(out, sums, dy.dtype, dt.float32, count, target),)
    return Lowered(launches, (4 * count,) if half else ())


def _corners(
    rule: _Rule, places: Pointer, number: Value, extents: tuple[Value, Value]
) -> list[_Corner]:
    """The cells that the sample at place `number` is made of, row by row."""
    height, width = extents
    x, y = (load_value(places, number * 2 + i) for i in (0, 1))
    across = list(_neighbors(rule, x, rule.derivative[0], width))
    found = []
    for row in _neighbors(rule, y, rule.derivative[1], height):
        for column in across:
            cell = row.cell * width + column.cell
            weight = row.weight * column.weight
            found.append(_Corner(cell, weight, row.inside & column.inside))
    return found


def _neighbors(rule: _Rule, place: Value, order: int, n: Value) -> Iterator[_Corner]:
    """The cells next to a place on an axis of n cells."""
    nearest = rule.interpolation == "nearest"
    base = floor(place + 0.5 if nearest else place)
    part, one = place - base, place.constant(1.0)
    if nearest:
        weights = [place.constant(float(1 - order))]
    else:
        weights = [-one, one] if order else [one - part, part]
    known = minimum(maximum(select(base != base, 0.0, base), -_FAR), _FAR)
    first = known.cast(dt.int64)
    for i, weight in enumerate(weights):
        cell = first + i
        inside = (cell >= 0) & (cell < n)
        yield _Corner(_in_image(cell, rule.border, n), weight, inside)


def _in_image(cell: Value, border: str, n: Value) -> Value:
    """The image cell that a border rule puts at a position outside."""
    if border == "wrap":
        return _modulo(cell, n)
    if border in ("reflect", "reflect_101"):
        # A period of 0 cells, for an image of one, becomes 1: all is cell 0 then.
        skipped = 2 if border == "reflect_101" else 0
        period = maximum(n * 2 - skipped, 1)
        turned = n * 2 - (1 if skipped == 0 else 2) - _modulo(cell, period)
        cell = minimum(_modulo(cell, period), turned)
    return minimum(maximum(cell, 0), n - 1)


def _modulo(x: Value, n: Value) -> Value:
    """x modulo n, from 0 to n - 1."""
    rest = x % n
    return select(rest < 0, rest + n, rest)


class _Sizes(Record[P, S]):
    channels: S
    height: S
    width: S
    rows_: S
    columns: S


class _Sampled(RowParameters[P, S]):
    places: P
    sizes: _Sizes[P, S]


class _Spread(Record[P, S]):
    target: P
    dy: P
    places: P
    sizes: _Sizes[P, S]


@cache
def _sample_kernel(rule: _Rule, scalar: float, dtype: DType) -> RecordedKernel:
    """Return the kernel; each row of the launch is a line of places."""
    e = RowBuilder()
    p = e.record(_Sampled[Pointer, Value], target=dtype, x=dtype, places=dtype, sizes=_Sizes)
    height, width, lines, columns = p.sizes.height, p.sizes.width, p.sizes.rows_, p.sizes.columns
    plane, grid = height * width, lines * columns
    fill = e.constant(scalar, compute_type(dtype))

    with e.rows(lines, lines) as (row, image, at):
        source = p.x + image * p.sizes.channels * plane
        begin = image * p.sizes.channels * grid + at * columns

        with e.loop(columns) as j:
            number = row * columns + j
            corners = _corners(rule, p.places, number, (height, width))

            with e.loop(p.sizes.channels) as c:
                total = e.constant(0.0, compute_type(dtype))
                for corner in corners:
                    found = load_value(source, c * plane + corner.cell)
                    if rule.border == "constant":
                        found = select(corner.inside, found, fill)
                    total = total + found * corner.weight
                place = begin + c * grid + j
                store_value(p.target, place, total)

    return RecordedKernel(e.kernel(f"remap_{dtype.name}"), p)


@cache
def _spread_kernel(rule: _Rule, dtype: DType) -> RecordedKernel:
    """Return the kernel; each row of the launch is a plane."""
    wide, kind = compute_type(dtype), _Spread[Pointer, Value]
    e = RowBuilder()
    p = e.record(kind, target=wide, dy=dtype, places=dtype, sizes=_Sizes)
    height, width = p.sizes.height, p.sizes.width
    plane, grid = height * width, p.sizes.rows_ * p.sizes.columns

    with e.loop(e.first, e.stop) as i:
        to, source = p.target + i * plane, p.dy + i * grid
        begin = (i // p.sizes.channels) * grid
        to.zero(plane)

        with e.loop(grid) as j:
            value = load_value(source, j)
            for corner in _corners(rule, p.places, begin + j, (height, width)):
                part = value * corner.weight
                if rule.border == "constant":
                    with e.when(corner.inside):
                        to[corner.cell] += part
                else:
                    to[corner.cell] += part
    return RecordedKernel(e.kernel(f"remap_grad_{dtype.name}"), p)
