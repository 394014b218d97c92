"""Clocks for the steps of a device program: the device's own where it has one, else the host's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt

from treadle.runtime.api import DoneEvent, Event, SpanEvent, TimedEvent, TimingDevice
from treadle.runtime.opened import OpenDevice, use

_Entry = tuple[int, Callable[[], tuple[int, int]] | int]
"""A step and what tells its start and end in nanoseconds; for host tasks, how long they took."""


class Clock(Protocol):
    """Measures the steps of runs, one run after the other.

    Attributes:
        name: what tells the time, for people.
    """

    name: str

    def begin(self) -> None:
        """Start measuring a run."""
        ...

    def watch(self, step: int, submit: Callable[[], None], /) -> None:
        """Measure what a step submits."""
        ...

    def host(self, step: int, work: Callable[[], None], /) -> None:
        """Measure what the host does at a step, when the device has done all before it."""
        ...

    def rows(self, count: int) -> npt.NDArray[np.int64]:
        """Return start, end, sum of all turns in ns, and turns of each step, int64 [count, 4]."""
        ...


@contextmanager
def clock_of(device: OpenDevice) -> Iterator[Clock]:
    """The best clock of a device, which inside works on a queue that knows times if it has one."""
    if not isinstance(device.raw, TimingDevice):
        event = device.stream.record()
        timed = isinstance(event, TimedEvent) and not isinstance(event, DoneEvent)
        yield _DeviceClock(device) if timed else _HostClock(device)
        return
    before = use(device, device.raw.timing_stream())
    try:
        yield _DeviceClock(device)
    finally:
        use(device, before)


class _HostClock:
    """Waits for the device after every step."""

    name = "the host's clock, which waits for every launch"

    def __init__(self, device: OpenDevice) -> None:
        self._device = device
        self._spans: list[tuple[int, int, int]] = []

    def begin(self) -> None:
        self._spans = []
        self._device.synchronize()

    def watch(self, step: int, submit: Callable[[], None], /) -> None:
        began = time.monotonic_ns()
        submit()
        self._device.synchronize()
        self._spans.append((step, began, time.monotonic_ns()))

    def host(self, step: int, work: Callable[[], None], /) -> None:
        began = time.monotonic_ns()
        work()
        self._device.synchronize()
        self._spans.append((step, began, time.monotonic_ns()))

    def rows(self, count: int) -> npt.NDArray[np.int64]:
        return _rows(count, self._spans)


class _DeviceClock:
    """Asks the device's events, when all is done. Host tasks follow what they waited for."""

    name = "events of the device"

    def __init__(self, device: OpenDevice) -> None:
        self._device = device
        self._base = self._recorded()
        self._entries: list[_Entry] = []

    def begin(self) -> None:
        self._device.synchronize()
        self._entries, self._base = [], self._recorded()

    def _recorded(self) -> Event:
        return self._device.stream.record()

    def watch(self, step: int, submit: Callable[[], None], /) -> None:
        before = None if isinstance(self._base, SpanEvent) else self._recorded()
        submit()
        after = self._recorded()
        self._entries.append((step, lambda: self._span(before, after)))

    def _span(self, before: Event | None, after: Event) -> tuple[int, int]:
        if isinstance(after, SpanEvent):
            return after.span()
        if before is None or not isinstance(after, TimedEvent):
            raise TypeError(f"a {type(after).__name__} of a timing queue has no time")
        first, last = (_after(self._base, e) for e in (before, after))
        return first, last

    def host(self, step: int, work: Callable[[], None], /) -> None:
        self._device.synchronize()
        began = time.monotonic_ns()
        work()
        self._device.synchronize()
        self._entries.append((step, time.monotonic_ns() - began))

    def rows(self, count: int) -> npt.NDArray[np.int64]:
        self._device.synchronize()
        now = self._base.span()[1] if isinstance(self._base, SpanEvent) else 0
        spans = []
        for step, entry in self._entries:
            start, now = (now, now + entry) if isinstance(entry, int) else entry()
            spans.append((step, start, now))
        return _rows(count, spans)


def _after(base: Event, event: Event) -> int:
    """Nanoseconds between two events."""
    return round(event.since(base) * 1e9) if isinstance(event, TimedEvent) else 0


def _rows(count: int, spans: list[tuple[int, int, int]]) -> npt.NDArray[np.int64]:
    found = np.zeros((count, 4), np.int64)
    for step, start, end in spans:
        turns, seconds = found[step, 3] + 1, found[step, 2] + end - start
        found[step] = start, end, seconds, turns
    return found
