"""Programs for many extents: a plan whose numbers are expressions, and what a call makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle.engine.devices.names import CompNode
from treadle.engine.extents.recall import recall
from treadle.engine.options import Options
from treadle.engine.plan import Interface
from treadle.graph.ir import Graph

if TYPE_CHECKING:
    from treadle.engine.extents.regime import Regime

__all__ = ["compile_regime", "recall"]


def compile_regime(
    graph: Graph,
    interface: Interface,
    options: Options,
    home: CompNode | None,
    extents: Mapping[str, int],
) -> Regime | str:
    """A program for these extents, and for all that answer alike; or why there is none.

    Args:
        graph: with symbols in its types.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        home: where it runs.
        extents: of the call that it is compiled for, by symbol.
    """
    from treadle.engine.extents import regime

    return regime.compile_regime(graph, interface, options, home, extents)
