"""Schedules: which kernel a contraction runs, and how large its blocks and items are."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.codegen.contraction.shared.items import Division
from treadle.backends.codegen.contraction.shared.pack import order_of
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem
from treadle.backends.codegen.contraction.shared.tile import Form, Tile
from treadle.backends.codegen.contraction.tiles.blocks import ScratchSizes, TileBlocks, best_blocks
from treadle.backends.codegen.contraction.tiles.kernel import TileConfig
from treadle.backends.codegen.target import Target
from treadle.base.estimates import at_most, estimate
from treadle.base.symbol import Dim, is_identical

_ITEM = 1 << 21
"""Arithmetic operations that make an item worth its own turn; ten microseconds or more."""
_ITEMS = 32
"""Items that keep a handful of threads equally busy."""
_CACHE = 2 << 20
"""Most bytes of the second cache that are counted on; half of them are scratch on the stack."""
_FINE = 1 << 12
"""Arithmetic operations of an item on a target with many threads, at least."""
_BLOCK = 96
"""Most rows of a block."""
_COLUMN = (48, 192)
"""Most terms for which columns of a are read in place: by many panels, and by few."""


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """A kernel's constants, its sizes and how many items it runs."""

    spec: TileConfig
    division: Division[Dim]
    items: Dim


def schedule(
    problem: ContractionProblem, tile: Tile, target: Target, *, packed: bool = False
) -> TileSchedule:
    """The schedule of a problem whose a has the type of sums; `packed`: b consists of panels."""
    quarter = min(target.l2, _CACHE) // (4 * tile.dtype.itemsize)
    in_place = not packed and _reads_b_in_place(problem, tile, target)
    room = ScratchSizes(panels=2 * quarter, sums=quarter, packed=packed)
    blocks = _blocks(problem.at_hint(), tile, target, room, in_place)
    depth: Dim = blocks.depth
    width, height, split = blocks.width, blocks.height, blocks.depth < estimate(problem.k)
    if problem.is_open:
        blocks, split = _open_blocks(blocks, problem, tile, room)
        depth = blocks.depth if split else problem.k
        width, height = blocks.width, blocks.height
    most = _BLOCK - _BLOCK % tile.rows
    if problem.moments is not None:
        most = problem.moments.rows
        height = max(1, height // most) * most
    panels = -(-problem.n // tile.width)
    row_items, panel_items = -(-problem.m // height), -(-panels // width)
    division = Division(height, width, min(height, most), depth, row_items, panel_items)
    spec = TileConfig(
        tile=tile,
        b=tile.dtype if packed else problem.b.dtype,
        form=_form(problem),
        b_order=None if packed or problem.patches else order_of(problem.b.row, problem.b.column),
        patches=problem.patches,
        positions=problem.positions,
        batch=len(problem.batch),
        split=split,
        in_place=in_place,
        panels=2 * quarter,
        sums=max(quarter, width * height * tile.width) if split else most * tile.width,
        epilogue=problem.epilogue,
        measured=-1 if problem.moments is None else problem.moments.result,
    )
    return TileSchedule(spec, division, problem.count * row_items * panel_items)


def _blocks(
    problem: ContractionProblem, tile: Tile, target: Target, room: ScratchSizes, in_place: bool
) -> TileBlocks:
    """Blocks for extents that are numbers."""
    quarter, k = room.sums, int(problem.k)
    depth = _depth(k, tile, quarter)
    if target.fine and in_place and not problem.n % tile.width:
        depth = k  # Nothing is packed.
    width, height = _item(problem, tile, depth, quarter, target)
    if problem.tables and room.packed:
        depth = _depth(k, tile, quarter // 2)
        width, height = _table_item(problem, tile, quarter, target)
    return best_blocks(TileBlocks(depth, width, height), problem, tile, target, room)


def _open_blocks(
    blocks: TileBlocks, problem: ContractionProblem, tile: Tile, room: ScratchSizes
) -> tuple[TileBlocks, bool]:
    """Blocks for all extents, from those at the hints, and whether sums are built in steps.

    They are numbers, so that what rounds and what finds room depends on no call.
    """
    depth, width = blocks.depth, blocks.width
    height = -(-blocks.height // tile.rows) * tile.rows
    split = depth < estimate(problem.k)
    if not isinstance(problem.k, int):
        most = at_most(problem.k)
        split = most is None or most * tile.width > room.panels
        if split:
            depth = min(depth, room.panels // (4 * tile.width) // tile.lanes * tile.lanes)
        else:
            depth = most or depth
        if not room.packed:
            width = max(1, min(width, room.panels // (depth * tile.width)))
    if split:
        height = min(height, max(1, room.sums // (width * tile.width * tile.rows)) * tile.rows)
    return TileBlocks(depth, width, height), split


def _form(problem: ContractionProblem) -> Form:
    if problem.tables:
        return "picked" if problem.panel_terms else "table"
    a = problem.a
    return "column" if is_identical(a.row, 1) and not is_identical(a.column, 1) else "row"


def reads_in_place(problem: ContractionProblem, tile: Tile) -> bool:
    """Return whether tiles read a where it lies; else its rows are packed first."""
    a = problem.a
    by_column = is_identical(a.column, 1)
    if a.dtype is not tile.dtype or not (by_column or is_identical(a.row, 1)):
        return False
    # A column's elements lie on as many cache lines as there are terms; few of those stay near.
    many, few = _COLUMN
    terms, columns = estimate(problem.k), estimate(problem.n)
    return by_column or terms <= (few if columns <= 4 * tile.width else many)


def measures(problem: ContractionProblem) -> bool:
    """Return whether tiles store the measured result in whole vectors, in the type of the sums."""
    if problem.moments is None or problem.batch:
        return False
    if problem.moments.rows > 4 * _BLOCK:
        return False  # More would not stay in the first cache.
    result = problem.results[problem.moments.result]
    return (result.column, result.row) == (1, problem.n) and result.dtype is problem.sums


def _reads_b_in_place(problem: ContractionProblem, tile: Tile, target: Target) -> bool:
    """True if there are too few rows to be worth packing b, which is slower to read as it lies."""
    b = problem.b
    if not is_identical(b.column, 1) or b.dtype is not tile.dtype or problem.patches:
        return False
    if target.fine:
        return True
    stays = estimate(problem.k * b.row) * b.dtype.itemsize <= target.l2 // 2
    return estimate(problem.m) <= (8 if stays else 2) * tile.rows


def _depth(k: int, tile: Tile, quarter: int) -> int:
    """Terms per step: all of them while a panel of so many stays in half of the second cache."""
    if k * tile.width <= 2 * quarter:
        return k
    target = quarter // (2 * tile.width)
    parts = -(-k // target)
    return -(-k // (parts * tile.lanes)) * tile.lanes


def _item(
    problem: ContractionProblem, tile: Tile, depth: int, quarter: int, target: Target
) -> tuple[int, int]:
    """Panels and rows of an item: large ones pack little, many keep all threads busy."""
    m, count = int(problem.m), int(problem.count)
    panels, split = -(-int(problem.n) // tile.width), depth < problem.k
    width = max(1, min(panels, quarter // (max(1, depth) * tile.width), 8))
    height = m
    if split:
        height = min(height, max(tile.rows, quarter // (width * tile.width)))
    wanted = _wanted(problem, target)
    least = tile.rows if target.fine else 8 * tile.rows

    def items() -> int:
        return count * -(-m // height) * -(-panels // width)

    while items() < wanted:
        if height > 320 or (width == 1 and height > least):
            parts = -(-height // 2)
            height = -(-parts // tile.rows) * tile.rows
        elif width > 1:
            width = -(-width // 2)
        else:
            break
    return width, height


def _wanted(problem: ContractionProblem, target: Target) -> int:
    """Items that a target wants to have."""
    flops = int(problem.flops)
    if target.fine:
        return max(1, flops // _FINE)
    return max(1, min(_ITEMS, flops // _ITEM))


def _table_item(
    problem: ContractionProblem, tile: Tile, quarter: int, target: Target
) -> tuple[int, int]:
    """Panels and rows of an item whose panels lie ready and whose rows are found by tables.

    The elements of a block of rows lie scattered: they are to stay in the second cache, while
    panels, which are read in order, pass by.
    """
    m, count, panels = int(problem.m), int(problem.count), -(-int(problem.n) // tile.width)
    wanted = _wanted(problem, target)
    most = tile.rows if target.fine else _BLOCK - _BLOCK % tile.rows
    blocks = -(-m // most)
    height = -(-m // (blocks * tile.rows)) * tile.rows
    width = max(1, min(panels, quarter // (height * tile.width)))
    parts = max(-(-panels // width), -(-wanted // (count * -(-m // height))))
    return -(-panels // min(parts, panels)), min(height, m)
