"""Counts and times of a model in the words of Triton's extension `statistics`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

_PHASES = ("compute_input", "compute_infer", "compute_output")
_REQUESTS = ("success", "fail", "queue", *_PHASES, "cache_hit", "cache_miss")


class _Durations:
    """Number of times something was done, and the seconds that it took in all."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    def data(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


class ServedStatistics:
    """Those of one model since the server started; threads may call all methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0.0
        self._inferences = self._executions = 0
        self._requests = {name: _Durations() for name in _REQUESTS}
        self._batches: dict[int, dict[str, _Durations]] = {}

    def answered(self, status: int, seconds: float) -> None:
        """Count a request, from its headers to its answer."""
        with self._lock:
            self._last = time.time()
            self._requests["success" if status == 200 else "fail"].add(seconds)

    def ran(self, rows: Sequence[int], waited: Sequence[float], phases: Sequence[float]) -> None:
        """Count a run.

        Args:
            rows: of each of its requests; 0 counts as one.
            waited: seconds of each in the queue.
            phases: seconds in which inputs were joined, the model ran, results were parted.
        """
        sizes = [each or 1 for each in rows]
        with self._lock:
            self._inferences += sum(sizes)
            self._executions += 1
            batch = self._batches.setdefault(sum(sizes), {name: _Durations() for name in _PHASES})
            for name, seconds in zip(_PHASES, phases, strict=True):
                batch[name].add(seconds)
            for one in waited:
                self._requests["queue"].add(one)
                for name, seconds in zip(_PHASES, phases, strict=True):
                    self._requests[name].add(seconds)

    def data(self) -> dict[str, Any]:
        """All of them; durations in nanoseconds, the last inference in milliseconds since 1970."""
        with self._lock:
            return {
                "last_inference": round(self._last * 1e3),
                "inference_count": self._inferences,
                "execution_count": self._executions,
                "inference_stats": {name: found.data() for name, found in self._requests.items()},
                "batch_stats": [
                    {"batch_size": size, **{name: found.data() for name, found in batch.items()}}
                    for size, batch in sorted(self._batches.items())
                ],
            }


__all__ = ["ServedStatistics"]
