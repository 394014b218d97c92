"""The programs of one graph with symbols: plans for many extents, where they serve."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.engine.devices.names import CompNode
from treadle.engine.execute.arenas import Arenas
from treadle.engine.execute.executor import ProgramInstance
from treadle.engine.execute.frames import At
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
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph

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
            self._origin = SharedGraph(*self._given)
            self.alone = refusal(self._origin)
        cell = cell_of(extents)
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
