"""Cells: boxes of extents with fixed edges, within which choices do not depend on calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from treadle.base.symbol import Expr, Relation, Symbol, symbol
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph, symbols_in

_EDGE, _STEP = 16, 8


@dataclass(frozen=True, slots=True)
class Cell:
    """For each symbol the range of extents, inclusive; prices are those in its middle."""

    ranges: Mapping[str, tuple[int, int]]

    @property
    def hints(self) -> dict[str, int]:
        """An extent inside each range, near the geometric mean of its ends."""
        return {n: _middle(low, high) for n, (low, high) in self.ranges.items()}

    def __str__(self) -> str:
        return ", ".join(f"{low} <= {n} <= {high}" for n, (low, high) in self.ranges.items())

    def holds(self, extents: Mapping[str, int]) -> bool:
        """Return whether extents lie in the box."""
        return all(low <= extents[n] <= high for n, (low, high) in self.ranges.items())

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
        found: dict[str, Symbol] = {s.name: s for t in graph.input_types for s in symbols_in(t)}
        values = {n: symbol(n, *self._range(s, graph.guards), s.multiple) for n, s in found.items()}
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


def cell_of(extents: Mapping[str, int]) -> Cell:
    """The cell of some extents: 2 to 15, 16 to 127, 128 to 1023, and on by eighths."""
    return Cell({name: _range(extent) for name, extent in extents.items()})


def _range(extent: int) -> tuple[int, int]:
    if extent < 2:
        return extent, extent
    low, high = 2, _EDGE
    while extent >= high:
        low, high = high, high * _STEP
    return low, high - 1


def among(low: int, high: int, count: int) -> list[int]:
    """Extents of a range: all, or both ends of each cell and about as many between as counted."""
    if high - low < count:
        return list(range(low, high + 1))
    found = {*np.geomspace(max(low, 1), high, count).round().astype(int).tolist(), low, high}
    at = max(low, 2)
    while at <= high:
        last = _range(at)[1]
        found |= {at, min(last, high)}
        at = last + 1
    return sorted(found)


def _middle(low: int, high: int) -> int:
    return max(round((low * high) ** 0.5) // 8 * 8, low) if high >= _EDGE else (low + high) // 2
