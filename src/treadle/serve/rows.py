"""Programs of a model for every number of rows that requests may have together."""

from __future__ import annotations

from treadle.base.errors import ShapeError
from treadle.base.guards import deciding
from treadle.base.symbol import symbol
from treadle.engine.execute import ProgramInstance
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.engine.plan import Interface
from treadle.graph.evaluate import broken_guard
from treadle.graph.ir import Graph

_ROWS = "rows"


def programs_by_rows(model: Model, most: int, options: Options) -> dict[int, ProgramInstance]:
    """Return programs for 2 to `most` rows, of one plan for each range of numbers.

    Args:
        model: whose inputs have rows along axis 0, a number of them.
        most: the largest number of rows; 2 at least.
        options: of the compilation.

    Raises:
        TreadleError: the model does not take all of them, or one needs a program of its own.
    """
    plans = Plans(_with_symbol(model, most), options, Interface())
    made: dict[int, ProgramInstance] = {}
    for rows in range(2, most + 1):
        found = plans.at({_ROWS: rows})
        if found is None:
            raise ShapeError(model.graph.name, plans.alone)
        made[rows] = found[1]
    return made


def _with_symbol(model: Model, most: int) -> Graph:
    """The graph for any number of rows.

    Raises:
        TreadleError: an op does not take it, or not all numbers up to the largest.
    """
    rows, graph = symbol(_ROWS, 2), model.graph
    with deciding({_ROWS: most}) as decisions:
        made = model.at([(rows, *t.shape[1:]) for t in graph.input_types])
    for number in range(2, most + 1):
        guard = broken_guard(decisions.guards, {_ROWS: number})
        if guard is not None:
            raise ShapeError(graph.name, f"{guard} does not hold for {number} rows")
    return made
