"""Launches of products of words: the panels of b, and the kernel with its blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.pairs.kernel import BLOCK, PairSpec, Rows, pair_kernel
from treadle.backends.codegen.contraction.pairs.packed import (
    GROUP,
    LINES,
    PANEL,
    WIDTH,
    WORDS,
    Panels,
    PanelsParameters,
    WeavingParameters,
    panels_kernel,
    terms_per_step,
    weaving_kernel,
)
from treadle.backends.codegen.contraction.pairs.tiles import Multiplier
from treadle.backends.codegen.contraction.shared.epilogue import Sides
from treadle.backends.codegen.contraction.shared.items import Division, ItemTables, Shifts
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import Offsets, Table, joined, length_of
from treadle.backends.codegen.contraction.shared.pack import Order, order_of
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate, is_multiple
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical

_DEPTH = 16
"""Steps of a panel that stays in the first cache: 32 KiB."""
_SPARE = 5 / 4
"""Up to so many times as many, sums are not split."""
_HEIGHT = 256
"""Most rows of an item: with `_DEPTH` steps, 256 KiB of the second cache."""
_SUMS = 1 << 17
"""Most incomplete sums of an item: 512 KiB."""
_PANELS = 8
"""Panels of an item from which making words of rows takes a small part of its time."""
_ROOM = 1 << 25
"""Most bytes of panels that are there at a time, where every run makes them: a model's table of
words would take as much again as it has."""
_ITEM = {True: 1 << 26, False: 1 << 22}
"""Arithmetic operations that make an item worth its own turn, with matrix registers and without."""
_ITEMS = 32
"""Items that keep a handful of threads equally busy."""
_BYTES = {dt.int8, dt.uint8}
_CHUNK = 64
"""Steps of a group of lines that an item makes words."""
_NAMES = {dt.float32: "bfloat16", dt.int32: "int8"}
"""Multipliers, by the type of the sums."""
_LEAST = 1 << 15
"""Arithmetic operations from which it pays to make words."""


def claims(problem: ContractionProblem, target: Target) -> Support:
    """Claim problems of which an instruction adds the products of several terms."""
    a, b = problem.a.dtype, problem.b.dtype
    short = a is dt.bfloat16 and b is dt.bfloat16
    if not (short and target.dot_bfloat16) and not (target.matrices and {a, b} <= _BYTES):
        return no("dtype", f"the target multiplies no pairs of {a.name} by {b.name}")
    if problem.patches or problem.positions or problem.moments:
        return no("layout", "patches, positions by table and statistics are of tiles")
    if estimate(problem.flops) < _LEAST or estimate(problem.k) < LINES:
        return no("shape", "too few operations to be worth making words")
    return yes()


def unit_of(problem: ContractionProblem, target: Target) -> Multiplier | None:
    """Return the unit that multiplies a problem's operands several terms at a time, or None."""
    if not claims(problem, target):
        return None
    a, b = problem.a.dtype, problem.b.dtype
    sums = dt.float32 if a is dt.bfloat16 else dt.int32
    return Multiplier(a, b, sums, target.matrices, target.vector_bytes // 4)


def lower(launches: Launches) -> Lowered:
    """The product: panels of b where it does not have them yet, then the kernel."""
    problem, unit = launches.problem, unit_of(launches.problem, launches.target)
    if unit is None:
        raise ValueError("a product of pairs without a unit that multiplies them")
    order = order_of(problem.b.column, problem.b.row)
    steps = -(-problem.k // terms_per_step(unit.a))
    place = None
    for part in _parts(problem, steps, frozen=launches.is_frozen(problem.b)):
        launches.problem = part
        b = _panels(launches, order, steps, place=place)
        place = b.place
        launches.problem = replace(part, b=b)
        _multiply(launches, unit, order_of(problem.a.row, problem.a.column), steps)
    return launches.lowered()


def _parts(problem: ContractionProblem, steps: Dim, *, frozen: bool) -> list[ContractionProblem]:
    """Columns whose panels are there at a time, the first part the widest: see `_ROOM`."""
    n, sides = problem.n, (*problem.extras, *problem.results)
    fixed = isinstance(n, int) and isinstance(steps, int) and not problem.batch
    if frozen or not fixed or any(matrix.table or matrix.panels for matrix in sides):
        return [problem]
    panels, most = -(-n // WIDTH), max(_PANELS, _ROOM // (4 * PANEL * steps))
    width = WIDTH * -(-panels // -(-panels // most))

    def moved(matrix: Matrix, first: int) -> Matrix:
        return replace(matrix, offset=matrix.offset + first * matrix.column)

    return [
        replace(
            problem,
            n=min(width, n - first),
            b=moved(problem.b, first),
            extras=tuple(moved(x, first) for x in problem.extras),
            results=tuple(moved(c, first) for c in problem.results),
        )
        for first in range(0, n, width)
    ]


@dataclass(frozen=True, slots=True)
class TermSteps:
    """The terms of every row, by steps.

    Attributes:
        starts: where steps begin in a row of a.
        terms: how many terms they have.
        order: for every term that there is room for, where it lies in a column of b, or -1.
    """

    starts: Table
    terms: Offsets
    order: Offsets


def steps_of_runs(starts: Table, order: Offsets, dtype: DType) -> TermSteps:
    """Runs of neighbors begin at `starts`; row q of `order` says where their terms lie in b."""
    many, length = terms_per_step(dtype), order.shape[1]
    pieces = -(-length // many)
    table = np.full((length_of(starts), pieces * many), -1, np.int64)
    table[:, :length] = order
    firsts = joined(starts, np.arange(pieces) * many)
    counts = (table >= 0).reshape(-1, many).sum(1)
    return TermSteps(firsts, counts, table.ravel())


def multiply_tabled(launches: Launches, unit: Multiplier, rows: Table, steps: TermSteps) -> None:
    """The product of rows that begin where `rows` says."""
    problem, count = launches.problem, length_of(steps.starts)
    order = launches.constant(steps.order.astype(np.int32))
    ragged = bool((steps.terms < terms_per_step(unit.a)).any())
    b = _panels(launches, "table", count, order)
    launches.problem = replace(problem, b=b, k=count * terms_per_step(unit.a))
    tables = [launches.offsets(t) for t in (rows, steps.starts, steps.terms)]
    launches.tables = ItemTables(row_table=tables[0], step_table=tables[1], terms_table=tables[2])
    _multiply(launches, unit, "ragged" if ragged else "table", count)


def _multiply(launches: Launches, unit: Multiplier, order: Rows, steps: Dim) -> None:
    problem = launches.problem
    # How many steps there may be at most is not asked for: the call might have more of them.
    split = not isinstance(steps, int) or steps > _DEPTH * _SPARE
    depth = steps
    if split:
        most = estimate(steps)
        depth = -(-most // max(1, -(-most // _DEPTH)))
    width, height = _item(problem, unit, split=split)
    panels = -(-problem.n // WIDTH)
    row_items, panel_items = -(-problem.m // height), -(-panels // width)
    division = Division(height, width, BLOCK, depth, row_items, panel_items)
    spec = PairSpec(
        unit,
        order,
        order == "straight" and _is_whole(problem, unit),
        len(problem.batch),
        split,
        words=_HEIGHT * WORDS * int(_DEPTH * _SPARE),
        sums=_SUMS if split else BLOCK * WIDTH,
        epilogue=problem.epilogue,
    )
    launches.unit = _NAMES[unit.sums]
    items = problem.count * row_items * panel_items
    launches.add(pair_kernel(spec), launches.arguments(division), items)


def _is_whole(problem: ContractionProblem, unit: Multiplier) -> bool:
    """Return whether steps of rows of a fill lines of the cache where they lie."""
    a, many = problem.a, terms_per_step(unit.a)
    lengths = (problem.k, a.offset, a.row, *a.batch)
    return is_identical(a.column, 1) and all(is_multiple(length, many) for length in lengths)


def _item(problem: ContractionProblem, unit: Multiplier, *, split: bool) -> tuple[int, int]:
    """Panels and rows of an item: large ones make words once, many keep all threads busy."""
    m, panels = estimate(problem.m), -(-estimate(problem.n) // WIDTH)
    height, width = _whole(m, _HEIGHT), panels
    if split:
        width = min(width, _SUMS // (-(-height // BLOCK) * BLOCK * WIDTH))
    wanted = max(1, min(_ITEMS, estimate(problem.flops) // _ITEM[unit.matrices]))
    while estimate(problem.count) * -(-m // height) * -(-panels // width) < wanted:
        if height > 4 * BLOCK or (width <= _PANELS and height > BLOCK):
            height = _whole(m, height // 2)
        elif width > _PANELS:
            width = -(-width // 2)
        else:
            break
    return -(-panels // -(-panels // width)), height


def _whole(rows: int, most: int) -> int:
    """Parts of at most so many rows, of about the same size, all but the last of whole blocks."""
    parts = -(-rows // max(most, BLOCK))
    return min(rows, -(-rows // (parts * BLOCK)) * BLOCK)


def _panels(
    launches: Launches,
    order: Order | Literal["table"],
    steps: Dim,
    table: Ref | None = None,
    place: Ref | None = None,
) -> Matrix:
    """b as panels, made once for all runs where it never changes, and at `place` if it is given."""
    problem, b = launches.problem, launches.problem.b
    panels = -(-problem.n // WIDTH)
    batch, count = launches.distinct(b, panels * steps * PANEL)
    frozen, nbytes = launches.is_frozen(b), count * dt.int32.itemsize
    if place is None:
        place = launches.keep(nbytes) if frozen else launches.workspace(nbytes)
    given: PanelsParameters[Ref, Dim] = PanelsParameters(
        source=b.place,
        made=place,
        order=table,
        n=problem.n,
        k=problem.k,
        steps=steps,
        panels=panels,
        term_step=b.row,
        column_step=b.column,
        batch=batch,
    )
    kernel = panels_kernel(Panels(b.dtype, order, len(batch)))
    launch = kernel.launch(
        given,
        items=product(axis.extent for axis in batch) * panels,
        serial=estimate(nbytes) < 1 << 16,
        nbytes=2 * nbytes,
    )
    (launches.prelude if frozen else launches.launches).append(launch)
    made = replace(b, kind=place.kind, index=place.index, dtype=dt.int32, offset=0)
    return replace(made, batch=tuple(s.target for s in batch), row=WIDTH, column=1)


# -- several products with the same rows -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shifted:
    """Products of two matrices whose lines are neighbors, one for every shift of b's terms.

    Attributes:
        a, b: where they begin, and elements from term to term.
        terms: how many there are.
        shifts: by how many terms b is moved on; what lies behind its last one meets zeros of a.
        steps: of further operands and of results, from product to product.
    """

    a: Matrix
    b: Matrix
    terms: int
    shifts: Offsets
    steps: Sides[Dim]


def multiply_shifted(launches: Launches, unit: Multiplier, given: Shifted) -> None:
    """The products: words of a, those of b for even and for odd shifts, then the kernel."""
    problem, many = launches.problem, terms_per_step(unit.a)
    m, n = int(problem.m), int(problem.n)
    steps, panels = -(-given.terms // many), -(-n // WIDTH)
    room = -(-(given.terms + int(given.shifts.max())) // many) + 1
    a = _woven(launches, given.a, (m, given.terms, steps), rows=True)
    terms_per_word = 4 // unit.b.itemsize
    size, found = panels * room * PANEL, sorted({int(s) % terms_per_word for s in given.shifts})
    place = launches.workspace(len(found) * size * dt.int32.itemsize)
    for i, first in enumerate(found):
        moved = replace(given.b, offset=given.b.offset + first * given.b.row)
        into = replace(place, offset=i * size * dt.int32.itemsize)
        _woven(launches, moved, (n, given.terms - first, room), rows=False, place=into)
    words, firsts = np.divmod(given.shifts, terms_per_word)
    table = np.searchsorted(found, firsts) * size + words * WIDTH
    shift_table = launches.constant(table.astype(np.int32))
    width, height = _shifted_item(m, panels, len(table))
    row_items, panel_items = -(-m // height), -(-panels // width)
    division = Division[Dim](height, width, BLOCK, _DEPTH, row_items, panel_items)
    made = Matrix("workspace", a.index, dt.int32, 0, (), 0, 1)
    launches.problem = replace(problem, a=made, b=replace(made, index=place.index), k=given.terms)
    spec = PairSpec(unit, "words", False, 0, True, 0, _SHIFTED, problem.epilogue, shifts=True)
    launches.unit = _NAMES[unit.sums]
    shifts: Shifts[Ref, Dim] = Shifts(shift_table, len(table), room, given.steps)
    arguments = launches.arguments(division)._replace(shifts=shifts)
    launches.add(pair_kernel(spec), arguments, row_items * panel_items)
    launch = launches.launches[-1]
    launches.launches[-1] = replace(launch, flops=launch.flops * len(table), serial=False)


_SHIFTED = 1 << 18
"""Most incomplete sums of an item with several products: 1 MiB."""
MOST_SHIFTS = 128
"""Most products that an item may have."""


def _shifted_item(rows: int, panels: int, shifts: int) -> tuple[int, int]:
    """Panels and rows of an item: all products of a few blocks."""
    blocks = max(1, _SHIFTED // (BLOCK * WIDTH * shifts))
    width = min(panels, max(1, blocks // 2), 2)
    height = _whole(rows, min(_HEIGHT, blocks // width * BLOCK))
    while -(-rows // height) * -(-panels // width) < _ITEMS // 4 and (height > BLOCK or width > 1):
        if height > BLOCK:
            height = _whole(rows, height // 2)
        else:
            width = -(-width // 2)
    return width, height


def _woven(
    launches: Launches,
    matrix: Matrix,
    sizes: tuple[int, int, int],
    *,
    rows: bool,
    place: Ref | None = None,
) -> Ref:
    """Words of a matrix of (lines, terms), with room for so many steps."""
    lines, terms, room = sizes
    groups = -(-lines // LINES) if rows else -(-lines // WIDTH) * (WIDTH // LINES)
    nbytes = groups * room * GROUP * dt.int32.itemsize
    made = launches.workspace(nbytes) if place is None else place
    chunks = -(-room // _CHUNK)
    given: WeavingParameters[Ref, Dim] = WeavingParameters(
        source=matrix.place,
        made=made,
        lines=lines,
        terms=terms,
        term_step=matrix.row,
        room=room,
        chunk=_CHUNK,
        chunks=chunks,
    )
    kernel = weaving_kernel(matrix.dtype, rows=rows)
    launch = kernel.launch(
        given,
        items=groups * chunks,
        serial=nbytes < 1 << 16,
        nbytes=2 * nbytes,
    )
    launches.launches.append(launch)
    return made
