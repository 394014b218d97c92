"""Order of batches: the serial loop, and the ordered one over workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from treadle.data.failure import DataLoaderError
from treadle.data.messages import Exhausted, LoadIndices, MergeSamples, ReadStream, Work
from treadle.data.pipeline import Pipeline, StreamReader
from treadle.data.pool import WorkerPool


def serial_batches(pipeline: Pipeline, works: Iterable[Work]) -> Iterator[Any]:
    """Make the batches in this process."""
    for work in works:
        match work:
            case LoadIndices(indices):
                yield pipeline.load(indices)
            case MergeSamples(samples, start):
                yield pipeline.merge_stream(samples, start)
            case ReadStream():
                raise TypeError("only a worker has a stream of its own")


def parallel_batches(
    pool: WorkerPool, works: Iterable[Work], prefetch: int, timeout: float
) -> Iterator[Any]:
    """Yield the batches of `works` in order, made by workers that take turns.

    Each worker has at most `prefetch` tasks. A worker whose stream has ended loses its turn when
    its end is reached in the order of batches, so that the order never depends on timing.
    """
    feed = _Feed(pool, iter(works))
    for _ in range(prefetch * len(pool)):
        feed.submit_next()
    while feed.submitted:
        index, batch = feed.submitted.popleft()
        outcome = pool.collect(index, batch, timeout)
        if isinstance(outcome, Exhausted):
            feed.retire(index)
            continue
        feed.submit_next()
        yield outcome.content
    if feed.error is not None:
        raise feed.error


class _Feed:
    """Hands out work in turn, and keeps what it handed out, in order."""

    def __init__(self, pool: WorkerPool, works: Iterator[Work]) -> None:
        self.submitted: deque[tuple[int, int]] = deque()
        # A failure to read the next work waits until the batches before it are out.
        self.error: Exception | None = None
        self._pool = pool
        self._works = works
        self._active = deque(range(len(pool)))
        self._batch = 0

    def submit_next(self) -> None:
        """Give the next worker the next work, if there is any of both."""
        if not self._active or self.error is not None:
            return
        try:
            work = next(self._works, None)
        except Exception as error:
            self.error = error
            return
        if work is None:
            return
        index = self._active[0]
        self._active.rotate(-1)
        self._pool.submit(index, self._batch, work)
        self.submitted.append((index, self._batch))
        self._batch += 1

    def retire(self, index: int) -> None:
        """Give a worker no more work."""
        if index in self._active:
            self._active.remove(index)


def map_works(batches: Iterable[list[Any]]) -> Iterator[Work]:
    """Work for the batches of indices of a map-style dataset."""
    for indices in batches:
        yield LoadIndices(list(indices))


def own_stream_works(groups: Iterable[list[Any]]) -> Iterator[Work]:
    """Work for workers that read a stream of their own."""
    for group in groups:
        yield ReadStream(len(group))


def stream_works(pipeline: Pipeline, groups: Iterable[list[Any]], timeout: float) -> Iterator[Work]:
    """Work for a stream that is read in this process.

    Raises:
        DataLoaderError: reading a batch took longer than `timeout` seconds. Code in this process
            cannot be interrupted, so this is known only when the stream returns.
    """
    reader = StreamReader(pipeline.dataset)
    for group in groups:
        start, began = reader.position, time.monotonic()
        samples = reader.take(len(group))
        elapsed = time.monotonic() - began
        if 0 < timeout < elapsed:
            raise DataLoaderError(
                "dataloader timeout",
                f"the stream took {elapsed:.1f} s for the batch at sample {start}",
                saw=f"timeout={timeout:g}",
            )
        if not samples:
            return
        yield MergeSamples(samples, start)
