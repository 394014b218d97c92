"""A captured program bound to the handles it reads and writes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base import tree
from treadle.base.errors import TraceError
from treadle.engine.dispatch import EagerType
from treadle.engine.execute import Executor
from treadle.jit.capture import Argument, Captured, GradOf, HostValue, Output, State
from treadle.runtime.array import to_host
from treadle.tensor import Tensor, wrap

_HOLDERS = 4
"""References to an array that only its handle holds, as `getrefcount` sees them here: the handle,
the list of arrays the program owns, the frame of the executor, and the argument itself."""


class Binding:
    """Runs a program on the present values of its handles, and writes results back.

    State that the program updates lives in arrays it owns: they are written in place as long as
    nobody else holds them, and replaced by copies where somebody does.

    Args:
        captured: what the program was made from.
        updates: (output, input) pairs that the program writes in place.
        executor: runs it.
    """

    def __init__(
        self, captured: Captured, updates: Sequence[tuple[int, int]], executor: Executor
    ) -> None:
        self.executor = executor
        self._captured = captured
        self._readers = [_reader(s) for s in captured.sources]
        self._in_place = [i for _, i in updates]
        self._owned: dict[int, Any] = dict.fromkeys(self._in_place)
        self._lock = threading.Lock()
        in_place = {o for o, _ in updates}
        # Outputs that are arrays of their own, by their place among the executor's results.
        order = [o for o in range(len(captured.kinds)) if o not in in_place]
        self._place = {o: n for n, o in enumerate(order)}
        self._rebound = [(o, i) for o, i in captured.updates if o not in in_place]
        self._leaves, self._shape = tree.flatten(captured.results)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run once.

        Args:
            leaves: the arguments, flattened; those that are inputs are tensors.

        Returns:
            What the function returned, with new tensors.
        """
        if not self._in_place:
            return self.run(self.payloads(leaves), leaves)
        with self._lock:  # Two threads must not update one state at once.
            return self.run(self.payloads(leaves), leaves)

    def run(self, payloads: list[Any], leaves: Sequence[Any]) -> Any:
        """Run once on these arrays, and deliver the results."""
        return self._deliver(self.executor.run(payloads), leaves)

    def repeat(self, batches: Sequence[Sequence[Any]]) -> tuple[int, Any]:
        """Run once per batch of flattened arguments, in one native loop.

        Returns:
            The number of turns made (fewer where an interrupt is pending), and the last result.

        Raises:
            TraceError: state is written to new arrays, so turns cannot follow one another.
        """
        sources = self._captured.sources
        if self._rebound or any(isinstance(s, GradOf) for s in sources):
            raise TraceError(
                "sink",
                "the function leaves state in new arrays, such as gradients that accumulate",
                hint="clear gradients inside the function, and keep types of state as they are",
            )
        with self._lock:
            count = sum(isinstance(s, (Argument, HostValue)) for s in sources)
            first = self.payloads(batches[0])
            rows = [first[:count]]
            rows += [[read(b) for read in self._readers[:count]] for b in batches[1:]]
            varying = np.array(
                [[a.__array_interface__["data"][0] for a in row] for row in rows], np.int64
            ).reshape(len(rows), count)
            made, results = self.executor.repeat(first, varying)
            return made, self._deliver(results, batches[max(made - 1, 0)])

    def payloads(self, leaves: Sequence[Any]) -> list[Any]:
        """The arrays of all inputs; those that are updated belong to nobody but their handles."""
        for i in self._in_place:
            self._own(i, leaves)
        return [read(leaves) for read in self._readers]

    def _own(self, i: int, leaves: Sequence[Any]) -> None:
        handle = self._handle(i, leaves)
        mine = self._owned[i]
        if handle._data is not mine or sys.getrefcount(handle._data) > _HOLDERS + 1:
            mine = None
            fresh = np.array(to_host(handle._data), order="C", copy=True)
            self._owned[i] = handle._data = fresh

    def _handle(self, i: int, leaves: Sequence[Any]) -> Tensor:
        source = self._captured.sources[i]
        if isinstance(source, State):
            return source.tensor
        found: Tensor = leaves[source.index] if isinstance(source, Argument) else leaves[0]
        return found

    def _deliver(self, results: list[Any], leaves: Sequence[Any]) -> Any:
        """Results to whoever waits for them: handles, gradients, the caller."""
        captured, kinds, place = self._captured, self._captured.kinds, self._place
        for output, i in self._rebound:
            _set(self._handle(i, leaves), results[place[output]], kinds[output])
        for output, tensor in captured.gradients:
            tensor.grad = wrap(results[place[output]], kinds[output])
        for tensor in captured.cleared:
            tensor.grad = None
        for output, reference in captured.escaped:
            alive = reference()
            if alive is not None:
                _set(alive, results[place[output]], kinds[output])
        if self._shape is tree.LEAF:
            return self._result(self._leaves[0], results)
        return tree.unflatten(self._shape, [self._result(x, results) for x in self._leaves])

    def _result(self, leaf: Any, results: list[Any]) -> Any:
        if type(leaf) is Output:
            return wrap(results[self._place[leaf.index]], self._captured.kinds[leaf.index])
        return leaf


def _set(handle: Tensor, array: Any, kind: EagerType) -> None:
    handle._data = array
    handle._kind = kind
    handle._trace = None


def _reader(source: Any) -> Any:
    """How the array of one input is found at each call, from the flattened arguments."""
    if isinstance(source, Argument):
        index = source.index
        return lambda leaves: _dense(leaves[index]._data)
    if isinstance(source, State):
        tensor = source.tensor
        return lambda leaves: _dense(tensor._data)
    if isinstance(source, GradOf):
        owner = source.tensor
        return lambda leaves: _dense(owner.grad._data)
    if isinstance(source, HostValue):
        read, dtype, shape = source.read, source.dtype, source.shape
        return lambda leaves: np.asarray(read(), dtype).reshape(shape)
    raise TypeError(f"no input is read from {source!r}")


def _dense(payload: Any) -> Any:
    """A row-major array on the host; the payload itself where it is one."""
    array = payload if type(payload) is np.ndarray else to_host(payload)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
