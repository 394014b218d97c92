"""Cells: boxes of extents with fixed edges, within which choices do not depend on calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from treadle.base.extent import Symbol
from treadle.base.symbol import Expr, Relation, symbol
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph, symbols_in

_EDGE, _STEP = 16, 8


@dataclass(frozen=True, slots=True)
class Cell:
    """For each symbol the range of extents, inclusive; prices are those in its middle.

    `told` are extents in ranges at which they are to be taken instead.
    """

    ranges: Mapping[str, tuple[int, int]]
    told: Mapping[str, int] = field(default_factory=dict)

    @property
    def hints(self) -> dict[str, int]:
        """An extent inside each range: that told, or near the geometric mean of its ends."""
        return {n: self.told.get(n) or _middle(*ends) for n, ends in self.ranges.items()}

    def __str__(self) -> str:
        ranges = [f"{low} <= {n} <= {high}" for n, (low, high) in self.ranges.items()]
        return ", ".join([*ranges, *(f"{n} at {hint}" for n, hint in self.told.items())])

    def holds(self, extents: Mapping[str, int]) -> bool:
        """Return whether extents lie in the box."""
        return all([low <= extents[n] <= high for n, (low, high) in self.ranges.items()])

    def _range(self, known: Symbol, guards: Iterable[Relation]) -> tuple[int, int]:
        """Return the range of a symbol's extents in the box: what it declares, or needs, may be
        narrower.
        """
        low, high = self.ranges[known.name]
        low, high = max(low, known.low), high if known.high is None else min(high, known.high)
        for guard in guards:
            low, high = _narrowed(guard, known, low, high)
        return low, high

    def of(self, graph: Graph) -> Graph:
        """The graph with symbols that have these ranges."""
        found = _symbols(graph).items()
        values = {n: symbol(n, *self._range(s, graph.guards), s.multiple) for n, s in found}
        return specialize(graph, values)


def _narrowed(guard: Relation, known: Symbol, low: int, high: int) -> tuple[int, int]:
    """A range without the extents that a guard on this symbol alone excludes."""
    expr = guard.expr
    if guard.kind != ">=0" or not isinstance(expr, Expr):
        return low, high
    (atoms, factor), *others = expr.terms
    constant = others[0][1] if others else 0
    if atoms != (known,) or len(others) > 1 or (others and others[0][0]):
        return low, high
    if factor > 0:
        return max(low, -(constant // factor)), high
    return low, min(high, constant // -factor)


def cell_of(extents: Mapping[str, int], graph: Graph) -> Cell:
    """The cell of extents of a graph: 2 to 15, 16 to 127, 128 to 1023, and on by eighths.

    Where the graph's symbols have edges, cells begin at these, and the last one ends with the
    symbol, or goes on by eighths.
    """
    known = _symbols(graph)
    ranges = {name: _range(extent, known.get(name)) for name, extent in extents.items()}
    hints = {n: known[n].hint for n in ranges if n in known}
    told = {n: hint for n, hint in hints.items() if hint and ranges[n][0] <= hint <= ranges[n][1]}
    return Cell(ranges, told)


def _symbols(graph: Graph) -> dict[str, Symbol]:
    return {s.name: s for t in graph.input_types for s in symbols_in(t)}


def _range(extent: int, known: Symbol | None = None) -> tuple[int, int]:
    if extent < 2:
        return extent, extent
    low = 2
    for edge in _edges(known):
        if extent < edge:
            return low, edge - 1
        low = max(low, edge)
    return low, extent  # Beyond what is declared.


def _edges(known: Symbol | None) -> Iterator[int]:
    edge = _EDGE
    if known is not None and known.edges:
        yield from known.edges
        if known.high is not None:
            yield known.high + 1
            return
        edge = max(known.edges[-1], 2) * _STEP
    while True:
        yield edge
        edge *= _STEP


def among(low: int, high: int, count: int, known: Symbol | None = None) -> list[int]:
    """Extents of a range: all, or both ends of each cell and about as many between as counted.

    `known` is their symbol, if it has edges of its own.
    """
    if high - low < count:
        return list(range(low, high + 1))
    found = {*np.geomspace(max(low, 1), high, count).round().astype(int).tolist(), low, high}
    at = max(low, 2)
    while at <= high:
        last = _range(at, known)[1]
        found |= {at, min(last, high)}
        at = last + 1
    return sorted(found)


def _middle(low: int, high: int) -> int:
    return max(round((low * high) ** 0.5) // 8 * 8, low) if high >= _EDGE else (low + high) // 2
