"""The launch of dot products."""

from __future__ import annotations

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.dots.kernel import ROWS, Dots, dots_kernel
from treadle.backends.codegen.contraction.shared.items import Division
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim, is_identical

_COLUMNS = 8
"""Most columns that are read at a time, each a stream of its own. Sixteen that lie a power of two
apart drive one another out of the first cache: with 256 terms they took 1.4 times as long."""
_LEAST = 8
"""Terms of a sum from which vectors run along them."""


def claims(problem: ContractionProblem, target: Target) -> Support:
    """Claim products of few rows and a matrix with contiguous columns."""
    if not is_identical(problem.b.row, 1) or not is_identical(problem.a.column, 1):
        return no("layout", "terms of a sum are not neighbors in both operands")
    if estimate(problem.k) < _LEAST:
        return no("shape", f"sums of {problem.k} terms, of which {_LEAST} are the fewest")
    # Last: of a symbolic extent this is a guard.
    if not problem.m <= ROWS:
        return no("shape", f"{problem.m} rows, of which {ROWS} are the most")
    return yes()


def lower(launches: Launches) -> Lowered:
    """Row by column."""
    problem, target = launches.problem, launches.target
    tile = Tile(launches.dtype, ROWS, ROWS, 2, min(target.lanes(launches.dtype), _COLUMNS))
    spec = Dots(tile, problem.a.dtype, problem.b.dtype, len(problem.batch), problem.epilogue)
    division, items = _division(problem, tile)
    launches.add(dots_kernel(spec), launches.arguments(division), items)
    return launches.lowered()


def _division(problem: ContractionProblem, tile: Tile) -> tuple[Division[Dim], Dim]:
    """Return the division of the kernel, and its items."""
    panels = -(-problem.n // tile.width)
    bytes_of_panel = estimate(problem.k) * tile.width * problem.b.dtype.itemsize
    width = max(1, min(estimate(panels), (1 << 16) // bytes_of_panel))
    panel_items = -(-panels // width)
    division = Division(problem.m, width, problem.m, problem.k, 1, panel_items)
    return division, problem.count * panel_items
