"""The one inner product of attention: a register tile over dense scratch, as a function.

All strides are constants, so that operands are read at constant displacements from few registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.codegen.attention.operands import UNROLL, Problem
from treadle.backends.codegen.kernel.builder import Builder, function
from treadle.backends.codegen.kernel.ir import Function, Value, pointer, size


@dataclass(frozen=True, slots=True)
class Product:
    """c[i, j] (+)= sum over k < depth of a[i * row + k * step] * b[k * pitch + j].

    i counts a tile's rows, j its columns.

    Attributes:
        row, step: strides of a.
        pitch: elements between rows of b.
        target: elements between rows of c.
        depth: k's extent; None for a parameter of the function, a multiple of `UNROLL`.
        add: whether c's elements are added to.
    """

    row: int
    step: int
    pitch: int
    target: int
    depth: int | None = None
    add: bool = False


def product(p: Problem, name: str, form: Product) -> Function:
    """The function (a, b, c[, depth])."""
    a, other, c = (pointer(p.compute, n) for n in "abc")
    depth = size("depth")
    parameters = (a, other, c, depth) if form.depth is None else (a, other, c)

    def write(b: Builder) -> None:
        places = [
            (r, r * form.target + half)
            for r in range(p.tile_rows)
            for half in range(0, p.tile_columns, p.lanes)
        ]
        zero = b.constant(0.0, p.compute, p.lanes)
        totals = tuple(
            b.load(c, place, p.lanes, aligned=True) if form.add else zero for _, place in places
        )

        def turn(k: Value | int, *totals: Value, steps: int) -> tuple[Value, ...]:
            rows = b.offset(a, b.mul(b.index(k), form.step))
            columns = b.offset(other, b.mul(b.index(k), form.pitch))
            for i in range(steps):
                totals = _step(b, p, form, (rows, columns), i, totals)
            return totals

        def several(k: Value, *totals: Value) -> tuple[Value, ...]:
            return turn(k, *totals, steps=UNROLL)

        whole: Value | int = depth if form.depth is None else form.depth // UNROLL * UNROLL
        totals = b.loop(0, whole, UNROLL, several, totals)
        if form.depth is not None and form.depth % UNROLL:
            totals = turn(form.depth // UNROLL * UNROLL, *totals, steps=form.depth % UNROLL)
        for (_, place), total in zip(places, totals, strict=True):
            b.store(c, place, total, aligned=True)

    return function(name, parameters, write)


def _step(
    b: Builder,
    p: Problem,
    form: Product,
    places: tuple[Value, Value],
    i: int,
    totals: tuple[Value, ...],
) -> tuple[Value, ...]:
    """One step of the reduction: an outer product added to the tile."""
    rows, columns = places
    vectors = [
        b.load(columns, i * form.pitch + half, p.lanes, aligned=True)
        for half in range(0, p.tile_columns, p.lanes)
    ]
    added: list[Value] = []
    for r in range(p.tile_rows):
        x = b.splat(b.load(rows, r * form.row + i * form.step), p.lanes)
        mine = totals[r * len(vectors) : (r + 1) * len(vectors)]
        added += [b.fma(x, y, total) for y, total in zip(vectors, mine, strict=True)]
    return tuple(added)
