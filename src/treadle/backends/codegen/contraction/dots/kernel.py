"""Products of few rows with a matrix whose columns are contiguous, as in decoding token by token.

Such a product reads the matrix once and computes little, so nothing is packed: one vector of sums
per column, as many columns at once as a vector has lanes, and their sums by one transposition.
Operands of 8 or 16 bits are widened as they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from treadle.backends.codegen.contraction.shared.epilogue import Block, Epilogue, finish
from treadle.backends.codegen.contraction.shared.items import Contraction, Item, Items, moved
from treadle.backends.codegen.contraction.shared.pack import transpose
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

ROWS = 6
"""Most rows for which this is worth its slower arithmetic."""
_AHEAD = 1024
"""Bytes ahead of the loads that lines are fetched."""
_TURNS = 4096
"""Most additions in a row to a sum that rounds, which is then added to one that waits. With 1,024
of them two rows of 8,192 terms took 13 % longer; most products are shorter than this."""


Sums = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Dots:
    """A kernel's constants; the tile gives the type of the sums and the width of a panel."""

    tile: Tile
    a: DType
    b: DType
    batch: int
    epilogue: Epilogue


@lru_cache(maxsize=256)
def dots_kernel(spec: Dots) -> Contraction:
    """The kernel: its items are groups of panels, each with all rows."""
    items = Items(spec.tile.width, spec.a, spec.b, spec.batch, spec.epilogue)

    def write(e: Builder, lo: Value, hi: Value) -> None:
        sums = e.stack(spec.tile.dtype, ROWS * spec.tile.width)
        exact = spec.tile.dtype.is_integer
        waiting = sums if exact else e.stack(spec.tile.dtype, spec.tile.lanes**2)

        def item(i: Value) -> None:
            found = items.locate(e, i, i)
            e.loop(0, found.panels, 1, lambda p: _panel(e, spec, items, found, (sums, waiting), p))

        e.loop(lo, hi, 1, item)

    steps = "".join(f"_{s.op.name}" for s in spec.epilogue.steps[:3])
    kernel = builder.kernel(f"dots_{spec.b.name}{steps}", list(items.parameters.values()), write)
    return Contraction(kernel, tuple(items.parameters))


def _panel(
    e: Builder, spec: Dots, items: Items, item: Item, room: tuple[Value, Value], p: Value
) -> None:
    """All rows times the columns of one panel."""
    tile, (sums, waiting) = spec.tile, room
    column = e.mul(e.add(item.panel, p), tile.width)
    last = e.sub(items["n"], 1)

    def group(first: Value) -> None:
        places = [e.min(e.add(e.add(column, first), j), last) for j in range(tile.lanes)]
        columns = [e.offset(item.b, e.mul(place, items["b_column"])) for place in places]

        def row(r: Value) -> None:
            a = e.offset(item.a, e.mul(r, items["a_row"]))
            totals = _dots(e, spec, a, columns, items["k"], waiting)
            e.store(sums, e.add(e.mul(r, tile.width), first), totals)

        e.loop(0, item.rows, 1, row)

    e.loop(0, tile.width, tile.lanes, group)
    zero = e.index(0)
    extras, results = (
        [moved(e, place, zero, column) for place in places]
        for places in (item.extras, item.results)
    )
    block = Block(sums, tile.width, item.rows, e.sub(items["n"], column))
    finish(e, tile, spec.epilogue, block, extras, results)


def _dots(
    e: Builder, spec: Dots, a: Value, columns: list[Value], terms: Value, waiting: Value
) -> Value:
    """One sum per column, as a vector."""
    dtype, lanes = spec.tile.dtype, spec.tile.lanes
    # Sums of integers take their terms by twos.
    step, kind = (2 * lanes, dt.int16) if dtype.is_integer else (lanes, dtype)
    whole = e.sub(terms, e.rem(terms, step))
    ahead = _AHEAD // spec.b.itemsize

    def added(k: Value, mask: Value | None, sums: Sums) -> Sums:
        x = e.cast(e.load(a, k, step, mask), kind)
        loaded = [e.cast(e.load(column, k, step, mask), kind) for column in columns]
        if dtype.is_integer:
            return tuple(e.dot(s, y, x) for y, s in zip(loaded, sums, strict=True))
        return tuple(e.fma(y, x, s) for y, s in zip(loaded, sums, strict=True))

    def body(k: Value, *sums: Value) -> Sums:
        for column in columns:
            e.prefetch(column, e.add(k, ahead))
        return added(k, None, sums)

    zeros = [e.constant(0, dtype, lanes)] * lanes

    def turns(start: Value, stop: Value) -> Sums:
        made: Sums = e.loop(start, stop, step, body, zeros)
        return made

    first: Value = e.index(0)
    finished: Callable[[Sums], list[Value]] = list
    if not dtype.is_integer:  # Those are exact.
        first, finished = _long(e, spec.tile, waiting, whole, turns)
    sums = turns(first, whole)
    mask = e.first_lanes(e.sub(terms, whole), step)
    sums = e.branch(
        e.compare("lt", whole, terms), lambda: added(whole, mask, sums), lambda: sums, sums
    )
    parts = transpose(e, finished(sums))
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [e.add(x, y) for x, y in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def _long(
    e: Builder, tile: Tile, waiting: Value, whole: Value, turns: Callable[[Value, Value], Sums]
) -> tuple[Value, Callable[[Sums], list[Value]]]:
    """Add sums of so many turns at a time to sums that wait in memory.

    Returns:
        The first term behind, and a function that adds what waits to the sums of the rest.
    """
    places = [e.offset(waiting, j * tile.lanes) for j in range(tile.lanes)]
    block = _TURNS * tile.lanes
    first = e.sub(whole, e.rem(whole, block))
    some = e.compare("lt", 0, first)

    def wait(sums: Sums) -> None:
        for place, total in zip(places, sums, strict=True):
            e.store(place, 0, total)

    def with_both(sums: Sums) -> Sums:
        old = [e.load(place, 0, tile.lanes) for place in places]
        return tuple(e.add(x, y) for x, y in zip(old, sums, strict=True))

    e.branch(some, lambda: wait((e.constant(0, tile.dtype, tile.lanes),) * tile.lanes))
    e.loop(0, first, block, lambda k: wait(with_both(turns(k, e.add(k, block)))))

    def finished(sums: Sums) -> list[Value]:
        return list(e.branch(some, lambda: with_both(sums), lambda: sums, sums))

    return first, finished
