"""Register tiles: the micro-kernel that every contraction is made of.

c[r, j] = sum over k of a[r, k] * b[k, j] for a few rows and a few vectors, with every sum in a
register. What it stays below is the number of registers: sums, one row of b, one element of a.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.backends.codegen.target import Target
from treadle.base.dtype import DType

Form = Literal["row", "column"]
"""What is contiguous in a: the terms of a row ("row"), or the rows of a term ("column")."""

_AHEAD = 4
"""Terms ahead of which rows of b are asked for, where little is computed with them."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums of one micro-kernel: `rows` by `vectors` of `lanes` elements.

    `small` rows are what the last rows of a block are cut to. `dtype` is the type of the sums and,
    in the registers, of both operands.
    """

    dtype: DType
    rows: int
    small: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Columns of a tile, which is also the width of a packed panel."""
        return self.vectors * self.lanes

    def cut(self, rows: int) -> tuple[int, int]:
        """How many tiles of `rows`, and then of `small` rows, cover this many rows."""
        full, rest = divmod(rows, self.rows)
        if rest and full and self.rows + rest <= 2 * self.small:
            full, rest = full - 1, rest + self.rows
        return full, -(-rest // self.small)


def choose_tile(target: Target, dtype: DType, rows: int, columns: int) -> Tile:
    """The tile for a result of this shape: no spills, little waste at the edges.

    6 x 2 sums, two vectors of b and one broadcast element of a take 15 of 16 registers, 8 x 3 take
    28 of 32. One or two rows have as many sums, for additions in a row wait for one another.
    """
    lanes = target.lanes(dtype)
    if rows <= 2:
        return Tile(dtype, rows, rows, min(8 // rows, -(-columns // lanes)), lanes)
    if target.registers < 32:
        return Tile(dtype, 6, 4, 2, lanes)
    wide, narrow = (-(-columns // (v * lanes)) * v for v in (3, 2))
    return Tile(dtype, 8, 4, 3 if wide <= narrow else 2, lanes)


@lru_cache(maxsize=256)
def tile_function(tile: Tile, form: Form, *, small: bool, accumulate: bool) -> Function:
    """The micro-kernel as a function of (a, a_step, b, b_step, terms, c, c_step[, count][, add]).

    Form "row": `a_step` is the distance of rows of a, whose terms are contiguous; form "column":
    that of its terms. With `small`, rows from `count` on repeat the last one, so nothing outside is
    read or written. With `accumulate`, the sums are added to c where `add` is not 0.
    """
    rows = tile.small if small else tile.rows
    pointers = [ir.pointer(tile.dtype, name) for name in ("a", "b", "c")]
    a, b, c = pointers
    a_step, b_step, terms, c_step = (ir.size(n) for n in ("a_step", "b_step", "terms", "c_step"))
    count, add = ir.size("count"), ir.size("add")
    parameters = [a, a_step, b, b_step, terms, c, c_step]
    parameters += [count] if small else []
    parameters += [add] if accumulate else []

    def write(e: Builder) -> None:
        last = e.sub(count, 1) if small else None
        places = [e.index(r) if last is None or r == 0 else e.min(last, r) for r in range(rows)]
        starts = [a] * rows
        if form == "row":
            starts = [e.offset(a, e.mul(place, a_step)) for place in places]
        zero = e.constant(0, tile.dtype, tile.lanes)

        def term(k: Value, column: Value, panel: Value, *sums: Value) -> tuple[Value, ...]:
            if tile.rows <= 2:
                _fetch(e, tile, panel, b_step)
            row = [e.load(panel, v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
            made: list[Value] = []
            for r in range(rows):
                where = (starts[r], k) if form == "row" else (column, places[r])
                x = e.splat(e.load(*where), tile.lanes)
                for v in range(tile.vectors):
                    made.append(e.fma(x, row[v], sums[r * tile.vectors + v]))
            following = column if form == "row" else e.offset(column, a_step)
            return (following, e.offset(panel, b_step), *made)

        sums = e.loop(0, terms, 1, term, (a, b, *[zero] * (rows * tile.vectors)))[2:]
        targets = [e.offset(c, e.mul(place, c_step)) for place in places]
        if accumulate:
            sums = _added(e, tile, targets, sums, add)
        for i, value in enumerate(sums):
            e.store(targets[i // tile.vectors], i % tile.vectors * tile.lanes, value)

    size = f"{rows}x{tile.width}{'_small' if small else ''}{'_add' if accumulate else ''}"
    return builder.function(f"tile_{form}_{size}_{tile.dtype.name}", parameters, write)


def _fetch(e: Builder, tile: Tile, panel: Value, step: Value) -> None:
    """Ask for a later row of b: with few rows of a it comes from memory, from page after page."""
    later = e.mul(step, _AHEAD)
    for first in range(0, tile.width, 64 // tile.dtype.itemsize):
        e.prefetch(panel, e.add(later, first))


def _added(
    e: Builder, tile: Tile, targets: list[Value], sums: tuple[Value, ...], add: Value
) -> tuple[Value, ...]:
    """The sums plus what the targets hold, unless `add` is 0."""

    def then() -> tuple[Value, ...]:
        # All loads come before all stores: rows of a small tile may be the same.
        old = [
            e.load(targets[i // tile.vectors], i % tile.vectors * tile.lanes, tile.lanes)
            for i in range(len(sums))
        ]
        return tuple(e.add(x, y) for x, y in zip(sums, old, strict=True))

    return e.branch(e.compare("ne", add, 0), then, lambda: sums, sums)
