"""Micro-kernels of products of words: see `pair_words.py` for how operands lie.

With matrix registers, two groups of rows meet a panel: four registers of sums, two of rows and two
of columns, so that every register that is loaded is multiplied twice. With vectors of words, eight
rows do: sixteen vectors of sums, and a word of a row in every lane. Four short vectors are a part
of a panel's columns; its parts follow one another, each over all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from treadle.backends.codegen.contraction.pairs.words import (
    LINES,
    PANEL,
    WIDTH,
    WORDS,
)
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

AHEAD = 4
"""Lines of the cache that every step asks for: eight blocks of rows ask for the next panel."""
_VECTOR_ROWS = 8
"""Rows of a tile of vectors."""
_SHORT_ROWS = 4
"""The same where a panel is more than two vectors wide, which meet four at a time: putting a word
into all lanes takes a turn of what multiplies there."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What multiplies: element types of both operands and of the sums; matrix registers or not.

    Vectors have so many lanes of 32 bits.
    """

    a: DType
    b: DType
    sums: DType
    matrices: bool
    lanes: int = LINES

    @property
    def rows(self) -> int:
        """Rows of the largest tile."""
        if self.matrices:
            return 2 * LINES
        return _VECTOR_ROWS if self.lanes == LINES else _SHORT_ROWS

    @property
    def vectors(self) -> int:
        """Vectors of columns that are multiplied at a time."""
        return 2 * _VECTOR_ROWS // self.rows


@lru_cache(maxsize=32)
def unit_function(unit: Unit, rows: int) -> Function:
    """The micro-kernel as a function of (a, a_row, a_next, a_below, b, ahead, steps, c, add).

    `a` points to the first row; `a_row`, `a_next` and `a_below` are the words from row to row of a
    group, from step to step, and from group to group. Rows of c follow one another. Sums begin with
    0, or with what c holds where `add` is not 0. At `ahead` lies what will be needed of b later.
    """
    a, b, ahead = (ir.pointer(dt.int32, name) for name in ("a", "b", "ahead"))
    c = ir.pointer(unit.sums, "c")
    names = ("a_row", "a_next", "a_below", "steps", "add")
    a_row, a_next, a_below, steps, add = map(ir.size, names)
    parameters = [a, a_row, a_next, a_below, b, ahead, steps, c, add]
    kind = _Matrices if unit.matrices else _Vectors
    what = "matrices" if unit.matrices else "pairs" if unit.lanes == LINES else "short_pairs"
    name = f"tile_{what}_{unit.a.name}_{rows}x{WIDTH}"
    tile = kind(unit, rows, parameters)
    return builder.function(name, parameters, tile.write)


class _Tile:
    """Parameters of a micro-kernel."""

    def __init__(self, unit: Unit, rows: int, parameters: list[Value]) -> None:
        self.unit, self.rows = unit, rows
        self.a, self.a_row, self.a_next, self.a_below = parameters[:4]
        self.b, self.ahead, self.steps, self.c, self.add = parameters[4:]


class _Matrices(_Tile):
    """By matrix registers: 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns."""

    def write(self, e: Builder) -> None:
        """The body."""
        groups = range(self.rows // LINES)
        sums = [(2 * g + j, g, j) for g in groups for j in range(2)]

        def each(write: Callable[[int, Value], None]) -> None:
            for register, g, j in sums:
                write(register, e.offset(self.c, g * LINES * WIDTH + j * LINES))

        e.branch(
            e.compare("ne", self.add, 0),
            lambda: each(lambda register, c: e.matrix_load(register, c, WIDTH)),
            lambda: each(lambda register, c: e.matrix_zero(register)),
        )

        def step(s: Value) -> None:
            a = e.offset(self.a, e.mul(s, self.a_next))
            b = e.offset(self.b, e.mul(s, PANEL))
            for g in groups:
                # Rows pass by, so that they do not drive the panel out of the first cache.
                below = e.offset(a, e.mul(self.a_below, g))
                e.matrix_load(4 + g, below, self.a_row, streaming=True)
                for j in range(2):
                    if g == 0:
                        e.matrix_load(6 + j, e.offset(b, j * LINES), WIDTH)
                    e.matrix_dot(2 * g + j, 4 + g, 6 + j, self.unit.a, self.unit.b)
            for line in range(AHEAD):
                place = e.mul(s, AHEAD * WORDS)
                e.prefetch(self.ahead, e.add(place, line * WORDS))

        e.loop(0, self.steps, 1, step)
        each(lambda register, c: e.matrix_store(register, c, WIDTH))


class _Vectors(_Tile):
    """By vectors of words."""

    def write(self, e: Builder) -> None:
        """The body."""
        part = self.unit.vectors * self.unit.lanes
        for first in range(0, WIDTH, part):
            self._part(e, first)

    def _part(self, e: Builder, first: int) -> None:
        """The columns from `first` on."""
        unit, lanes, vectors = self.unit, self.unit.lanes, range(self.unit.vectors)
        places = [(r, first + v * lanes) for r in range(self.rows) for v in vectors]

        def old() -> tuple[Value, ...]:
            return tuple(e.load(self.c, r * WIDTH + at, lanes) for r, at in places)

        none = (e.constant(0, unit.sums, lanes),) * len(places)
        initial = e.branch(e.compare("ne", self.add, 0), old, lambda: none, none)
        rows = [e.offset(self.a, e.mul(self.a_row, r)) for r in range(self.rows)]

        def word(a: Value, b: Value, sums: tuple[Value, ...]) -> tuple[Value, ...]:
            columns = [e.bitcast(e.load(b, first + v * lanes, lanes), unit.b) for v in vectors]
            made: list[Value] = []
            for r, row in enumerate(rows):
                x = e.bitcast(e.splat(e.load(row, a), lanes), unit.a)
                for v, y in enumerate(columns):
                    made.append(e.dot(sums[r * len(columns) + v], x, y))
            return tuple(made)

        def step(s: Value, *sums: Value) -> tuple[Value, ...]:
            a, b = e.mul(s, self.a_next), e.offset(self.b, e.mul(s, PANEL))

            def pair(w: Value, *sums: Value) -> tuple[Value, ...]:
                for i in range(2):
                    at = e.add(w, i)
                    place = e.add(a, at)
                    sums = word(place, e.offset(b, e.mul(at, WIDTH)), sums)
                return sums

            return e.loop(0, WORDS, 2, pair, sums)

        found = e.loop(0, self.steps, 1, step, initial)
        for (r, at), value in zip(places, found, strict=True):
            e.store(self.c, r * WIDTH + at, value)
