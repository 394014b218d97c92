"""Launches of products of words: the panels of b, and the kernel with its blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.integers.kernel import WordSpec, word_kernel
from treadle.backends.codegen.contraction.integers.packed import BLOCK, Words, terms_per_word
from treadle.backends.codegen.contraction.integers.panels import (
    PanelWords,
    PanelWordsParameters,
    panel_rows,
    panel_words_kernel,
)
from treadle.backends.codegen.contraction.integers.tile import DEPTH, choose_word_tile, deepest
from treadle.backends.codegen.contraction.shared.items import Division, ItemTables, RunSizes
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import (
    Offsets,
    Table,
    joined,
    length_of,
    steps_of,
)
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical

_CACHE = 2 << 20
"""Most bytes of the second cache that are counted on."""
_WIDTH = 16
"""Most panels of an item."""
_NARROW = 4
"""Panels of an item from which making rows words takes no more than a twentieth of its time."""
_ITEM = 1 << 22
"""Arithmetic operations that make an item worth its own turn; ten microseconds or more."""
_ITEMS = 32
"""Items that keep a handful of threads equally busy."""
_PIECE = 16
"""Terms that runs are cut to multiples of: a vector of them."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The terms of every row: runs of equal length.

    Attributes:
        length: terms of a run.
        words: words of a run.
        starts: where runs begin in a row of a.
        order: for every term of every word, where it lies in a column of b; -1 where there is none.
    """

    length: int
    words: int
    starts: Table
    order: Offsets

    @property
    def count(self) -> int:
        """Words of a row."""
        return length_of(self.starts) * self.words


def runs_of(starts: Table, order: Offsets, terms: int) -> Runs:
    """Runs that begin at `starts`; row q of `order` says where their terms lie in b.

    Long ones are cut. The last piece may repeat terms of the one before, with zeros for factors.
    """
    length = order.shape[1]
    pieces = -(-length // DEPTH)
    size = min(length, -(-length // (pieces * _PIECE)) * _PIECE)
    firsts = np.minimum(steps_of(pieces, size), length - size)
    words = -(-size // terms)
    table = np.full((length_of(starts), pieces, words * terms), -1, np.int64)
    for i, first in enumerate(firsts):
        table[:, i, :size] = order[:, first : first + size]
        table[:, i, : i * size - first] = -1
    return Runs(size, words, joined(starts, firsts), table.ravel())


def claims(problem: ContractionProblem, target: Target) -> Support:
    """Claim products of small integers."""
    if not problem.a.integer:
        return no("dtype", f"{problem.a.dtype.name} are not integers")
    if not isinstance(problem.k, int):
        return no("shape", "words are made of a fixed number of terms")
    return yes()


def lower(launches: Launches) -> Lowered:
    """A product of two matrices of small integers."""
    problem, target = launches.problem, launches.target
    lanes = target.lanes(dt.int32)
    if not is_identical(problem.a.column, 1):
        launches.pack_rows(Tile(problem.a.dtype, 8, 4, 2, lanes))
    if not isinstance(problem.b.row, int):  # The panels are made by a table of numbers.
        launches.pack_columns(Tile(problem.b.dtype, 8, 4, 2, lanes))
    problem = launches.problem
    terms = terms_per_word(target, problem.a.dtype, problem.b.dtype)
    order = steps_of(int(problem.k), int(problem.b.row))[None]
    multiply_words(launches, runs_of(np.zeros(1, np.int64), order, terms))
    return launches.lowered()


def multiply_words(
    launches: Launches, runs: Runs, rows: Table | None = None, *, loose: bool = False
) -> None:
    """The product; `rows` say where rows of a begin, `loose` that there is slack behind it."""
    problem, target = launches.problem, launches.target
    source = problem.a.dtype
    terms = terms_per_word(target, source, problem.b.dtype)
    tile = choose_word_tile(target, estimate(problem.m), estimate(problem.n), terms)
    depth = _depth(runs.count, runs.words, terms)
    launches.problem = replace(problem, b=_panels(launches, tile, runs, depth))
    run_table = launches.offsets(runs.starts)
    row_table = None if rows is None else launches.offsets(rows)
    launches.tables = ItemTables(row_table=row_table, run_table=run_table)
    words = Words(source, rows is not None, loose, not target.dot_int8)
    _launch(launches, tile, words, runs, depth)


def _panels(launches: Launches, tile: Tile, runs: Runs, depth: int) -> Matrix:
    """b as panels of words, made once for all runs where it never changes."""
    problem, b = launches.problem, launches.problem.b
    panels, rows = -(-problem.n // tile.width), panel_rows(tile, runs.count, depth)
    steps, count = launches.distinct(b, panels * rows * tile.width)
    frozen, nbytes = launches.is_frozen(b), count * dt.int32.itemsize + 64
    place = launches.keep(nbytes) if frozen else launches.workspace(nbytes)
    given: PanelWordsParameters[Ref, Dim] = PanelWordsParameters(
        source=b.place,
        order=launches.constant(runs.order.astype(np.int32)),
        target=place,
        n=problem.n,
        k=runs.count,
        depth=depth,
        panel_terms=rows,
        panels=panels,
        column_step=b.column,
        batch=steps,
    )
    kernel = panel_words_kernel(PanelWords(tile, b.dtype, len(steps)))
    launch = kernel.launch(
        given,
        items=product(axis.extent for axis in steps) * panels,
        serial=estimate(nbytes) < 1 << 16,
        nbytes=nbytes,
    )
    (launches.prelude if frozen else launches.launches).append(launch)
    made = replace(b, kind=place.kind, index=place.index, dtype=dt.int32, offset=0)
    return replace(made, batch=tuple(s.target for s in steps), row=tile.width, column=1)


def _launch(launches: Launches, tile: Tile, words: Words, runs: Runs, depth: int) -> None:
    problem, k = launches.problem, runs.count
    block, split = BLOCK - BLOCK % tile.rows, depth < k
    sums = (
        min(launches.target.l2, _CACHE) // 4 // dt.int32.itemsize if split else block * tile.width
    )
    width, height = _item(launches, tile, block, sums if split else 1 << 31)
    panels = -(-problem.n // tile.width)
    row_items, panel_items = -(-problem.m // height), -(-panels // width)
    division = Division(height, width, min(height, block), depth, row_items, panel_items)
    launches.unit = "int8" if tile.terms == 4 else ""
    spec = WordSpec(tile, words, len(problem.batch), split, sums, problem.epilogue)
    given = launches.arguments(division)._replace(
        k=k,
        panel_terms=panel_rows(tile, k, depth),
        runs=RunSizes(runs.length, runs.words),
    )
    launches.add(word_kernel(spec), given, problem.count * row_items * panel_items)


def _depth(k: int, run: int, terms: int) -> int:
    """Words per step, whole runs of them."""
    if k <= deepest(terms):
        return k
    parts = -(-k * terms // DEPTH)
    return min(-(-k // (parts * run)), deepest(terms) // run) * run


def _item(launches: Launches, tile: Tile, block: int, sums: int) -> tuple[int, int]:
    """Panels and rows of an item: wide ones make words once for many columns."""
    problem = launches.problem.at_hint()
    m, count, flops = int(problem.m), int(problem.count), int(problem.flops)
    panels = -(-int(problem.n) // tile.width)
    height = _even(m, block, tile.rows)
    width = max(1, min(panels, _WIDTH, sums // (height * tile.width)))
    wanted = max(1, min(_ITEMS, flops // _ITEM))
    while count * -(-m // height) * -(-panels // width) < wanted:
        if width > _NARROW:
            width = -(-width // 2)
        elif height > 4 * tile.rows:
            height = _even(m, height // 2, tile.rows)
        elif width > 1:
            width = -(-width // 2)
        else:
            break
    if launches.problem.is_open:
        height = -(-height // tile.rows) * tile.rows
    return -(-panels // -(-panels // width)), height


def _even(rows: int, most: int, step: int) -> int:
    """Parts of at most so many rows, all of about the same size."""
    parts = -(-rows // max(most, step))
    return min(rows, -(-rows // (parts * step)) * step)
