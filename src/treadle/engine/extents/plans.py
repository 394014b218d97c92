"""The programs of one graph with symbols: plans for many extents, where they serve.

`Plans` are for those who have a capture, `OpenRunners` for those who have the graph alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.engine.devices.names import CompNode
from treadle.engine.devices.placement import HOST
from treadle.engine.execute import Runner
from treadle.engine.execute.arenas import Arenas
from treadle.engine.execute.counters import Counters
from treadle.engine.execute.executor import ProgramInstance
from treadle.engine.execute.frames import At
from treadle.engine.execute.segments import NO_EXTENTS, Others
from treadle.engine.extents import compile_regime, refusal
from treadle.engine.extents.cells import cell_of
from treadle.engine.extents.regime import (
    DeviceRegime,
    OpenProgram,
    Regime,
    SharedGraph,
    recall_regime,
)
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.targets.compiled import without_segments
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph

MOST_REGIMES = 32
"""Plans that are kept of one graph."""
MOST_ALONE = 64
"""Programs for one set of extents that are kept where no plan serves many."""


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
        self.regimes: list[OpenProgram] = []
        self.alone = alone
        self._given = graph, interface, options, home, Arenas()
        self._is_on_host = home is None or home.on_host
        self._origin: SharedGraph | None = None
        self._numbers: dict[str, int] = {}
        """The number of programs that each cell has had."""

    @property
    def on_host(self) -> list[Regime]:
        """Plans of the host, as far as there are."""
        return [r for r in self.regimes if isinstance(r, Regime)]

    def at(self, extents: Mapping[str, int]) -> tuple[Regime, ProgramInstance] | None:
        """The program of the host at extents, by symbol; None where they have one of their own."""
        if self.alone or not self._is_on_host:
            return None
        for regime in self.regimes:
            if regime.cell.holds(extents) and isinstance(regime, Regime):
                found = regime.at(tuple([extents[n] for n in regime.scheme.symbols]))
                if found is not None:
                    return regime, found
        made = self._made(extents)
        if made is None or not isinstance(made[0], Regime):
            return None
        return made[0], ProgramInstance(made[0].executor, made[1])

    def stages(self, extents: Mapping[str, int]) -> Stages:
        """A program for these extents alone; a device has its kernels from a plan for many."""
        graph, interface, options, home, _ = self._given
        found = None if self.alone or self._is_on_host else self._on_device(extents)
        return found or Stages(specialize(graph, extents), interface, options, home)

    def _on_device(self, extents: Mapping[str, int]) -> Stages | None:
        """The program of a device at extents, out of a plan for many; None where there is none."""
        for regime in self.regimes:
            if regime.cell.holds(extents) and isinstance(regime, DeviceRegime):
                at = regime.numbers(tuple([extents[n] for n in regime.scheme.symbols]))
                if at is not None:
                    return regime.stages(at)
        made = self._made(extents)
        if made is None or not isinstance(made[0], DeviceRegime):
            return None
        return made[0].stages(made[1])

    def _made(self, extents: Mapping[str, int]) -> tuple[OpenProgram, At] | None:
        """The program at extents that none of those in memory serves: out of the cache, or new."""
        if self._origin is None:
            self._origin = SharedGraph(*self._given, _others(self._given[2]))
            self.alone = refusal(self._origin)
        cell = cell_of(extents, self._origin.graph)
        number = self._numbers.get(str(cell), 0)
        while not self.alone:
            made = recall_regime(self._origin, cell, number) if self._is_on_host else None
            found = made or compile_regime(self._origin, extents, number)
            if isinstance(found, str):
                self.alone = found
                break
            number += 1
            self._numbers[str(cell)] = number
            self.regimes.append(found)
            del self.regimes[:-MOST_REGIMES]
            at = found.numbers(tuple([extents[n] for n in found.scheme.symbols]))
            if at is not None:
                return found, at
            if made is None:
                break
        return None


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


def _others(options: Options) -> Others:
    """Return what runs segments of a program whose engine has failed."""

    def by_others(body: Graph, frozen: tuple[bool, ...]) -> Callable[..., Sequence[Any]]:
        runners = OpenRunners(body, without_segments(options, HOST), Interface(frozen))

        def run(arrays: Sequence[Any], extents: Mapping[str, int] = NO_EXTENTS) -> Sequence[Any]:
            return runners.at(extents).run(arrays)

        return run

    return by_others
