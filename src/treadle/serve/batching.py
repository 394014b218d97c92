"""A model's thread: it takes requests in order, and runs those together that wait together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from queue import Empty, SimpleQueue

from treadle.base.array import Array
from treadle.base.errors import TreadleError
from treadle.base.log import get_logger
from treadle.serve.metrics import ModelMetrics
from treadle.serve.models import Servable
from treadle.serve.protocol import Disconnected, RequestRefusal
from treadle.serve.statistics import ServedStatistics

Outcome = list[Array] | BaseException
_BUSY = (b"retry-after", b"1")


@dataclass(slots=True)
class BatchRows:
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
        self.model, self.metrics, self.statistics = model, metrics, ServedStatistics()
        self._delay, self._most_waiting = delay, most_waiting
        self._queue: SimpleQueue[BatchRows | None] = SimpleQueue()
        self._passed = deque[BatchRows]()
        """Requests that were taken out of the queue and did not fit into the batch."""
        self._open = True
        metrics.waiting.set_function(self._waiting)
        self._thread = threading.Thread(
            target=self._serve, name=f"treadle-serve-{model.name}", daemon=True
        )
        self._thread.start()

    def submit(self, work: BatchRows) -> None:
        """Put a request into the queue.

        Raises:
            Refusal: the queue is full.
        """
        if self._waiting() >= self._most_waiting:
            raise RequestRefusal(
                429, f"{self._most_waiting} requests wait for {self.model.name}", _BUSY
            )
        self._queue.put(work)

    def close(self, timeout: float | None = None) -> None:
        """End the thread when it has run what was submitted."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _waiting(self) -> int:
        return self._queue.qsize() + len(self._passed)

    # -- in the thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._open or self._passed:
            first = self._passed.popleft() if self._passed else self._queue.get()
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

    def _join(self, first: BatchRows) -> list[BatchRows]:
        """The requests that run with the one that has waited for longest."""
        if not 0 < first.rows < self.model.most:
            return [first]
        self._gather(first)
        alike = self._alike(first)
        given = [work.arrays for work in alike]
        places = self.model.joining.chosen(first.arrays, given, self.model.most)
        batch = [first, *(alike[place] for place in places)]
        taken = set(map(id, batch))
        self._passed = deque(work for work in self._passed if id(work) not in taken)
        return batch

    def _gather(self, first: BatchRows) -> None:
        """Take requests out of the queue: all that have come, or come before the delay is over.

        The wait ends early where the batch is full, or a request of another kind waits as well.
        """
        while self._open:
            wait = self._patience(first) if self._queue.empty() else 0.0
            try:
                found = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except Empty:
                return
            if found is None:
                self._open = False
            else:
                self._passed.append(found)

    def _patience(self, first: BatchRows) -> float:
        """Seconds that the first request still waits for others."""
        if not self._delay:
            return 0.0
        alike = self._alike(first)
        full = first.rows + sum(work.rows for work in alike) >= self.model.most
        if full or len(alike) < len(self._passed):
            return 0.0
        return first.arrived + self._delay - time.perf_counter()

    def _alike(self, first: BatchRows) -> list[BatchRows]:
        """Requests that were taken and may join the first one; none overtakes one that is alone."""
        kind = self.model.joining.alike(first.arrays)
        before = takewhile(lambda work: work.rows, self._passed)
        return [work for work in before if self.model.joining.alike(work.arrays) == kind]

    def _run(self, batch: list[BatchRows]) -> None:
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

    def _results(self, batch: list[BatchRows], times: list[float]) -> list[list[Array]]:
        """Return each request's results; adds times: inputs joined, model run, results parted."""
        requests = [work.arrays for work in batch]
        joining, together = self.model.joining, len(batch) > 1
        joined = joining.joined(requests) if together else requests[0]
        times.append(time.perf_counter())
        outputs = self.model.run(joined)
        times.append(time.perf_counter())
        parts = joining.parted(requests, outputs) if together else [outputs]
        times.append(time.perf_counter())
        return parts


__all__ = ["BatchRows", "Outcome", "Worker"]
