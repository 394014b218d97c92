"""Sink mode: many iterations of a compiled step per call, without Python in between."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from treadle.base.errors import TraceError
from treadle.jit.compiled import Compiled, signature

_END = object()


class _Prefetch:
    """Fills a ring of batches on a thread of its own while the program runs.

    An interrupt that is raised inside `queue.Queue` or `threading.Condition`, which are written in
    Python, leaves their lock taken, and the other thread waits for ever. `SimpleQueue` is not.
    """

    def __init__(self, data: Iterable[Any], room: int) -> None:
        self._ring: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(room):
            self._room.put(None)
        self._stopped = False
        self._thread = threading.Thread(target=self._fill, args=(data,), daemon=True)
        self._thread.start()

    def _fill(self, data: Iterable[Any]) -> None:
        try:
            for batch in data:
                self._room.get()
                if self._stopped:
                    return
                self._ring.put(batch)
            self._ring.put(_END)
        except BaseException as error:  # raised where the batches are used
            self._ring.put(error)

    def take(self, count: int) -> list[tuple[Any, ...]]:
        """The next batches, as argument tuples; fewer at the end."""
        found: list[tuple[Any, ...]] = []
        while len(found) < count:
            item = self._ring.get()
            if item is _END or isinstance(item, BaseException):
                self._ring.put(item)  # for the next call
                if isinstance(item, BaseException) and not found:
                    raise item
                break
            self._room.put(None)
            found.append(item if isinstance(item, tuple) else (item,))
        return found

    def close(self) -> None:
        """Stop reading ahead."""
        self._stopped = True
        self._room.put(None)
        self._thread.join()


def sink(step: Compiled[Any, Any], data: Iterable[Any], iterations: int) -> Iterator[Any]:
    """Run a compiled step over batches, `iterations` of them per native call.

    Batches are read ahead on another thread. Learning rates are read once per native call; random
    numbers go on as in single steps, whose results these are, bit for bit. Ctrl-C stops after the
    iteration that runs.

    Args:
        step: made by `jit.compile`; it takes a batch's tensors as its arguments.
        data: yields batches: a tensor, or a tuple of arguments.
        iterations: per native call.

    Yields:
        What `step` returned in the last iteration of each native call.

    Raises:
        TraceError: `step` is not a compiled function, or leaves state in new arrays.
        CompileError: the program has ops that only Python can run.

    Example:
        >>> import treadle as mge
        >>> total = mge.tensor(0.0)
        >>> @mge.jit.compile
        ... def add(x):
        ...     total._reset(total + x)
        ...     return total * 1
        >>> batches = [mge.tensor(float(i)) for i in range(6)]
        >>> [int(t.item()) for t in mge.jit.sink(add, batches, 3)]
        [3, 15]
    """
    if not isinstance(step, Compiled):
        raise TraceError(
            "sink", f"takes a compiled function, not {type(step).__name__}", hint="jit.compile it"
        )
    if iterations < 1:
        raise TraceError("sink", f"{iterations} iterations per call", hint="use 1 or more")
    ring = _Prefetch(data, 2 * iterations)
    try:
        while batches := ring.take(iterations):
            yield from _run(step, batches)
    finally:
        ring.close()


def _run(step: Compiled[Any, Any], batches: list[tuple[Any, ...]]) -> Iterator[Any]:
    """All batches, in native calls of equal signatures."""
    start = 0
    result: Any = None
    while start < len(batches):
        key, leaves = signature(batches[start], {})
        group = [leaves]
        for batch in batches[start + 1 :]:
            other, more = signature(batch, {})
            if other != key:
                break
            group.append(more)
        binding = step.variant(batches[start], {}).binding()
        done = 0
        while done < len(group):
            made, result = binding.repeat(group[done:])
            done += made
        start += len(group)
    yield result


__all__ = ["sink"]
