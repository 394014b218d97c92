"""Recall of what an earlier process took from plans for many extents, found on disk without any
stage.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.engine.devices.names import CompNode
from treadle.engine.extents.cells import cell_of
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.targets.compiled import Compiled
from treadle.graph.ir import Graph


def recall(
    graph: Graph,
    interface: Interface,
    options: Options,
    home: CompNode | None,
    extents: Mapping[str, int],
) -> Stages | None:
    """A program at these extents that an earlier process took from a plan for many.

    Args:
        graph: what was captured, at these extents.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        home: where it runs.
        extents: by symbol.
    """
    made = Stages(graph, interface, options, home)
    if not isinstance(made.target, Compiled):
        return None
    running = made.target.recall(made.source, made.report, str(cell_of(extents)))
    if running is None:
        return None
    made.running = running
    return made
