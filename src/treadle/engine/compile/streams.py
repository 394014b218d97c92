"""Streams and events: which steps may overlap on a device that runs several queues.

The steps' dependencies follow from the memory they touch. A minimum path cover of them says how
many streams could ever be busy; its paths are merged down to the number allowed, and the result is
taken only if a simulation finds the program to end at least 5 % sooner. On the CPU one stream is
the rule: a kernel uses all cores already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from treadle.engine.compile.streams_cover import path_cover
from treadle.engine.compile.streams_order import StreamBlock, blocks_of, dependencies, seconds_of
from treadle.engine.cost import Rates
from treadle.engine.plan import Plan, StreamEvent, Streams

LEAST_GAIN = 0.05
"""Part of the time that several streams must save to be used."""
_SLOTS = 512
"""Slots of time in which overlap is counted."""


def assign_streams(plan: Plan, rates: Rates, most: int = 1) -> Streams:
    """A stream for every step, and the events between them.

    Args:
        plan: its `facts` say what steps touch and cost.
        rates: of the engine, for the simulation. Streams are taken to run at full speed beside
            one another, which holds where one kernel leaves room for the next.
        most: how many streams there may be.
    """
    if most == 1:
        steps = zip(plan.steps, plan.facts, strict=True)
        single = sum(seconds_of(s, f, rates) for s, f in steps)
        return Streams((0,) * len(plan.steps), (), 0, single, single, "one stream is allowed")
    blocks = blocks_of(plan, rates)
    before = dependencies(blocks)
    single = sum(b.seconds for b in blocks)
    paths = path_cover(before)
    counts = range(2, min(most, len(paths)) + 1)
    tries = [_merged(paths, blocks, before, n, near) for n in counts for near in (True, False)]
    best = min(tries, key=lambda of: makespan(blocks, before, of), default=[0] * len(blocks))
    reached = makespan(blocks, before, best)
    if reached > single * (1 - LEAST_GAIN):
        reason = f"{_share(single, reached)} shorter with more, not worth it"
        return Streams((0,) * len(plan.steps), (), 0, single, single, reason)
    of = [s for b, s in zip(blocks, best, strict=True) for _ in range(b.first, b.last + 1)]
    crossing = sum(best[p] != best[i] for i, found in enumerate(before) for p in found)
    events = place_events(blocks, before, best)
    reason = f"{_share(single, reached)} shorter than one stream"
    return Streams(tuple(of), events, crossing, single, reached, reason)


def _share(single: float, reached: float) -> str:
    return f"{(1 - reached / single) if single else 0:.0%}"


# -- simulation --------------------------------------------------------------------------------


def simulate(
    blocks: Sequence[StreamBlock], before: Sequence[Sequence[int]], of: Sequence[int]
) -> list[tuple[float, float]]:
    """Start and end of every block in seconds, if each starts as soon as it can."""
    free: dict[int, float] = {}
    times: list[tuple[float, float]] = []
    for i, block in enumerate(blocks):
        start = max([free.get(of[i], 0.0), *(times[p][1] for p in before[i])])
        times.append((start, start + block.seconds))
        free[of[i]] = start + block.seconds
    return times


def makespan(
    blocks: Sequence[StreamBlock], before: Sequence[Sequence[int]], of: Sequence[int]
) -> float:
    """Modelled seconds until the last block ends."""
    return max((end for _, end in simulate(blocks, before, of)), default=0.0)


# -- from paths to streams ---------------------------------------------------------------------


def _merged(
    paths: Sequence[Sequence[int]],
    blocks: Sequence[StreamBlock],
    before: Sequence[Sequence[int]],
    most: int,
    prefer_near: bool,
) -> list[int]:
    """The stream of every block: each path joins the stream with which it overlaps least.

    The busiest paths come first and found the streams. Among streams that are equally busy a path
    prefers the one it exchanges most with, where that is wanted, and then the idlest.
    """
    path_of = [0] * len(blocks)
    for number, path in enumerate(paths):
        for i in path:
            path_of[i] = number
    times = simulate(blocks, before, path_of)
    end = max(stop for _, stop in times) or 1.0
    busy = [_busy([times[i] for i in path], end) for path in paths]
    near = _neighbors(path_of, before, len(paths)) if prefer_near else [[] for _ in paths]
    load: list[npt.NDArray[np.float64]] = []
    chosen: dict[int, int] = {}
    for p in sorted(range(len(paths)), key=lambda p: (-busy[p].sum(), p)):
        if len(load) < most:
            load.append(busy[p])
            chosen[p] = len(load) - 1
            continue
        ties = Counter(chosen[q] for q in near[p] if q in chosen)
        keys = [
            (round(float(np.minimum(known, busy[p]).sum() / end), 6), -ties[s], known.sum())
            for s, known in enumerate(load)
        ]
        chosen[p] = min(range(most), key=keys.__getitem__)
        load[chosen[p]] = load[chosen[p]] + busy[p]
    of = [chosen[p] for p in path_of]
    numbers = {stream: n for n, stream in enumerate(dict.fromkeys(of))}
    return [numbers[stream] for stream in of]


def _neighbors(
    path_of: Sequence[int], before: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    """Return for each path those it exchanges values with, once per dependency."""
    near: list[list[int]] = [[] for _ in range(count)]
    for i, found in enumerate(before):
        for p in found:
            if path_of[p] != path_of[i]:
                near[path_of[p]].append(path_of[i])
                near[path_of[i]].append(path_of[p])
    return near


def _busy(times: Sequence[tuple[float, float]], end: float) -> npt.NDArray[np.float64]:
    """Return the share of each slot of time that is taken."""
    slots = np.zeros(_SLOTS)
    edges = np.linspace(0.0, end, _SLOTS + 1)
    for start, stop in times:
        slots += np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start), 0.0, None)
    return slots


# -- events ------------------------------------------------------------------------------------


def place_events(
    blocks: Sequence[StreamBlock], before: Sequence[Sequence[int]], of: Sequence[int]
) -> tuple[StreamEvent, ...]:
    """One event per dependency between streams, but for those that others imply.

    A vector clock says for each block which blocks of every stream are known to be done before
    it ends. An event takes over the number of one that was waited for before it is recorded, and
    before anybody begins to wait for it: no wait can then mistake one for the other.
    """
    count = max(of, default=0) + 1
    clocks: list[list[int]] = []
    last = [-1] * count
    events: list[StreamEvent] = []
    users: list[int] = []  # For each number, the block that waited for its event last.
    for i, block in enumerate(blocks):
        mine = of[i]
        clock = list(clocks[last[mine]]) if last[mine] >= 0 else [-1] * count
        waiting = clock
        for p in sorted(before[i], reverse=True):
            if clock[of[p]] >= p:
                continue
            clock = [max(pair) for pair in zip(clock, clocks[p], strict=True)]
            number = _number(users, [*map(min, clocks[p], waiting)], of)
            users[number] = i
            events.append(StreamEvent(blocks[p].last, block.first, number))
        clock[mine] = i
        clocks.append(clock)
        last[mine] = i
    return tuple(events)


def _number(users: list[int], known: Sequence[int], of: Sequence[int]) -> int:
    """A number whose last user is known to be done."""
    for number, user in enumerate(users):
        if known[of[user]] >= user:
            return number
    users.append(-1)
    return len(users) - 1
