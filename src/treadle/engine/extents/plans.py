"""The programs of one graph with symbols: plans for many extents, where they serve."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.engine.devices.names import CompNode
from treadle.engine.execute.arenas import Arenas
from treadle.engine.execute.executor import ProgramInstance
from treadle.engine.extents import compile_regime, refusal
from treadle.engine.extents.cells import cell_of
from treadle.engine.extents.regime import Regime, SharedGraph, recall_regime
from treadle.engine.options import Options
from treadle.engine.plan import Interface
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
        self.regimes: list[Regime] = []
        self.alone = alone
        self._given = graph, interface, options, home, Arenas()
        self._origin: SharedGraph | None = None
        self._numbers: dict[str, int] = {}
        """The number of programs that each cell has had."""

    def at(self, extents: Mapping[str, int]) -> tuple[Regime, ProgramInstance] | None:
        """The program at extents, by symbol; None where they have one of their own."""
        if self.alone:
            return None
        for regime in self.regimes:
            if regime.cell.holds(extents):
                found = regime.at(tuple([extents[n] for n in regime.scheme.symbols]))
                if found is not None:
                    return regime, found
        return self._made(extents)

    def _made(self, extents: Mapping[str, int]) -> tuple[Regime, ProgramInstance] | None:
        """The program at extents that none of those in memory serves: out of the cache, or new."""
        if self._origin is None:
            self._origin = SharedGraph(*self._given)
            self.alone = refusal(self._origin)
        cell = cell_of(extents)
        number = self._numbers.get(str(cell), 0)
        while not self.alone:
            made = recall_regime(self._origin, cell, number)
            found = made or compile_regime(self._origin, extents, number)
            if isinstance(found, str):
                self.alone = found
                break
            number += 1
            self._numbers[str(cell)] = number
            self.regimes.append(found)
            del self.regimes[:-MOST_REGIMES]
            at = found.at(tuple([extents[n] for n in found.scheme.symbols]))
            if at is not None:
                return found, at
            if made is None:
                break
        return None
