"""Register tiles: the micro-kernel that every contraction is made of.

c[r, j] = sum over k of a[r, k] * b[k, j] for a few rows and a few vectors, with every sum in a
register. What it stays below is the number of registers: sums, one row of b, one element of a.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from treadle.backends.codegen.kernel.builder import Builder, builder_of
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, minimum, select
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType

Form = Literal["row", "column", "table", "picked"]
"""The contiguous elements of a: the terms of a row ("row"), or the rows of a term ("column"); or
nothing: tables hold an offset for each row and one for each term, to be added up ("table").
Then another table may hold offsets of the terms in b, too ("picked")."""

_AHEAD = 4
"""Terms ahead of which rows of b are asked for, where little is computed with them."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Sums of one micro-kernel: `rows` by `vectors` of `lanes` elements.

    `small` rows are what the last rows of a block are cut to. `dtype` is the type of the sums and,
    in the registers, of both operands. With several `terms`, their elements are words (see
    `words.py`).
    """

    dtype: DType
    rows: int
    small: int
    vectors: int
    lanes: int
    terms: int = 1

    @property
    def width(self) -> int:
        """Columns of a tile, which is also the width of a packed panel."""
        return self.vectors * self.lanes

    def cut(self, rows: int) -> tuple[int, int]:
        """Return how many tiles of `rows`, and then of `small` rows, cover this many rows."""
        full, rest = divmod(rows, self.rows)
        if rest and full and self.rows + rest <= 2 * self.small:
            full, rest = full - 1, rest + self.rows
        return full, -(-rest // self.small)


def full_tiles(tile: Tile, rows: Value) -> Value:
    """Return the number of full tiles that begin so many rows; see `Tile.cut`."""
    full, rest = rows // tile.rows, rows % tile.rows
    spare = 2 * tile.small - tile.rows
    if spare <= 0:
        return full
    borrow = (rest > 0) & (rest <= spare)
    borrow = borrow & (full > 0)
    return select(borrow, full - 1, full)


def choose_tile(target: Target, dtype: DType, rows: int, columns: int) -> Tile:
    """The tile for a result of this shape: no spills, little waste at the edges.

    6 x 2 sums, two vectors of b and one broadcast element of a take 15 of 16 registers, 8 x 3 take
    28 of 32. One or two rows have as many sums, for additions in a row wait for one another; one
    vector of columns has 8, since more rows than that need more addresses than there are registers.
    Few columns take half of a vector of 64 bytes: processors that add up two halves of it in turn,
    as Zen 4 does, save one, and others lose nothing.
    """
    lanes = target.lanes(dtype)
    if target.vector_bytes == 64 and columns <= lanes // 2:
        lanes //= 2
    if rows <= 2:
        return Tile(dtype, rows, rows, min(8 // rows, -(-columns // lanes)), lanes)
    if columns <= lanes and rows > 8:
        return Tile(dtype, 8, 4, 1, lanes)
    if target.registers < 32:
        return Tile(dtype, 6, 4, 2, lanes)
    wide, narrow = (-(-columns // (v * lanes)) * v for v in (3, 2))
    return Tile(dtype, 8, 4, 3 if wide <= narrow else 2, lanes)


class _Operands:
    """Parameters of both operands, and where the elements of a form lie."""

    def __init__(self, e: Builder, tile: Tile, form: Form) -> None:
        self.form, self.tabled = form, form in ("table", "picked")
        self.a = e.pointer(tile.dtype, "a")
        if self.tabled:
            self.row_table = e.pointer(dt.int32, "row_table")
            self.term_table = e.pointer(dt.int32, "term_table")
        else:
            self.a_step = e.size("a_step")
        self.b = e.pointer(tile.dtype, "b")
        if form == "picked":
            self.b_table = e.pointer(dt.int32, "b_table")
        else:
            self.b_step = e.size("b_step")

    def starts(self, rows: list[Value]) -> list[Pointer]:
        """Return the starts of rows of a."""
        if self.form == "row":
            return [self.a + row * self.a_step for row in rows]
        return [_at(self.a, self.row_table, row) if self.tabled else self.a for row in rows]

    def elements(
        self, k: Value, column: Pointer, starts: list[Pointer], rows: list[Value]
    ) -> Iterator[Value]:
        """An element of every row of a, loaded one by one; `column` is that of the term."""
        if self.form == "column":
            yield from (column[row] for row in rows)
            return
        place = self.term_table[k].cast(dt.int64) if self.tabled else k
        yield from (start[place] for start in starts)

    def panel(self, k: Value, panel: Pointer) -> Pointer:
        """A row of b; `panel` follows the one before."""
        return _at(self.b, self.b_table, k) if self.form == "picked" else panel

    def advance(self, places: list[Pointer]) -> None:
        """Move the column of a and the row of b to those of the next term."""
        if self.form == "column":
            places[0] = places[0] + self.a_step
        if self.form != "picked":
            places[1] = places[1] + self.b_step


@lru_cache(maxsize=256)
def tile_function(tile: Tile, form: Form, *, small: bool, accumulate: bool) -> KernelRoutine:
    """The micro-kernel as a function of (a, a_step, b, b_step, terms, c, c_step[, count][, add]).

    Form "row": `a_step` is the distance of rows of a, whose terms are contiguous; form "column":
    that of its terms; forms with tables have in its place those of rows and of terms, and "picked"
    has that of b in place of `b_step`. With `small`, rows from `count` on repeat the last one, so
    nothing outside is read or written. With `accumulate`, the sums are added to c where `add` is
    not 0.
    """
    e, rows = Builder(), tile.small if small else tile.rows
    given = _Operands(e, tile, form)
    terms, c, c_step = e.size("terms"), e.pointer(tile.dtype, "c"), e.size("c_step")
    last = e.size("count") - 1 if small else None
    lines = [e.index(r) if last is None or r == 0 else minimum(last, r) for r in range(rows)]
    starts = given.starts(lines)
    places = [given.a, given.b]
    sums = [[e.constant(0, tile.dtype, tile.lanes)] * tile.vectors for _ in range(rows)]
    with e.loop(0, terms, carrying=(places, *sums)) as k:
        panel = given.panel(k, places[1])
        if tile.rows <= 2 and form != "picked":
            _fetch(tile, panel, given.b_step)
        row = [panel.load(v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
        elements = given.elements(k, places[0], starts, lines)
        for x, line in zip(elements, sums, strict=True):
            x = x.splat(tile.lanes)
            line[:] = [multiply_add(x, y, total) for y, total in zip(row, line, strict=True)]
        given.advance(places)
    targets = [c + line * c_step for line in lines]
    if accumulate:
        add_what_is_there(tile, targets, sums, e.size("add"))
    for target, line in zip(targets, sums, strict=True):
        for v, value in enumerate(line):
            target[v * tile.lanes] = value
    size = f"{rows}x{tile.width}{'_small' if small else ''}{'_add' if accumulate else ''}"
    return e.function(f"tile_{form}_{size}_{tile.dtype.name}")


def multiply_add(x: Value, y: Value, total: Value) -> Value:
    """total + x * y."""
    return total + x * y if total.dtype.is_integer else fma(x, y, total)


def _at(pointer: Pointer, table: Pointer, index: Value) -> Pointer:
    """The pointer moved by an entry of a table."""
    return pointer + table[index].cast(dt.int64)


def _fetch(tile: Tile, panel: Pointer, step: Value) -> None:
    """Ask for a later row of b: with few rows of a it comes from memory, from page after page."""
    later = step * _AHEAD
    for first in range(0, tile.width, 64 // tile.dtype.itemsize):
        panel.prefetch(later + first)


def add_what_is_there(
    tile: Tile, targets: list[Pointer], sums: list[list[Value]], add: Value
) -> None:
    """Add what the targets hold to the sums, unless `add` is 0."""
    with builder_of(add).when(add != 0, changing=(*sums,)):
        # All loads come before all stores: rows of a small tile may be the same.
        old = [
            [target.load(v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
            for target in targets
        ]
        for line, there in zip(sums, old, strict=True):
            line[:] = map(operator.add, line, there)
