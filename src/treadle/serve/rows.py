"""Programs of a model for every number of rows that requests may have together."""

from __future__ import annotations

from treadle.base.errors import ShapeError, TreadleError
from treadle.base.guards import deciding
from treadle.base.log import get_logger
from treadle.base.symbol import symbol
from treadle.engine.execute import Runner
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.plan import Interface
from treadle.graph.evaluate import broken_guard
from treadle.graph.ir import Graph
from treadle.graph.retype import retyped

_ROWS = "rows"


def programs_by_rows(graph: Graph, most: int, options: Options) -> dict[int, Runner]:
    """Return programs for 2 to `most` rows, of one plan for each range of numbers.

    Args:
        graph: whose inputs have rows along axis 0, a number of them.
        most: the largest number of rows; 2 at least.
        options: of the compilation.

    Returns:
        Programs by number; none where the graph takes no symbol, or a number needs a program of
        its own.
    """
    try:
        plans = Plans(_with_symbol(graph, most), options, Interface())
        found = {rows: plans.at({_ROWS: rows}) for rows in range(2, most + 1)}
    except TreadleError as error:
        get_logger("serve").debug("%s: no plan for many rows: %s", graph.name, error.problem)
        return {}
    made = {rows: one[1] for rows, one in found.items() if one is not None}
    if len(made) < len(found):
        get_logger("serve").debug("%s: no plan for many rows: %s", graph.name, plans.alone)
        return {}
    return dict(made)


def _with_symbol(graph: Graph, most: int) -> Graph:
    """The graph for any number of rows.

    Raises:
        TreadleError: an op does not take it, or not all numbers up to the largest.
    """
    rows = symbol(_ROWS, 2)
    with deciding({_ROWS: most}) as decisions:
        made = retyped(graph, [(rows, *t.shape[1:]) for t in graph.input_types])
    for number in range(2, most + 1):
        guard = broken_guard(decisions.guards, {_ROWS: number})
        if guard is not None:
            raise ShapeError(graph.name, f"{guard} does not hold for {number} rows")
    return made
