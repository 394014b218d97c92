"""The proof that streams and events keep every dependency, apart from the code that placed them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise

from treadle.backends.program import Host, Jump
from treadle.base.errors import CompileError
from treadle.engine.plan import Plan, StreamEvent, Streams


def check_streams(plan: Plan, streams: Streams) -> None:
    """Hold streams against what they promise.

    Steps that touch the same bytes, of which one writes, must be ordered by what streams and
    events guarantee; returns to the caller are ordered with everything; loops and branches stay
    on one stream; and an event is used again only by those who know that it was waited for.

    Raises:
        CompileError: names the steps, or the event.
    """
    if len(streams.of) != len(plan.steps) or min(streams.of, default=0) < 0:
        raise _wrong(f"{len(plan.steps)} steps have {len(streams.of)} streams")
    _check_jumps(plan, streams)
    _check_events(streams)
    if streams.count == 1:
        return  # One after the other, in the order of the plan.
    clocks = _clocks(streams)
    for i, j in _conflicts(plan):
        if not _precedes(clocks, streams, i, j):
            raise _wrong(
                f"nothing makes step {j} of stream {streams.of[j]} wait for step {i} of stream "
                f"{streams.of[i]}, which uses the same memory"
            )
    hosts = [i for i, step in enumerate(plan.steps) if isinstance(step, Host)]
    for h in hosts:
        for i in range(len(plan.steps)):
            if i != h and not _precedes(clocks, streams, min(i, h), max(i, h)):
                raise _wrong(f"step {h} returns to the caller beside step {i}")
    _check_numbers(streams, clocks)


def _check_jumps(plan: Plan, streams: Streams) -> None:
    for i, step in enumerate(plan.steps):
        if not isinstance(step, Jump):
            continue
        low, high = min(i, step.target), max(i, step.target - 1)
        if len(set(streams.of[low : high + 1])) > 1:
            raise _wrong(f"the jump at step {i} leads over steps of several streams")
        for event in streams.events:
            if low <= event.source < high or low < event.target <= high:
                raise _wrong(f"an event lies within the jump at step {i}", event)


def _check_events(streams: Streams) -> None:
    for event in streams.events:
        if not 0 <= event.source < event.target < len(streams.of):
            raise _wrong("an event is waited for before it is recorded", event)
        if streams.of[event.source] == streams.of[event.target]:
            raise _wrong("a stream waits for itself", event)


def _clocks(streams: Streams) -> list[list[int]]:
    """Return for each step the last step of every stream that is over when it starts, or is it."""
    waits: dict[int, list[int]] = {}
    for event in streams.events:
        waits.setdefault(event.target, []).append(event.source)
    running = [[-1] * streams.count for _ in range(streams.count)]
    clocks: list[list[int]] = []
    for i, stream in enumerate(streams.of):
        clock = running[stream]
        for source in waits.get(i, ()):
            clock = [max(pair) for pair in zip(clock, clocks[source], strict=True)]
        clock = list(clock)
        clock[stream] = i
        running[stream] = clock
        clocks.append(clock)
    return clocks


def _precedes(clocks: Sequence[Sequence[int]], streams: Streams, i: int, j: int) -> bool:
    return clocks[j][streams.of[i]] >= i


def _conflicts(plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of steps whose order decides what lies in memory; all others follow from them.

    A sweep over addresses keeps the steps that touch the present bytes.
    """
    changes: dict[int, dict[int, list[tuple[bool, int, bool]]]] = {}
    for i, facts in enumerate(plan.facts):
        for spans, writes in ((facts.reads, False), (facts.writes, True)):
            for span in spans:
                places = changes.setdefault(span.base, {})
                places.setdefault(int(span.offset), []).append((True, i, writes))
                places.setdefault(span.offset + span.nbytes, []).append((False, i, writes))
    for places in changes.values():
        users: list[tuple[int, bool]] = []
        for place in sorted(places):
            for begins, i, writes in places[place]:
                if begins:
                    insort(users, (i, writes))
                else:
                    del users[bisect_left(users, (i, writes))]
            yield from _in_order(users)


def _in_order(users: Sequence[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of steps that touch the same bytes and must keep their order."""
    last, reads = -1, list[int]()
    for i, writes in users:
        if last not in (-1, i):
            yield last, i
        if not writes:
            reads.append(i)
            continue
        for r in reads:
            if r != i:
                yield r, i
        last, reads = i, []


def _check_numbers(streams: Streams, clocks: Sequence[Sequence[int]]) -> None:
    by_number: dict[int, list[StreamEvent]] = {}
    for event in streams.events:
        by_number.setdefault(event.number, []).append(event)
    for events in by_number.values():
        for one, other in pairwise(sorted(events, key=lambda e: e.source)):
            if not _precedes(clocks, streams, one.target, other.source):
                raise _wrong("an event is recorded again although nobody waited for it", other)
            start = _step_before(streams, other.target)
            if start < 0 or not _precedes(clocks, streams, one.target, start):
                raise _wrong("a wait begins while its event still stands for another", other)


def _step_before(streams: Streams, step: int) -> int:
    """The step before another on the same stream; -1 where there is none."""
    of = streams.of
    return next((i for i in range(step - 1, -1, -1) if of[i] == of[step]), -1)


def _wrong(problem: str, event: StreamEvent | None = None) -> CompileError:
    saw = f"event {event.number} from step {event.source} to step {event.target}" if event else ""
    return CompileError("streams", problem, saw=saw)
