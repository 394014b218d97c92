"""The programs of one graph with symbols: plans for many extents, where they serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle.engine.devices.names import CompNode
from treadle.engine.extents import compile_regime, recall
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.ir import Graph

if TYPE_CHECKING:
    from treadle.engine.extents.regime import Regime

MOST_REGIMES = 32
"""Plans that are kept of one graph."""


class Plans:
    """Programs of a graph with symbols, by extents.

    Args:
        graph: with symbols in its types.
        options: of the compilation.
        interface: which inputs are frozen or updated.
        home: where it runs.
        alone: why each extents are to have a program of their own; "": plans are tried.

    Attributes:
        alone: the same, as it was found to be.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options,
        interface: Interface,
        home: CompNode | None = None,
        alone: str = "",
    ) -> None:
        self.regimes: list[Regime] = []
        self.alone = alone
        self._graph = graph
        self._given = interface, options, home
        self._is_static = all(t.is_static for t in graph.input_types)

    def at(self, graph: Graph, extents: Mapping[str, int]) -> Stages | None:
        """The program that a plan for many gives; None where extents have one of their own.

        Args:
            graph: the graph at these extents.
            extents: by symbol.
        """
        for regime in self.regimes:
            if regime.serves(extents):
                return regime.instance(graph, extents)
        if self.alone or self._is_static:
            return None
        known = recall(graph, *self._given, extents)
        if known is not None:
            return known
        made = compile_regime(self._graph, *self._given, extents)
        if isinstance(made, str):
            self.alone = made
            return None
        self.regimes.append(made)
        del self.regimes[:-MOST_REGIMES]
        return made.instance(graph, extents)
