"""Runners of a graph with symbols at any extents, for those who have the graph and no capture."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from treadle.engine.execute import Runner
from treadle.engine.execute.counters import Counters
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph

MOST_ALONE = 64
"""Programs for one set of extents that are kept where no plan serves many."""


class OpenRunners:
    """Programs of a graph at extents that come along.

    Extents of 0 and 1, which are empty or broadcast, are numbers; what is left open has plans that
    many extents share, or a program for each set of them.

    Args:
        graph: with symbols in its types.
        options: of the compilation.
        interface: which inputs are frozen or updated.
    """

    def __init__(self, graph: Graph, options: Options, interface: Interface) -> None:
        self._graph, self._options, self._interface = graph, options, interface
        self._plans: dict[tuple[tuple[str, int], ...], Plans] = {}
        self._alone: dict[tuple[int, ...], Runner] = {}
        self._gone = Counters()
        self._lock = threading.Lock()

    @property
    def made(self) -> int:
        """The number of programs that there are."""
        with self._lock:
            shared = sum(len(plans.regimes) for plans in self._plans.values())
            return shared + len(self._alone)

    @property
    def counters(self) -> Counters:
        """Cost of all runs, but for those of plans that gave way to others."""
        with self._lock:
            shared = [r.executor for plans in self._plans.values() for r in plans.on_host]
            return sum((r.counters for r in (*shared, *self._alone.values())), self._gone)

    def at(self, extents: Mapping[str, int]) -> Runner:
        """Return the program at extents, by symbol.

        Raises:
            ShapeError: the graph does not take them.
        """
        with self._lock:
            return self._shared(extents) or self._own(extents)

    def _shared(self, extents: Mapping[str, int]) -> Runner | None:
        small = {n: x for n, x in extents.items() if x < 2}
        others = {n: x for n, x in extents.items() if x >= 2}
        if not others:
            return None
        key = tuple(small.items())
        if key not in self._plans:
            graph = specialize(self._graph, small) if small else self._graph
            self._plans[key] = Plans(graph, self._options, self._interface)
        found = self._plans[key].at(others)
        return None if found is None else found[1]

    def _own(self, extents: Mapping[str, int]) -> Runner:
        key = tuple(extents.values())
        if key not in self._alone:
            graph = specialize(self._graph, extents)
            self._alone[key] = Stages(graph, self._interface, self._options).compile()
            while len(self._alone) > MOST_ALONE:
                oldest = self._alone.pop(next(iter(self._alone)))
                self._gone += oldest.counters
                oldest.close()
        return self._alone[key]


__all__ = ["OpenRunners"]
