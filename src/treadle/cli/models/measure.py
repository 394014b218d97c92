"""Measurement of a program's time: one caller, or several at once."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.base.array import Array
from treadle.base.table import duration, size
from treadle.engine.execute.callers import call_together

Program = Callable[[Sequence[Array]], list[Array]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds of calls.

    Attributes:
        first: of the first call, which compiles where there is something to compile.
        later: of the calls that were measured, the shortest first.
    """

    first: float
    later: tuple[float, ...]

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        marks = np.quantile(self.later, (0.5, 0.9, 0.99))
        return {
            "first": self.first,
            "best": self.later[0],
            "mean": float(np.mean(self.later)),
            "median": float(marks[0]),
            "p90": float(marks[1]),
            "p99": float(marks[2]),
            "peak_bytes": peak_bytes(),
        }

    def lines(self) -> list[str]:
        """The figures for people."""
        found = self.as_dict()
        names = ("median", "best", "p90", "p99")
        later = ", ".join(f"{name} {duration(found[name])}" for name in names)
        runs = "1 run" if len(self.later) == 1 else f"{len(self.later)} runs"
        return [
            f"first call {duration(self.first)}",
            f"{runs}: {later}",
            f"peak memory of the process {size(int(found['peak_bytes']))}",
        ]


def peak_bytes() -> float:
    """The most memory that this process has had so far."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def first_call(program: Program, arrays: Sequence[Array]) -> tuple[list[Array], float]:
    """The results, and how long they took."""
    started = time.perf_counter()
    results = program(arrays)
    return results, time.perf_counter() - started


def timed(program: Program, arrays: Sequence[Array], warmup: int, count: int) -> tuple[float, ...]:
    """Seconds of `count` calls behind some that are not counted, the shortest first."""
    for _ in range(warmup):
        program(arrays)
    return tuple(sorted(first_call(program, arrays)[1] for _ in range(count)))


@dataclass(frozen=True, slots=True)
class Throughput:
    """Callers that call as fast as they can: how many, how often, in how many seconds."""

    callers: int
    calls: int
    seconds: float

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        each = duration(self.seconds / max(self.calls, 1))
        return f"{self.callers} callers at once: {self.rate:.1f} calls per second, one every {each}"


def together(program: Program, arrays: Sequence[Array], callers: int, count: int) -> Throughput:
    """Call a program from several threads at once, `count` times each."""
    seconds = call_together(lambda: program(arrays), callers, count)
    return Throughput(callers, callers * count, seconds)
