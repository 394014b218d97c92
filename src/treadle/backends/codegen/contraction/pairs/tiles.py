"""Micro-kernels of products of words: see `pair_words.py` for how operands lie.

With matrix registers, two groups of rows meet a panel: four registers of sums, two of rows and two
of columns, so that every register that is loaded is multiplied twice. With vectors of words, eight
rows do: sixteen vectors of sums, and a word of a row in every lane. Four short vectors are a part
of a panel's columns; its parts follow one another, each over all steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from treadle.backends.codegen.contraction.pairs.packed import LINES, PANEL, WIDTH, WORDS
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, dot
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
class Multiplier:
    """A multiplier: element types of both operands and of the sums; matrix registers or not.

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
    def heights(self) -> tuple[int, int, int]:
        """Rows of tiles of vectors: the largest, and two for rows that are left."""
        return self.rows, self.rows // 2, self.rows // 4

    @property
    def vectors(self) -> int:
        """Vectors of columns that are multiplied at a time."""
        return 2 * _VECTOR_ROWS // self.rows


@lru_cache(maxsize=32)
def unit_function(unit: Multiplier, rows: int) -> KernelRoutine:
    """The micro-kernel as a function of (a, a_row, a_next, a_below, b, ahead, steps, c, add).

    `a` points to the first row; `a_row`, `a_next` and `a_below` are the words from row to row of a
    group, from step to step, and from group to group. Rows of c follow one another. Sums begin with
    0, or with what c holds where `add` is not 0. At `ahead` lies what will be needed of b later.
    """
    kind = _Matrices if unit.matrices else _Vectors
    tile = kind(unit, rows)
    tile.write()
    what = "matrices" if unit.matrices else "pairs" if unit.lanes == LINES else "short_pairs"
    return tile.e.function(f"tile_{what}_{unit.a.name}_{rows}x{WIDTH}")


class _Tile(ABC):
    """Parameters of a micro-kernel."""

    def __init__(self, unit: Multiplier, rows: int) -> None:
        self.unit, self.rows = unit, rows
        self.e = e = Builder()
        self.a = e.pointer(dt.int32, "a")
        self.a_row, self.a_next, self.a_below = e.sizes("a_row", "a_next", "a_below")
        self.b, self.ahead = e.pointer(dt.int32, "b"), e.pointer(dt.int32, "ahead")
        self.steps, self.c, self.add = e.size("steps"), e.pointer(unit.sums, "c"), e.size("add")

    @abstractmethod
    def write(self) -> None:
        """Write the body."""


class _Matrices(_Tile):
    """By matrix registers: 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns."""

    def write(self) -> None:
        e, groups = self.e, range(self.rows // LINES)
        with e.when(self.add != 0):
            for register, c in self._sums():
                e.matrix_load(register, c, WIDTH)
        with e.otherwise():
            for register, _ in self._sums():
                e.matrix_zero(register)
        with e.loop(self.steps) as s:
            a, b = self.a + s * self.a_next, self.b + s * PANEL
            for g in groups:
                # Rows pass by, so that they do not drive the panel out of the first cache.
                below = a + self.a_below * g
                e.matrix_load(4 + g, below, self.a_row, streaming=True)
                for j in range(2):
                    if g == 0:
                        e.matrix_load(6 + j, b + j * LINES, WIDTH)
                    e.matrix_dot(2 * g + j, 4 + g, 6 + j, self.unit.a, self.unit.b)
            for line in range(AHEAD):
                place = s * (AHEAD * WORDS)
                self.ahead.prefetch(place + line * WORDS)
        for register, c in self._sums():
            e.matrix_store(register, c, WIDTH)

    def _sums(self) -> Iterator[tuple[int, Pointer]]:
        """The registers of sums, and where they lie in c."""
        for g in range(self.rows // LINES):
            for j in range(2):
                yield 2 * g + j, self.c + (g * LINES * WIDTH + j * LINES)


class _Vectors(_Tile):
    """By vectors of words."""

    def write(self) -> None:
        part = self.unit.vectors * self.unit.lanes
        for first in range(0, WIDTH, part):
            self._part(first)

    def _part(self, first: int) -> None:
        """The columns from `first` on."""
        e, unit, lanes = self.e, self.unit, self.unit.lanes
        columns = range(first, first + unit.vectors * lanes, lanes)
        sums = [[e.constant(0, unit.sums, lanes)] * len(columns) for _ in range(self.rows)]
        with e.when(self.add != 0, changing=(*sums,)):
            for r, line in enumerate(sums):
                line[:] = [self.c.load(r * WIDTH + at, lanes) for at in columns]
        rows = [self.a + self.a_row * r for r in range(self.rows)]

        def word(a: Value, b: Pointer) -> None:
            loaded = [b.load(at, lanes).bitcast(unit.b) for at in columns]
            for row, line in zip(rows, sums, strict=True):
                x = row[a].splat(lanes).bitcast(unit.a)
                line[:] = [dot(total, x, y) for total, y in zip(line, loaded, strict=True)]

        with e.loop(0, self.steps, carrying=(*sums,)) as s:
            a, b = s * self.a_next, self.b + s * PANEL
            with e.loop(0, WORDS, 2, carrying=(*sums,)) as w:
                for i in range(2):
                    at = w + i
                    word(a + at, b + at * WIDTH)
        for r, line in enumerate(sums):
            for column, value in zip(columns, line, strict=True):
                self.c[r * WIDTH + column] = value
