"""Products in register tiles: operands packed where that pays, then the kernel with its blocks."""

from __future__ import annotations

from dataclasses import replace

from treadle.backends.api import Support, yes
from treadle.backends.codegen.contraction.shared.launch import Area, Launches, packing_launch
from treadle.backends.codegen.contraction.shared.pack import Packing, order_of
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile
from treadle.backends.codegen.contraction.tiles.kernel import contraction_kernel
from treadle.backends.codegen.contraction.tiles.schedule import reads_in_place, schedule
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered
from treadle.base.estimates import estimate


def claims(problem: ContractionProblem, target: Target) -> Support:
    """Accept every product: tiles refuse none."""
    return yes()


def lower(launches: Launches) -> Lowered:
    """Register tiles over panels."""
    multiply_in_tiles(launches)
    return launches.lowered()


def multiply_in_tiles(launches: Launches) -> None:
    """The product, its operands packed where that pays."""
    rows, columns = estimate(launches.problem.m), estimate(launches.problem.n)
    tile = choose_tile(launches.target, launches.dtype, rows, columns)
    if not reads_in_place(launches.problem, tile):
        launches.pack_rows(tile)
    a, b = launches.problem.a, launches.problem.b
    packed = launches.is_frozen(b) and not launches.problem.patches
    # Panels have the type of sums: those of a narrow b beside a wide a would be twice as large.
    packed = packed and b.dtype in (a.dtype, tile.dtype)
    if packed:
        _pack_panels(launches, tile)
    multiply(launches, tile, packed=packed)


def multiply(launches: Launches, tile: Tile, *, packed: bool = False) -> None:
    """The product itself; `packed`: b has been made panels."""
    plan = schedule(launches.problem, tile, launches.target, packed=packed)
    launches.add(contraction_kernel(plan.spec), launches.arguments(plan.division), plan.items)


def _pack_panels(launches: Launches, tile: Tile) -> None:
    """Make b panels, once for all runs."""
    problem, b = launches.problem, launches.problem.b
    packing = Packing(tile, b.dtype, order_of(b.row, b.column), True, len(problem.batch))
    panels = -(-problem.n // tile.width)
    steps, count = launches.distinct(b, panels * problem.k * tile.width)
    place = launches.keep(count * tile.dtype.itemsize + 64)
    area = Area(problem.k, problem.n, b.row, b.column, tile.width, steps)
    launches.prelude.append(packing_launch(packing, b, place, area))
    made = replace(b, kind="kept", index=place.index, dtype=tile.dtype, offset=0)
    made = replace(made, batch=tuple(s.target for s in steps), row=tile.width, column=1)
    launches.problem = replace(problem, b=made)
