"""Images sampled at given coordinates, and the adjoint, which adds up plane by plane."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

from treadle.backends.codegen.irregular.copying import convert
from treadle.backends.codegen.irregular.rows import over_rows, row_kernel, walk
from treadle.backends.codegen.irregular.scatter import is_half
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.lowering import lowers
from treadle.backends.codegen.scalars.code import load_value, store_value
from treadle.backends.codegen.target import Target
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.ops.precision import compute_type
from treadle.ops.remap import Remap, RemapGrad, Sampling

_FAR = 2.0**31
"""Coordinates are limited to this range, as in the reference."""


class _Rule(NamedTuple):
    """What of an op a kernel depends on."""

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
    n, channels, height, width = (int(d) for d in x.shape)
    rows, columns = (int(d) for d in places.shape[1:3])
    kernel = _sample_kernel(_rule(op), op.scalar, x.dtype)
    arguments = (Ref("output", 0), Ref("input", 0), Ref("input", 1))
    sizes = channels, height, width, rows, columns
    cost = columns * (15 + 6 * channels)
    return Lowered((over_rows(kernel, (*arguments, *sizes), n * rows, cost),))


@lowers(RemapGrad)
def lower_remap_grad(
    op: RemapGrad, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered:
    """A plane at a time, place after place."""
    dy = types[1]
    n, channels, rows, columns = (int(d) for d in dy.shape)
    height, width = (int(d) for d in op.spatial)
    count, half, out = n * channels * height * width, is_half(dy.dtype), Ref("output", 0)
    sums = Ref("workspace", 0) if half else out
    kernel = _spread_kernel(_rule(op), dy.dtype)
    arguments = (sums, Ref("input", 1), Ref("input", 0))
    sizes = channels, height, width, rows, columns
    cost = rows * columns * 25.0
    launches: tuple[Launch, ...] = (over_rows(kernel, (*arguments, *sizes), n * channels, cost),)
    if half:
        launches += (convert(out, sums, dy.dtype, dt.float32, count, target),)
    return Lowered(launches, (4 * count,) if half else ())


def _corners(
    b: Builder, rule: _Rule, places: Value, number: Value, extents: tuple[Value, Value]
) -> list[_Corner]:
    """The cells that the sample at place `number` is made of, row by row."""
    height, width = extents
    x, y = (load_value(places, b.add(b.mul(number, 2), i)) for i in (0, 1))
    across = list(_neighbors(b, rule, x, rule.derivative[0], width))
    found = []
    for row in _neighbors(b, rule, y, rule.derivative[1], height):
        for column in across:
            cell = b.add(b.mul(row.cell, width), column.cell)
            weight = b.mul(row.weight, column.weight)
            found.append(_Corner(cell, weight, b.bitwise("and", row.inside, column.inside)))
    return found


def _neighbors(b: Builder, rule: _Rule, place: Value, order: int, n: Value) -> Iterator[_Corner]:
    """The cells next to a place on an axis of n cells."""
    nearest = rule.interpolation == "nearest"
    base = b.unary("floor", b.add(place, 0.5) if nearest else place)
    part, one = b.sub(place, base), b.constant(1.0, place.dtype)
    if nearest:
        weights = [b.constant(float(1 - order), place.dtype)]
    else:
        weights = [b.neg(one), one] if order else [b.sub(one, part), part]
    known = b.min(b.max(b.select(b.compare("ne", base, base), 0.0, base), -_FAR), _FAR)
    first = b.cast(known, dt.int64)
    for i, weight in enumerate(weights):
        cell = b.add(first, i)
        inside = b.bitwise("and", b.compare("le", 0, cell), b.compare("lt", cell, n))
        yield _Corner(_in_image(b, cell, rule.border, n), weight, inside)


def _in_image(b: Builder, cell: Value, border: str, n: Value) -> Value:
    """The image cell that a border rule puts at a position outside."""
    if border == "wrap":
        return _modulo(b, cell, n)
    if border in ("reflect", "reflect_101"):
        # A period of 0 cells, for an image of one, becomes 1: all is cell 0 then.
        skipped = 2 if border == "reflect_101" else 0
        period = b.max(b.sub(b.mul(n, 2), skipped), 1)
        turned = b.sub(b.sub(b.mul(n, 2), 1 if skipped == 0 else 2), _modulo(b, cell, period))
        cell = b.min(_modulo(b, cell, period), turned)
    return b.min(b.max(cell, 0), b.sub(n, 1))


def _modulo(b: Builder, x: Value, n: Value) -> Value:
    """x modulo n, from 0 to n - 1."""
    rest = b.rem(x, n)
    return b.select(b.compare("lt", rest, 0), b.add(rest, n), rest)


_SIZES = ("channels", "height", "width", "rows_", "columns")


@cache
def _sample_kernel(rule: _Rule, scalar: float, dtype: DType) -> Kernel:
    """Each row of the launch is a line of places."""
    target, x, places = pointer(dtype, "target"), pointer(dtype, "x"), pointer(dtype, "places")
    channels, height, width, lines, columns = sizes = [size(n) for n in _SIZES]

    def body(b: Builder, first: Value, stop: Value) -> None:
        plane, grid = b.mul(height, width), b.mul(lines, columns)
        fill = b.constant(scalar, compute_type(dtype))

        def line(row: Value, image: Value, at: Value) -> None:
            source = b.offset(x, b.mul(b.mul(image, channels), plane))
            begin = b.add(b.mul(b.mul(image, channels), grid), b.mul(at, columns))

            def one(j: Value) -> None:
                number = b.add(b.mul(row, columns), j)
                corners = _corners(b, rule, places, number, (height, width))

                def channel(c: Value) -> None:
                    total = b.constant(0.0, compute_type(dtype))
                    for corner in corners:
                        found = load_value(source, b.add(b.mul(c, plane), corner.cell))
                        if rule.border == "constant":
                            found = b.select(corner.inside, found, fill)
                        total = b.add(total, b.mul(found, corner.weight))
                    place = b.add(b.add(begin, b.mul(c, grid)), j)
                    store_value(target, place, total)

                b.loop(0, channels, 1, channel)

            b.loop(0, columns, 1, one)

        walk(b, first, stop, (lines, lines), line)

    return row_kernel(f"remap_{dtype.name}", (target, x, places, *sizes), body)


@cache
def _spread_kernel(rule: _Rule, dtype: DType) -> Kernel:
    """Each row of the launch is a plane."""
    wide = compute_type(dtype)
    target, dy, places = pointer(wide, "target"), pointer(dtype, "dy"), pointer(dtype, "places")
    channels, height, width, lines, columns = sizes = [size(n) for n in _SIZES]

    def body(b: Builder, first: Value, stop: Value) -> None:
        plane, grid = b.mul(height, width), b.mul(lines, columns)

        def spread(i: Value) -> None:
            to, source = b.offset(target, b.mul(i, plane)), b.offset(dy, b.mul(i, grid))
            begin = b.mul(b.div(i, channels), grid)
            b.zero(to, plane)

            def one(j: Value) -> None:
                value = load_value(source, j)
                for corner in _corners(b, rule, places, b.add(begin, j), (height, width)):
                    part = b.mul(value, corner.weight)
                    add = partial(_add, b, to, corner.cell, part)
                    if rule.border == "constant":
                        b.branch(corner.inside, add)
                    else:
                        add()

            b.loop(0, grid, 1, one)

        b.loop(first, stop, 1, spread)

    return row_kernel(f"remap_grad_{dtype.name}", (target, dy, places, *sizes), body)


def _add(b: Builder, to: Value, place: Value, value: Value) -> None:
    b.store(to, place, b.add(b.load(to, place), value))
