"""Performance sanity: figures to keep and compare; they fail only where they make no sense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from treadle.conformance.check import Check, Measured, from_functions, require
from treadle.conformance.subject import Subject
from treadle.conformance.training import NETWORKS, data, on
from treadle.engine.eager.fallback import fallback_report, id_of
from treadle.tensor import Tensor

_SIZE = 1 << 24


def checks(subject: Subject) -> Iterator[Check]:
    """The group's checks."""
    yield from from_functions("Performance sanity", subject, (launch_overhead, copy_rate))
    for name in NETWORKS:
        run = partial(share_of_fallback, subject, name)
        yield Check("Performance sanity", f"share_of_fallback/{name}", run)


def _seconds(work: Callable[[], object], times: int) -> float:
    """The least time of some runs."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def launch_overhead(subject: Subject) -> Measured:
    """Microseconds that a call of a small op takes, on the device and on the host."""
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    times = 50 if subject.quick else 400
    there = _launches(subject, subject.tensor(x), subject.tensor(y), times)
    here = _launches(subject, Tensor(x, device="cpu0"), Tensor(y, device="cpu0"), times)
    return {"add, microseconds": there * 1e6, "add on the host, microseconds": here * 1e6}


def _launches(subject: Subject, x: object, y: object, times: int) -> float:
    def work() -> None:
        for _ in range(times):
            x + y  # type: ignore[operator]
        subject.stream.synchronize()

    work()
    return _seconds(work, 3) / times


def copy_rate(subject: Subject) -> Measured:
    """Gigabytes per second to the device and back."""
    nbytes = _SIZE if not subject.quick else _SIZE >> 4
    memory = subject.raw.info.memory
    nbytes = min(nbytes, memory // 8) if memory else nbytes
    array = np.ones(nbytes, np.uint8)
    device = subject.device()
    block = device.upload(array)

    def up() -> None:
        subject.raw.copy_in(block.buffer, array.data, subject.stream)
        subject.stream.synchronize()

    rates = [
        nbytes / _seconds(work, 3) / 1e9 for work in (up, lambda: device.download(block, array))
    ]
    device.release(block)
    require(all(np.isfinite(rate) and rate > 0 for rate in rates), f"rates of copies: {rates}")
    return {"up, GB/s": rates[0], "down, GB/s": rates[1]}


def share_of_fallback(subject: Subject, name: str) -> Measured:
    """Measure the part of a forward pass's calls and time that falls back to the host."""
    images, _ = data(subject)
    with on(str(subject.place())):
        net = NETWORKS[name]()
        net.eval()
        x = subject.tensor(images)
        net(x).numpy()
        before = {id_of(r): (r.calls, r.seconds) for r in fallback_report()}
        started = time.perf_counter()
        net(x).numpy()
        passed = time.perf_counter() - started
    calls, seconds = 0, 0.0
    for row in fallback_report():
        c, s = before.get(id_of(row), (0, 0.0))
        calls, seconds = calls + row.calls - c, seconds + row.seconds - s
    require(0 <= seconds <= passed * 1.5, f"{seconds} s of fallback in {passed} s")
    return {"calls that fell back": float(calls), "share of time": round(seconds / passed, 4)}
