"""Layered drawings of directed acyclic graphs: where boxes go, and the ways of the edges.

After Sugiyama, Tagawa and Toda (1981), Methods for visual understanding of hierarchical system
structures: layers by longest path, stops for edges that pass a layer, orders by the mean place of
the neighbors, and then coordinates that draw neighbors together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]
GAP, BESIDE, LEVEL = 24.0, 8.0, 40.0
"""Space between boxes of a layer, between edges that pass it, and between layers."""
SWEEPS = 8
MOST_STOPS = 40
"""Layers that an edge may pass and still get a way of its own; a longer one is drawn straight."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Centers of the boxes, the points of each edge from its source to its target, and the size."""

    centers: list[Point]
    routes: list[list[Point]]
    width: float
    height: float


def arrange(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Place boxes so that edges go down.

    Args:
        sizes: width and height of each box.
        edges: pairs of boxes, from a lower number to a higher one.
    """
    return _Arrangement(sizes, edges).drawing()


class _Arrangement:
    """Boxes and stops, which are boxes without size, in layers."""

    def __init__(self, sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> None:
        self.sizes = list(sizes)
        self.edges = edges
        self.level = _levels(len(sizes), edges)
        self.above: list[list[int]] = [[] for _ in sizes]
        self.below: list[list[int]] = [[] for _ in sizes]
        self.chains = [self._chain(a, b) for a, b in edges]
        self.layers: list[list[int]] = [[] for _ in range(max(self.level, default=-1) + 1)]
        for box, level in enumerate(self.level):
            self.layers[level].append(box)
        self.x = [0.0] * len(self.sizes)

    def _chain(self, source: int, target: int) -> list[int]:
        """The edge's source, stops and target, linked to one another."""
        between = range(self.level[source] + 1, self.level[target])
        chain = [source]
        for level in between if len(between) <= MOST_STOPS else ():
            self.sizes.append((0.0, 0.0))
            self.level.append(level)
            self.above.append([])
            self.below.append([])
            chain.append(len(self.sizes) - 1)
        chain.append(target)
        for a, b in pairwise(chain):
            self.below[a].append(b)
            self.above[b].append(a)
        return chain

    def drawing(self) -> Drawing:
        self._sort()
        self._spread()
        left = min((x - w / 2 for x, (w, _) in zip(self.x, self.sizes, strict=True)), default=0.0)
        x = [v - left for v in self.x]
        right = max((v + w / 2 for v, (w, _) in zip(x, self.sizes, strict=True)), default=0.0)
        y, top = [0.0] * len(x), 0.0
        for layer in self.layers:
            height = max(self.sizes[b][1] for b in layer)
            for box in layer:
                y[box] = top + height / 2
            top += height + LEVEL
        routes = []
        for chain in self.chains:
            a, *stops, b = chain
            start = x[a], y[a] + self.sizes[a][1] / 2
            end = x[b], y[b] - self.sizes[b][1] / 2
            routes.append([start, *((x[s], y[s]) for s in stops), end])
        count = len(self.sizes) - sum(len(c) - 2 for c in self.chains)
        centers = list(zip(x[:count], y[:count], strict=True))
        return Drawing(centers, routes, right, max(top - LEVEL, 0.0))

    # -- order within layers ---------------------------------------------------------------

    def _sort(self) -> None:
        """Sort layers by the mean place of neighbors, down and up; the best orders stay."""
        best, fewest = [list(layer) for layer in self.layers], self._crossings()
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            layers, neighbors = (
                (self.layers, self.above) if down else (self.layers[::-1], self.below)
            )
            for before, layer in pairwise(layers):
                place = {box: float(i) for i, box in enumerate(before)}
                own = {box: float(i) for i, box in enumerate(layer)}
                mean = {
                    b: _mean([place[n] for n in neighbors[b] if n in place], own[b]) for b in layer
                }
                layer.sort(key=mean.__getitem__)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _crossings(self) -> int:
        found = 0
        for upper, lower in pairwise(self.layers):
            place = {box: i for i, box in enumerate(lower)}
            passed: list[int] = []
            for box in upper:
                ends = sorted(place[b] for b in self.below[box] if b in place)
                found += sum(len(passed) - bisect_left(passed, end + 1) for end in ends)
                for end in ends:
                    insort(passed, end)
        return found

    # -- coordinates -----------------------------------------------------------------------

    def _spread(self) -> None:
        for layer in self.layers:
            self._place(layer, [0.0] * len(layer))
        for sweep in range(2 * SWEEPS):
            # The last one goes down, so that what has one maker stands below it.
            up = sweep % 2 == 0
            for layer in self.layers[::-1] if up else self.layers:
                wanted = []
                for box in layer:
                    above, below = self.above[box], self.below[box]
                    near = (below or above) if up else (above or below)
                    wanted.append(_mean([self.x[n] for n in near], self.x[box]))
                self._place(layer, wanted)

    def _place(self, layer: Sequence[int], wanted: Sequence[float]) -> None:
        """Coordinates near those that are wanted, in the layer's order, without overlaps.

        Pushing to the right from the left, and to the left from the right, are both in order, and
        so is their mean.
        """
        if not layer:
            return
        widths = [(self.sizes[a][0] + self.sizes[b][0]) / 2 for a, b in pairwise(layer)]
        apart = [wide + GAP if wide else BESIDE for wide in widths]
        right, left = [wanted[0]], [wanted[-1]]
        for want, gap in zip(wanted[1:], apart, strict=True):
            right.append(max(want, right[-1] + gap))
        for want, gap in zip(wanted[-2::-1], apart[::-1], strict=True):
            left.append(min(want, left[-1] - gap))
        for box, a, b in zip(layer, right, left[::-1], strict=True):
            self.x[box] = (a + b) / 2


def _levels(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of every box; what nothing leads to stands right above what it leads to."""
    level, lowest, fed = [0] * count, [count] * count, [False] * count
    for source, target in sorted(edges):
        level[target] = max(level[target], level[source] + 1)
        fed[target] = True
    for source, target in edges:
        lowest[source] = min(lowest[source], level[target])
    return [level[b] if fed[b] or lowest[b] == count else lowest[b] - 1 for b in range(count)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
