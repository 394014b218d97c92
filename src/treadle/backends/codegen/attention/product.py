"""The one inner product of attention: a register tile over dense scratch, as a function.

All strides are constants, so that operands are read at constant displacements from few registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.codegen.attention.operands import UNROLL, AttentionProblem
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, fma


@dataclass(frozen=True, slots=True)
class BlockProduct:
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


def product(p: AttentionProblem, name: str, form: BlockProduct) -> KernelRoutine:
    """The function (a, b, c[, depth])."""
    e = Builder()
    a, b, c = (e.pointer(p.compute, n) for n in "abc")
    whole = e.size("depth") if form.depth is None else form.depth // UNROLL * UNROLL
    places = [
        (r, r * form.target + half)
        for r in range(p.tile_rows)
        for half in range(0, p.tile_columns, p.lanes)
    ]
    zero = e.constant(0.0, p.compute, p.lanes)
    totals = [c.load(place, p.lanes, aligned=True) if form.add else zero for _, place in places]

    def turn(k: Value | int, steps: int) -> None:
        rows, columns = a + k * form.step, b + k * form.pitch
        for i in range(steps):
            _step(p, form, (rows, columns), i, totals)

    with e.loop(0, whole, UNROLL, carrying=totals) as k:
        turn(k, UNROLL)
    if form.depth is not None and form.depth % UNROLL:
        turn(form.depth // UNROLL * UNROLL, form.depth % UNROLL)
    for (_, place), total in zip(places, totals, strict=True):
        c.store(place, total, aligned=True)
    return e.function(name)


def _step(
    p: AttentionProblem,
    form: BlockProduct,
    places: tuple[Pointer, Pointer],
    i: int,
    totals: list[Value],
) -> None:
    """One step of the reduction: an outer product added to the tile."""
    rows, columns = places
    vectors = [
        columns.load(i * form.pitch + half, p.lanes, aligned=True)
        for half in range(0, p.tile_columns, p.lanes)
    ]
    for r in range(p.tile_rows):
        x = rows[r * form.row + i * form.step].splat(p.lanes)
        mine = slice(r * len(vectors), (r + 1) * len(vectors))
        totals[mine] = [fma(x, y, total) for y, total in zip(vectors, totals[mine], strict=True)]
