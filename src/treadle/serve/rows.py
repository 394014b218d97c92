"""Programs of a model for every number of rows that requests may have together."""

from __future__ import annotations

from treadle.base.errors import ShapeError, TreadleError
from treadle.base.guards import deciding
from treadle.base.log import get_logger
from treadle.base.symbol import Dim, Relation, is_identical, symbol
from treadle.engine.execute import Runner
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.engine.plan import Interface
from treadle.graph.evaluate import broken_guard, specialize
from treadle.graph.ir import Graph, lone_symbol
from treadle.graph.retype import retyped

_ROWS = "rows"


def programs_by_rows(model: Model, most: int, options: Options) -> dict[int, Runner]:
    """Return programs for 2 to `most` rows, of one plan for each range of numbers.

    Args:
        model: whose inputs have rows along axis 0, a number of them.
        most: the largest number of rows; 2 at least.
        options: of the compilation.

    Returns:
        Programs by number; none where the graph takes no symbol, or a number needs a program of
        its own.
    """
    graph = model.graph
    try:
        plans = Plans(_with_symbol(model, most), options, Interface())
        found = {rows: plans.at({_ROWS: rows}) for rows in range(2, most + 1)}
    except TreadleError as error:
        get_logger("serve").debug("%s: no plan for many rows: %s", graph.name, error.problem)
        return {}
    made = {rows: one[1] for rows, one in found.items() if one is not None}
    if len(made) < len(found):
        get_logger("serve").debug("%s: no plan for many rows: %s", graph.name, plans.alone)
        return {}
    return dict(made)


def _with_symbol(model: Model, most: int) -> Graph:
    """The graph for any number of rows.

    Raises:
        TreadleError: an op does not take it, or not all numbers up to the largest.
    """
    rows, graph, needs = symbol(_ROWS, 2), model.graph, list[Relation]()
    names = _open_rows(model, rows)
    with deciding({_ROWS: most}) as decisions:
        if names is not None and model.opened is not None:
            needs += model.opened.graph.guards
            made = specialize(model.opened.graph, names)
        else:
            made = retyped(graph, [(rows, *t.shape[1:]) for t in graph.input_types])
    for number in range(2, most + 1):
        at = {n: number if d is rows else int(d) for n, d in (names or {}).items()}
        guard = broken_guard((*needs, *decisions.guards), {_ROWS: number, **at})
        if guard is not None:
            raise ShapeError(graph.name, f"{guard} does not hold for {number} rows")
    return made


def _open_rows(model: Model, rows: Dim) -> dict[str, Dim] | None:
    """Extents of the model's graph for other sizes, by symbol, with rows along axis 0 of inputs.

    None where it has no such graph, or that is for other extents.
    """
    known = model.opened
    if known is None or known.closed is not model.graph or known.is_fixed:
        return None
    found: dict[str, Dim] = {}
    for value, own in zip(known.graph.inputs, model.graph.inputs, strict=True):
        for axis, (extent, now) in enumerate(zip(value.type.shape, own.type.shape, strict=True)):
            named = lone_symbol(extent)
            wanted = now if axis else rows
            if named is None and axis:
                continue
            if named is None or (axis and now < named.low):
                return None
            if not is_identical(found.setdefault(named.name, wanted), wanted):
                return None
    return found
