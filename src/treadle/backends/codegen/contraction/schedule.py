"""Schedules: which kernel a contraction runs, and how large its blocks and items are."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.backends.codegen.contraction.blocks import Blocks, Room, best_blocks
from treadle.backends.codegen.contraction.dots import ROWS
from treadle.backends.codegen.contraction.kernel import Spec
from treadle.backends.codegen.contraction.pack import order_of
from treadle.backends.codegen.contraction.problem import Problem
from treadle.backends.codegen.contraction.tile import Form, Tile
from treadle.backends.codegen.scalars.code import compute_dtype
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType

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
class Schedule:
    """A kernel's constants, its sizes and how many items it runs."""

    spec: Spec
    sizes: dict[str, int]
    items: int


def schedule(problem: Problem, tile: Tile, target: Target, *, packed: bool = False) -> Schedule:
    """The schedule of a problem whose a has the type of sums; `packed`: b consists of panels."""
    quarter = min(target.l2, _CACHE) // (4 * tile.dtype.itemsize)
    in_place = not packed and _reads_b_in_place(problem, tile, target)
    depth = _depth(problem.k, tile, quarter)
    if target.fine and in_place and not problem.n % tile.width:
        depth = problem.k  # Nothing is packed.
    width, height = _item(problem, tile, depth, quarter, target)
    if problem.tables and packed:
        depth = _depth(problem.k, tile, quarter // 2)
        width, height = _table_item(problem, tile, quarter, target)
    room = Room(panels=2 * quarter, sums=quarter, packed=packed)
    blocks = best_blocks(Blocks(depth, width, height), problem, tile, target, room)
    depth, width, height = blocks.depth, blocks.width, blocks.height
    split = depth < problem.k
    most = _BLOCK - _BLOCK % tile.rows
    if problem.moments is not None:
        most = problem.moments.rows
        height = max(1, height // most) * most
    panels = -(-problem.n // tile.width)
    row_items, panel_items = -(-problem.m // height), -(-panels // width)
    sizes = {"height": height, "width": width, "block": min(height, most), "depth": depth}
    sizes |= {"row_items": row_items, "panel_items": panel_items}
    spec = Spec(
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
    return Schedule(spec, sizes, problem.count * row_items * panel_items)


def _form(problem: Problem) -> Form:
    if problem.tables:
        return "picked" if problem.panel_terms else "table"
    return "column" if problem.a.row == 1 and problem.a.column != 1 else "row"


def reads_in_place(problem: Problem, tile: Tile) -> bool:
    """Whether tiles read a where it lies; else its rows are packed first."""
    a = problem.a
    if a.dtype is not tile.dtype or 1 not in (a.row, a.column):
        return False
    # A column's elements lie on as many cache lines as there are terms; few of those stay near.
    many, few = _COLUMN
    return a.column == 1 or problem.k <= (few if problem.n <= 4 * tile.width else many)


def sums_dtype(problem: Problem) -> DType:
    """The type in which tiles multiply and add."""
    return dt.int32 if problem.a.integer else compute_dtype(problem.a.dtype)


def is_dots(problem: Problem) -> bool:
    """Whether few rows meet a matrix with contiguous columns."""
    lies = problem.b.row == 1 and problem.a.column == 1
    return problem.m <= ROWS and lies and problem.k >= 8


def measures(problem: Problem) -> bool:
    """Whether tiles store the measured result in whole vectors, in the type of the sums."""
    if problem.moments is None or problem.batch or is_dots(problem):
        return False
    if problem.moments.rows > 4 * _BLOCK:
        return False  # More would not stay in the first cache.
    result = problem.results[problem.moments.result]
    return (result.column, result.row) == (1, problem.n) and result.dtype is sums_dtype(problem)


def dots_sizes(problem: Problem, tile: Tile) -> tuple[dict[str, int], int]:
    """Sizes of the kernel of dot products, and its items."""
    panels = -(-problem.n // tile.width)
    bytes_of_panel = problem.k * tile.width * problem.b.dtype.itemsize
    width = max(1, min(panels, (1 << 16) // bytes_of_panel))
    panel_items = -(-panels // width)
    sizes = {"height": problem.m, "width": width, "block": problem.m, "depth": problem.k}
    sizes |= {"row_items": 1, "panel_items": panel_items}
    return sizes, problem.count * panel_items


def _reads_b_in_place(problem: Problem, tile: Tile, target: Target) -> bool:
    """Whether there are too few rows to be worth packing b, which is slower to read as it lies."""
    b = problem.b
    if b.column != 1 or b.dtype is not tile.dtype or problem.patches:
        return False
    if target.fine:
        return True
    stays = problem.k * b.row * b.dtype.itemsize <= target.l2 // 2
    return problem.m <= (8 if stays else 2) * tile.rows


def _depth(k: int, tile: Tile, quarter: int) -> int:
    """Terms per step: all of them while a panel of so many stays in half of the second cache."""
    if k * tile.width <= 2 * quarter:
        return k
    target = quarter // (2 * tile.width)
    parts = -(-k // target)
    return -(-k // (parts * tile.lanes)) * tile.lanes


def _item(
    problem: Problem, tile: Tile, depth: int, quarter: int, target: Target
) -> tuple[int, int]:
    """Panels and rows of an item: large ones pack little, many keep all threads busy."""
    panels, split = -(-problem.n // tile.width), depth < problem.k
    width = max(1, min(panels, quarter // (max(1, depth) * tile.width), 8))
    height = problem.m
    if split:
        height = min(height, max(tile.rows, quarter // (width * tile.width)))
    wanted = _wanted(problem, target)
    least = tile.rows if target.fine else 8 * tile.rows

    def items() -> int:
        return problem.count * -(-problem.m // height) * -(-panels // width)

    while items() < wanted:
        if height > 320 or (width == 1 and height > least):
            parts = -(-height // 2)
            height = -(-parts // tile.rows) * tile.rows
        elif width > 1:
            width = -(-width // 2)
        else:
            break
    return width, height


def _wanted(problem: Problem, target: Target) -> int:
    """Items that a target wants to have."""
    if target.fine:
        return max(1, problem.flops // _FINE)
    return max(1, min(_ITEMS, problem.flops // _ITEM))


def _table_item(problem: Problem, tile: Tile, quarter: int, target: Target) -> tuple[int, int]:
    """Panels and rows of an item whose panels lie ready and whose rows are found by tables.

    The elements of a block of rows lie scattered: they are to stay in the second cache, while
    panels, which are read in order, pass by.
    """
    panels = -(-problem.n // tile.width)
    wanted = _wanted(problem, target)
    most = tile.rows if target.fine else _BLOCK - _BLOCK % tile.rows
    blocks = -(-problem.m // most)
    height = -(-problem.m // (blocks * tile.rows)) * tile.rows
    width = max(1, min(panels, quarter // (height * tile.width)))
    parts = max(-(-panels // width), -(-wanted // (problem.count * -(-problem.m // height))))
    return -(-panels // min(parts, panels)), min(height, problem.m)
