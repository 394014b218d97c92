"""Execution order: the topological order of least peak memory among a few that are tried."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.base.errors import CompileError


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work, for ordering: what it must follow, what it makes, what it reads.

    Attributes:
        after: tasks that come earlier.
        makes: (buffer, bytes) pairs it brings to life.
        reads: buffers it needs.
    """

    after: tuple[int, ...]
    makes: tuple[tuple[int, int], ...] = ()
    reads: tuple[int, ...] = ()


def best_order(tasks: Sequence[Task], kept: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """The order of least peak among the given one, depth-first, and greedy by live bytes.

    Args:
        tasks: in some valid order.
        kept: buffers that outlive the program's run: they are never freed.

    Raises:
        CompileError: the tasks depend on one another in a circle.
    """
    given = tuple(range(len(tasks)))
    if any(p >= i for i in given for p in tasks[i].after):
        given = _greedy(tasks, kept)
        candidates = [given]
    else:
        candidates = [given, _greedy(tasks, kept), _depth_first(tasks)]
    return min(candidates, key=lambda order: peak_of(tasks, order, kept))


def peak_of(tasks: Sequence[Task], order: Sequence[int], kept: frozenset[int]) -> int:
    """The most bytes alive at once in an order."""
    remaining = _readers(tasks)
    size: dict[int, int] = {}
    alive = peak = 0
    for t in order:
        for buffer, nbytes in tasks[t].makes:
            size[buffer] = nbytes
            alive += nbytes
        peak = max(peak, alive)
        alive -= _freed(tasks[t], remaining, size, kept)
    return peak


def _readers(tasks: Sequence[Task]) -> dict[int, int]:
    """Count the tasks that read each buffer."""
    counts: dict[int, int] = {}
    for task in tasks:
        for buffer in task.reads:
            counts[buffer] = counts.get(buffer, 0) + 1
    return counts


def _freed(
    task: Task, remaining: dict[int, int], size: dict[int, int], kept: frozenset[int]
) -> int:
    """Bytes that die with the task; counts down the readers it was."""
    bytes_ = 0
    for buffer in task.reads:
        remaining[buffer] -= 1
        if not remaining[buffer] and buffer not in kept:
            bytes_ += size.get(buffer, 0)
    for buffer, nbytes in task.makes:
        if buffer not in remaining and buffer not in kept:
            bytes_ += nbytes
    return bytes_


def _greedy(tasks: Sequence[Task], kept: frozenset[int]) -> tuple[int, ...]:
    """Return an order that always takes the ready task after which least is alive."""
    followers, waiting = _dependencies(tasks)
    remaining = _readers(tasks)
    readers = _readers_of(tasks)
    size = {b: n for task in tasks for b, n in task.makes}
    done: set[int] = set()

    def growth(t: int) -> int:
        grown = sum(n for b, n in tasks[t].makes if b in remaining or b in kept)
        last = [b for b in tasks[t].reads if remaining[b] == 1 and b not in kept]
        return grown - sum(size.get(b, 0) for b in last)

    heap = [(growth(t), t) for t, n in enumerate(waiting) if not n]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        _, t = heapq.heappop(heap)
        if t in done:
            continue
        done.add(t)
        order.append(t)
        again = list(followers[t])
        for f in followers[t]:
            waiting[f] -= 1
        for b in tasks[t].reads:
            remaining[b] -= 1
            if remaining[b] == 1:
                # Whoever reads it last now frees it, and has become a better choice.
                again += [r for r in readers[b] if r not in done]
        for f in again:
            if not waiting[f]:
                heapq.heappush(heap, (growth(f), f))
    if len(order) != len(tasks):
        raise CompileError("order", "the tasks wait for one another in a circle")
    return tuple(order)


def _readers_of(tasks: Sequence[Task]) -> dict[int, list[int]]:
    """The tasks that read each buffer."""
    found: dict[int, list[int]] = {}
    for t, task in enumerate(tasks):
        for b in task.reads:
            found.setdefault(b, []).append(t)
    return found


def _depth_first(tasks: Sequence[Task]) -> tuple[int, ...]:
    """Post-order from the last task back: what is made is used soon."""
    done: set[int] = set()
    order: list[int] = []
    for root in range(len(tasks)):
        stack = [root]
        while stack:
            t = stack[-1]
            waiting = [p for p in tasks[t].after if p not in done]
            if t in done or not waiting:
                stack.pop()
                if t not in done:
                    done.add(t)
                    order.append(t)
                continue
            stack += reversed(waiting)
    return tuple(order)


def _dependencies(tasks: Sequence[Task]) -> tuple[list[list[int]], list[int]]:
    """Return for each task those that follow it, and how many it waits for."""
    followers: list[list[int]] = [[] for _ in tasks]
    waiting = [0] * len(tasks)
    for t, task in enumerate(tasks):
        for p in dict.fromkeys(task.after):
            followers[p].append(t)
            waiting[t] += 1
    return followers, waiting
