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
from treadle.base import dtype as dt
from treadle.base.dtype import DType

Form = Literal["row", "column", "table", "picked"]
"""What is contiguous in a: the terms of a row ("row"), or the rows of a term ("column"); or
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
        """How many tiles of `rows`, and then of `small` rows, cover this many rows."""
        full, rest = divmod(rows, self.rows)
        if rest and full and self.rows + rest <= 2 * self.small:
            full, rest = full - 1, rest + self.rows
        return full, -(-rest // self.small)


def full_tiles(e: Builder, tile: Tile, rows: Value) -> Value:
    """How many full tiles begin so many rows; see `Tile.cut`."""
    full, rest = e.div(rows, tile.rows), e.rem(rows, tile.rows)
    spare = 2 * tile.small - tile.rows
    if spare <= 0:
        return full
    borrow = e.bitwise("and", e.compare("lt", 0, rest), e.compare("le", rest, spare))
    borrow = e.bitwise("and", borrow, e.compare("lt", 0, full))
    return e.select(borrow, e.sub(full, 1), full)


def choose_tile(target: Target, dtype: DType, rows: int, columns: int) -> Tile:
    """The tile for a result of this shape: no spills, little waste at the edges.

    6 x 2 sums, two vectors of b and one broadcast element of a take 15 of 16 registers, 8 x 3 take
    28 of 32. One or two rows have as many sums, for additions in a row wait for one another; one
    vector of columns has 8, since more rows than that need more addresses than there are registers.
    """
    lanes = target.lanes(dtype)
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

    def __init__(self, tile: Tile, form: Form) -> None:
        self.form, self.tabled = form, form in ("table", "picked")
        self.a, self.b = (ir.pointer(tile.dtype, name) for name in ("a", "b"))
        self.a_step, self.b_step = (ir.size(name) for name in ("a_step", "b_step"))
        names = ("row_table", "term_table", "b_table")
        self.row_table, self.term_table, self.b_table = (ir.pointer(dt.int32, n) for n in names)

    @property
    def parameters(self) -> list[Value]:
        """Those that tell where a and b lie."""
        a = [self.row_table, self.term_table] if self.tabled else [self.a_step]
        return [self.a, *a, self.b, self.b_table if self.form == "picked" else self.b_step]

    def starts(self, e: Builder, rows: list[Value]) -> list[Value]:
        """Where rows of a begin."""
        if self.form == "row":
            return [e.offset(self.a, e.mul(row, self.a_step)) for row in rows]
        return [_at(e, self.a, self.row_table, row) if self.tabled else self.a for row in rows]

    def places(
        self, e: Builder, k: Value, column: Value, starts: list[Value], rows: list[Value]
    ) -> list[tuple[Value, Value]]:
        """Pointer and index of an element of every row of a; `column` is that of the term."""
        if self.form == "column":
            return [(column, row) for row in rows]
        place = e.cast(e.load(self.term_table, k), dt.int64) if self.tabled else k
        return [(start, place) for start in starts]

    def panel(self, e: Builder, k: Value, panel: Value) -> Value:
        """A row of b; `panel` follows the one before."""
        return _at(e, self.b, self.b_table, k) if self.form == "picked" else panel

    def following(self, e: Builder, column: Value, panel: Value) -> tuple[Value, Value]:
        """What the next term has in their place."""
        column = e.offset(column, self.a_step) if self.form == "column" else column
        return column, panel if self.form == "picked" else e.offset(panel, self.b_step)


@lru_cache(maxsize=256)
def tile_function(tile: Tile, form: Form, *, small: bool, accumulate: bool) -> Function:
    """The micro-kernel as a function of (a, a_step, b, b_step, terms, c, c_step[, count][, add]).

    Form "row": `a_step` is the distance of rows of a, whose terms are contiguous; form "column":
    that of its terms; forms with tables have in its place those of rows and of terms, and "picked"
    has that of b in place of `b_step`. With `small`, rows from `count` on repeat the last one, so
    nothing outside is read or written. With `accumulate`, the sums are added to c where `add` is
    not 0.
    """
    rows, given = tile.small if small else tile.rows, _Operands(tile, form)
    c, terms, c_step = ir.pointer(tile.dtype, "c"), ir.size("terms"), ir.size("c_step")
    count, add = ir.size("count"), ir.size("add")
    parameters = [*given.parameters, terms, c, c_step, *[count] * small, *[add] * accumulate]

    def write(e: Builder) -> None:
        last = e.sub(count, 1) if small else None
        places = [e.index(r) if last is None or r == 0 else e.min(last, r) for r in range(rows)]
        starts = given.starts(e, places)
        zero = e.constant(0, tile.dtype, tile.lanes)

        def term(k: Value, column: Value, follows: Value, *sums: Value) -> tuple[Value, ...]:
            panel = given.panel(e, k, follows)
            if tile.rows <= 2 and form != "picked":
                _fetch(e, tile, panel, given.b_step)
            row = [e.load(panel, v * tile.lanes, tile.lanes) for v in range(tile.vectors)]
            made: list[Value] = []
            for r, where in enumerate(given.places(e, k, column, starts, places)):
                x = e.splat(e.load(*where), tile.lanes)
                for v in range(tile.vectors):
                    made.append(multiply_add(e, x, row[v], sums[r * tile.vectors + v]))
            return (*given.following(e, column, follows), *made)

        initial = (given.a, given.b, *[zero] * (rows * tile.vectors))
        sums = e.loop(0, terms, 1, term, initial)[2:]
        targets = [e.offset(c, e.mul(place, c_step)) for place in places]
        if accumulate:
            sums = added(e, tile, targets, sums, add)
        for i, value in enumerate(sums):
            e.store(targets[i // tile.vectors], i % tile.vectors * tile.lanes, value)

    size = f"{rows}x{tile.width}{'_small' if small else ''}{'_add' if accumulate else ''}"
    return builder.function(f"tile_{form}_{size}_{tile.dtype.name}", parameters, write)


def multiply_add(e: Builder, x: Value, y: Value, total: Value) -> Value:
    """total + x * y."""
    return e.add(total, e.mul(x, y)) if total.dtype.is_integer else e.fma(x, y, total)


def _at(e: Builder, pointer: Value, table: Value, index: Value) -> Value:
    """The pointer moved by an entry of a table."""
    return e.offset(pointer, e.cast(e.load(table, index), dt.int64))


def _fetch(e: Builder, tile: Tile, panel: Value, step: Value) -> None:
    """Ask for a later row of b: with few rows of a it comes from memory, from page after page."""
    later = e.mul(step, _AHEAD)
    for first in range(0, tile.width, 64 // tile.dtype.itemsize):
        e.prefetch(panel, e.add(later, first))


def added(
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
