"""Minimum cuts, by which stages split programs at least cost.

Algorithm: Dinic 1970, Algorithm for solution of a problem of maximum flow in networks with power
estimation: shortest augmenting paths, a level at a time.
"""

from __future__ import annotations

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
        while (distance := self._distances(start, end))[start] >= 0:
            total += self._fill(start, end, distance)
        other = self._reaching(end)
        return total, {key for key, number in self._number.items() if number not in other}

    def _distances(self, start: int, end: int) -> list[int]:
        """Distance to the end over edges with room left, -1 where it is farther than the start's.

        Looked for from the end, so that few ways begun at the start lead nowhere.
        """
        capacity, target, edges = self._capacity, self._target, self._edges
        found = [-1] * len(edges)
        found[end] = 0
        front = [end]
        while front and found[start] < 0:
            behind = []
            for node in front:
                step = found[node] + 1
                for e in edges[node]:
                    source = target[e]
                    if found[source] < 0 and capacity[e ^ 1] > 0:
                        found[source] = step
                        behind.append(source)
            front = behind
        return found

    def _fill(self, start: int, end: int, distance: list[int]) -> float:
        """Push flow along shortest paths until each has an edge without room."""
        capacity, target, edges = self._capacity, self._target, self._edges
        nexts = [0] * len(edges)
        path: list[int] = []
        node, total = start, 0.0
        while True:
            if node == end:
                room, full = self._push(path)
                total += room
                node = target[path[full] ^ 1]
                del path[full:]
            mine, n, closer = edges[node], nexts[node], distance[node] - 1
            while n < len(mine) and not (
                distance[target[mine[n]]] == closer and capacity[mine[n]] > 0
            ):
                n += 1
            nexts[node] = n
            if n < len(mine):
                path.append(mine[n])
                node = target[mine[n]]
            elif path:
                # A dead end: step back and take the next edge there.
                node = target[path.pop() ^ 1]
                nexts[node] += 1
            else:
                return total

    def _push(self, path: list[int]) -> tuple[float, int]:
        """Push all that goes along a path; how much it is, and which edge was the first to fill."""
        capacity = self._capacity
        room = min([capacity[e] for e in path])
        if room == FOREVER:
            raise GraphError("minimum cut", "an edge that is never cut joins the two sides")
        full = -1
        for i, e in enumerate(path):
            capacity[e] -= room
            capacity[e ^ 1] += room
            if full < 0 and capacity[e] <= 0:
                full = i
        return room, full

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
