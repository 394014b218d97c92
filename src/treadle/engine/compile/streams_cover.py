"""The fewest paths that cover a graph of dependencies: as many streams as are ever of use.

A path cover has one path per node that is nobody's successor, so a maximum matching of nodes with
successors gives the smallest. Sources: Fulkerson 1956 (doi:10.2307/2033375) for covers; Hopcroft
and Karp 1973 (doi:10.1137/0202019) for matchings in O(edges sqrt(nodes)).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


def path_cover(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Disjoint paths that together have every node, as few as there can be.

    Args:
        before: for each node its predecessors, all of them smaller.

    Returns:
        The paths by their first node; nodes of a path ascend.
    """
    after: list[list[int]] = [[] for _ in before]
    for node, found in enumerate(before):
        for p in found:
            after[p].append(node)
    successor, predecessor = _matching(after)
    paths = []
    for node in range(len(before)):
        if predecessor[node] < 0:
            path = [node]
            while successor[path[-1]] >= 0:
                path.append(successor[path[-1]])
            paths.append(path)
    return paths


def _matching(after: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """A maximum matching: each node's successor and predecessor, -1 where it has none."""
    successor, predecessor = [-1] * len(after), [-1] * len(after)
    while True:
        level = _levels(after, successor, predecessor)
        free = [n for n, s in enumerate(successor) if s < 0]
        if not sum([_augment(n, after, level, successor, predecessor) for n in free]):
            return successor, predecessor


def _levels(
    after: Sequence[Sequence[int]], successor: Sequence[int], predecessor: Sequence[int]
) -> list[int]:
    """Length of the shortest alternating path from a free node to each node."""
    level = [0 if s < 0 else -1 for s in successor]
    queue = deque(n for n, s in enumerate(successor) if s < 0)
    while queue:
        node = queue.popleft()
        for follower in after[node]:
            rival = predecessor[follower]
            if rival >= 0 and level[rival] < 0:
                level[rival] = level[node] + 1
                queue.append(rival)
    return level


def _augment(
    root: int,
    after: Sequence[Sequence[int]],
    level: list[int],
    successor: list[int],
    predecessor: list[int],
) -> bool:
    """Follow a shortest alternating path from a free node, and swap it if its end is free.

    The search keeps its own stack, since paths can be as long as the program.
    """
    stack = [(root, iter(after[root]))]
    chosen: list[int] = []
    while stack:
        node, followers = stack[-1]
        for follower in followers:
            rival = predecessor[follower]
            if rival < 0:
                for (n, _), f in zip(stack, [*chosen, follower], strict=True):
                    successor[n], predecessor[f] = f, n
                return True
            if level[rival] == level[node] + 1:
                chosen.append(follower)
                stack.append((rival, iter(after[rival])))
                break
        else:
            level[node] = -1  # A dead end for everybody.
            stack.pop()
            if chosen:
                chosen.pop()
    return False
