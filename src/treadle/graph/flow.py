"""Minimum cuts, by which stages split programs at least cost.

Algorithm: Dinic 1970, Algorithm for solution of a problem of maximum flow in networks with power
estimation: shortest augmenting paths, a level at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from treadle.base.errors import GraphError

FOREVER = float("inf")
"""Capacity of an edge that is never cut."""


class Cut:
    """A network under construction; nodes are any hashable keys."""

    __slots__ = ("_capacity", "_edges", "_number", "_target")

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []
        # Edge 2 * i and its reverse 2 * i + 1 stand beside one another.
        self._target: list[int] = []
        self._capacity: list[float] = []

    def edge(self, source: Hashable, target: Hashable, capacity: float) -> None:
        """Pay `capacity` where `source` ends up on the first side and `target` on the other."""
        if capacity <= 0:
            return
        for a, b, room in ((source, target, capacity), (target, source, 0.0)):
            self._edges[self._node(a)].append(len(self._target))
            self._target.append(self._node(b))
            self._capacity.append(room)

    def _node(self, key: Hashable) -> int:
        number = self._number.setdefault(key, len(self._number))
        if number == len(self._edges):
            self._edges.append([])
        return number

    def solve(self, source: Hashable, sink: Hashable) -> tuple[float, set[Hashable]]:
        """The least cost, and the largest first side that has it. To be called once."""
        start, end = self._node(source), self._node(sink)
        total = 0.0
        while (levels := self._levels(start))[end] >= 0:
            nexts = [0] * len(self._edges)
            while (pushed := self._augment(start, end, levels, nexts)) > 0:
                total += pushed
        other = self._reaching(end)
        return total, {key for key, number in self._number.items() if number not in other}

    def _levels(self, start: int) -> list[int]:
        """Distance from the start over edges with room left, -1 where there is no way."""
        levels = [-1] * len(self._edges)
        levels[start] = 0
        queue = deque((start,))
        while queue:
            node = queue.popleft()
            for e in self._edges[node]:
                target = self._target[e]
                if self._capacity[e] > 0 and levels[target] < 0:
                    levels[target] = levels[node] + 1
                    queue.append(target)
        return levels

    def _augment(self, start: int, end: int, levels: list[int], nexts: list[int]) -> float:
        """Push flow along one path of the level graph; 0 where none is left."""
        path: list[int] = []
        node = start
        while node != end:
            edges = self._edges[node]
            while nexts[node] < len(edges) and not self._leads_on(edges[nexts[node]], node, levels):
                nexts[node] += 1
            if nexts[node] < len(edges):
                path.append(edges[nexts[node]])
                node = self._target[path[-1]]
            elif path:
                # A dead end: step back and take the next edge there.
                node = self._target[path.pop() ^ 1]
                nexts[node] += 1
            else:
                return 0.0
        room = min(self._capacity[e] for e in path)
        if room == FOREVER:
            raise GraphError("minimum cut", "an edge that is never cut joins the two sides")
        for e in path:
            self._capacity[e] -= room
            self._capacity[e ^ 1] += room
        return room

    def _leads_on(self, edge: int, node: int, levels: list[int]) -> bool:
        return self._capacity[edge] > 0 and levels[self._target[edge]] == levels[node] + 1

    def _reaching(self, end: int) -> set[int]:
        """The nodes from which the end can still be reached."""
        found, waiting = {end}, [end]
        while waiting:
            for e in self._edges[waiting.pop()]:
                source = self._target[e]
                if self._capacity[e ^ 1] > 0 and source not in found:
                    found.add(source)
                    waiting.append(source)
        return found
