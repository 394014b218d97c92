"""A model's thread: it takes requests in order, and runs those together that wait together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from queue import Empty, SimpleQueue

import numpy as np

from treadle.base.errors import TreadleError
from treadle.base.log import get_logger
from treadle.serve.datatypes import Array
from treadle.serve.metrics import ModelMetrics
from treadle.serve.models import Servable
from treadle.serve.protocol import Disconnected, Refusal
from treadle.serve.statistics import Statistics

Outcome = list[Array] | BaseException
_BUSY = (b"retry-after", b"1")


@dataclass(slots=True)
class Work:
    """One request's part of a batch.

    Attributes:
        arrays: the inputs.
        rows: how many it has; 0 if it runs alone.
        done: called once, in the model's thread, with the results, or why there are none.
        gone: whether nobody waits for the results any more.
        arrived: when it was handed in, by `time.perf_counter`.
    """

    arrays: Sequence[Array]
    rows: int
    done: Callable[[Outcome], None]
    gone: Callable[[], bool]
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def behind(self) -> tuple[tuple[int, ...], ...]:
        """Shapes that requests have in common which are joined."""
        return tuple(array.shape[1:] for array in self.arrays)


class Worker:
    """Runs one model, and counts that in its `statistics`.

    Args:
        model: what runs.
        metrics: where it is counted.
        delay: seconds that a request waits for others at most. With 0 those are joined that have
            come while the run before was under way.
        most_waiting: requests in the queue; more are refused.
    """

    def __init__(
        self, model: Servable, metrics: ModelMetrics, delay: float = 0.0, most_waiting: int = 64
    ) -> None:
        self.model, self.metrics, self.statistics = model, metrics, Statistics()
        self._delay, self._most_waiting = delay, most_waiting
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._next: Work | None = None
        """Request that was taken out of the queue and did not fit into the batch."""
        self._open = True
        metrics.waiting.set_function(self._queue.qsize)
        self._thread = threading.Thread(
            target=self._serve, name=f"treadle-serve-{model.name}", daemon=True
        )
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Put a request into the queue.

        Raises:
            Refusal: the queue is full.
        """
        if self._queue.qsize() >= self._most_waiting:
            raise Refusal(429, f"{self._most_waiting} requests wait for {self.model.name}", _BUSY)
        self._queue.put(work)

    def close(self, timeout: float | None = None) -> None:
        """End the thread when it has run what was submitted."""
        self._queue.put(None)
        self._thread.join(timeout)

    # -- in the thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._open:
            first = self._next or self._queue.get()
            self._next = None
            if first is None:
                return
            batch = []
            for work in self._join(first):
                if work.gone():
                    work.done(Disconnected())
                else:
                    batch.append(work)
            if batch:
                self._run(batch)
            # What a variable holds, lives on until the next request comes.
            del first, batch, work

    def _join(self, first: Work) -> list[Work]:
        batch, rows, most = [first], first.rows, self.model.most
        until = first.arrived + self._delay
        while 0 < rows < most:
            wait = until - time.perf_counter()
            try:
                found = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except Empty:
                break
            if found is None:
                self._open = False
                break
            if not found.rows or found.rows + rows > most or found.behind != first.behind:
                self._next = found
                break
            batch.append(found)
            rows += found.rows
        return batch

    def _run(self, batch: list[Work]) -> None:
        times = [time.perf_counter()]
        try:
            results = self._results(batch, times)
        except BaseException as error:
            if len(batch) > 1:
                for work in batch:  # One of them may be at fault.
                    self._run([work])
                return
            if not isinstance(error, TreadleError):
                get_logger().error("model %s failed", self.model.name, exc_info=error)
            # Its frames hold the request, which the error would keep until it is collected.
            batch[0].done(error.with_traceback(None))
            return
        self.metrics.run.observe(times[-1] - times[0])
        rows = [work.rows for work in batch]
        self.metrics.rows.observe(sum(rows) or 1)
        waited = [times[0] - work.arrived for work in batch]
        self.statistics.ran(rows, waited, [late - early for early, late in pairwise(times)])
        for work, outputs, seconds in zip(batch, results, waited, strict=True):
            self.metrics.queued.observe(seconds)
            work.done(outputs)

    def _results(self, batch: list[Work], times: list[float]) -> list[list[Array]]:
        """Return each request's results; adds times: inputs joined, model run, results parted."""
        joined = batch[0].arrays
        if len(batch) > 1:
            columns = zip(*(work.arrays for work in batch), strict=True)
            joined = [np.concatenate(column) for column in columns]
        times.append(time.perf_counter())
        outputs = self.model.run(joined)
        times.append(time.perf_counter())
        parts = [outputs]
        if len(batch) > 1:
            ends = np.cumsum([work.rows for work in batch])
            parts = [
                [output[end - work.rows : end] for output in outputs]
                for work, end in zip(batch, ends, strict=True)
            ]
        times.append(time.perf_counter())
        return parts


__all__ = ["Outcome", "Work", "Worker"]
