"""A captured program bound to the handles it reads and writes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from treadle.backends.watch import SlotWatch
from treadle.base import tree
from treadle.base.errors import TraceError
from treadle.base.observer import OBSERVER
from treadle.base.references import references
from treadle.base.symbol import Expr
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.eager.dispatch import EagerType
from treadle.engine.execute import Executor, ProgramInstance, Runner
from treadle.jit.capture import payload
from treadle.jit.captured import (
    Argument,
    CapturedCall,
    GradOf,
    HostValue,
    Output,
    State,
    fits,
    held,
    numbers_at,
    source_at,
)
from treadle.runtime.array import to_device, to_host
from treadle.runtime.host import OwnMemory
from treadle.tensor import Tensor, wrap

_HOLDERS = 6
"""References to an array of state that only its handle holds, as `getrefcount` sees them here: the
handle, `seen` and `arrays` of the `SlotWatch`, the two lists of `Binding.payloads`, and the
argument itself."""


_FOUND = 7
"""References to an array that only its handle holds, where `_is_ours` looks at it."""
_BASE = 4
"""References to the memory below it: the array, a variable, and the two that counting takes. To the
array of an argument there are as many, the handle's instead of the array's."""


class Payloads(NamedTuple):
    """The arrays of all inputs of one call; `version` names those of state."""

    arrays: list[Any]
    version: object


class StateChanged(TraceError):
    """A tensor that the program reads by itself has another shape or type than it was made for."""


class _Shared:
    """Knowledge of the handles of state that all programs of one capture share."""

    __slots__ = ("lock", "watch")

    def __init__(self, watch: SlotWatch) -> None:
        self.watch = watch
        self.lock = threading.Lock()


class Binding:
    """Runs a program on the present values of its handles, and writes results back.

    State that a program of the host updates lives in arrays it owns: they are written in place as
    long as nobody else holds them, and replaced by copies where somebody does. Programs of other
    devices write to new arrays, which handles take when the whole run has been submitted.

    Args:
        captured: what the program was made from.
        updates: (output, input) pairs that the program writes in place.
        executor: runs it.
    """

    def __init__(
        self, captured: CapturedCall, updates: Sequence[tuple[int, int]], executor: Runner
    ) -> None:
        self.executor = executor
        self._captured = captured
        sources = captured.sources
        self._varying = sum(not isinstance(s, State) for s in sources)
        types, self._on_host = captured.graph.input_types, captured.on_host
        self._dense = _dense if self._on_host else _as_found
        inputs = zip(sources[: self._varying], types, captured.at, strict=False)
        self._readers = [_reader(s, t, at, self._dense) for s, t, at in inputs]
        self._open = [i for i in range(self._varying) if _depends(sources[i], types[i])]
        self._tensors = tuple([s.tensor for s in sources if isinstance(s, State)])
        self._draws = any(isinstance(s, HostValue) and s.extents for s in sources)
        self._reads_gradients = any(isinstance(s, GradOf) for s in sources)
        self._types = types[self._varying :]
        self._at = captured.at[self._varying :]
        taken = sorted(i for _, i in updates)
        self._own_arguments = [i for i in taken if i < self._varying]
        self._mine = [i - self._varying for i in taken if i >= self._varying]
        unknown = [None] * len(self._tensors)
        self._state = _Shared(self._watch(unknown, unknown))
        self._writes = bool(taken or captured.updates or captured.streams)
        in_place = {o for o, _ in updates}
        # Outputs that are arrays of their own, by their place among the executor's results.
        order = [o for o in range(len(captured.kinds)) if o not in in_place]
        self._place = {o: n for n, o in enumerate(order)}
        self._rebound = [(o, i) for o, i in captured.updates if o not in in_place]
        # Constants among the results are wherever the program is.
        self._kinds = [captured.kinds[o] for o in order]
        homes = {captured.home.memory, *(k.device.memory for k in self._kinds)}
        self._scattered = not self._on_host or len(homes) > 1
        self._leaves, self._shape = tree.flatten(captured.results)
        self._returns_extents = any(isinstance(x, Expr) for x in self._leaves)
        self._only = self._only_result()
        self._found: list[Callable[[Sequence[Any]], Any]] | None = None
        self._needs_python = bool(self._own_arguments or self._scattered)
        self._look_natively()

    def _look_natively(self) -> None:
        """Set up native code that looks at handles and runs in one, where there is any."""
        executor = self.executor
        if isinstance(executor, Executor | ProgramInstance) and not self._needs_python:
            self._run_natively(executor)
            self._found = _finders(self._captured.sources[: self._varying], self._readers)

    def at(self, extents: Mapping[str, int], executor: Runner) -> Binding:
        """The same handles with a program at certain extents, by symbol."""
        made = object.__new__(Binding)
        made.__dict__.update(self.__dict__)
        made.executor = executor
        if self._returns_extents:
            made._leaves = numbers_at(self._leaves, extents)
        if self._open:
            captured, made._readers = self._captured, list(self._readers)
            for i in self._open:
                source, type_ = (
                    source_at(captured.sources[i], extents),
                    captured.graph.input_types[i],
                )
                shape = tuple(numbers_at(type_.shape, extents))
                made._readers[i] = _reader(
                    source, type_.with_shape(shape), captured.at[i], self._dense
                )
        if self._open or self._found is None:
            made._look_natively()
        elif isinstance(executor, ProgramInstance):
            made._run_natively(executor)
        return made

    def _run_natively(self, runner: Executor | ProgramInstance) -> None:
        self._extents = runner.at if isinstance(runner, ProgramInstance) else None
        executor = runner.executor if isinstance(runner, ProgramInstance) else runner
        self._run_if_unchanged = executor.run_if_unchanged

    @property
    def sees_known_state(self) -> bool:
        """True if every handle that is read holds what the last run was given, and gradients are
        not read.
        """
        if self._reads_gradients:
            return False
        return all(map(is_, [t._data for t in self._tensors], self._state.watch.seen))

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run once.

        Args:
            leaves: the arguments, flattened; those that are inputs are tensors.

        Returns:
            What the function returned, with new tensors.
        """
        if not self._writes:
            return self._run(leaves)
        with self._state.lock:  # Two threads must not update one state at once.
            return self._run(leaves)

    def _run(self, leaves: Sequence[Any]) -> Any:
        if self._found is not None and OBSERVER.now is None:
            if self._draws:  # What is drawn cannot be given back.
                self._see_types()
            found = [find(leaves) for find in self._found]
            results = self._run_if_unchanged(found, self._state.watch, self._extents)
            if results is not None:
                return self._deliver(results, leaves)
            return self.run(self.payloads(leaves, found), leaves)
        return self.run(self.payloads(leaves), leaves)

    def run(self, payloads: Payloads, leaves: Sequence[Any]) -> Any:
        """Run once on these arrays, and deliver the results."""
        run, watching = self.executor.run, OBSERVER.now
        if watching is not None:
            name, plain = self._captured.graph.name, run
            run = lambda *given: watching.program(name, lambda: plain(*given))  # noqa: E731
        return self._deliver(run(payloads.arrays, self._varying, payloads.version), leaves)

    def repeat(self, batches: Sequence[Sequence[Any]]) -> tuple[int, Any]:
        """Run once per batch of flattened arguments, on the host in one native loop.

        Returns:
            The number of turns made (fewer where an interrupt is pending), and the last result.

        Raises:
            TraceError: state is written to new arrays, so turns cannot follow one another.
            IndexRangeError: an index was out of range; the turns before have been made.
        """
        if self._captured.streams or not isinstance(self.executor, Executor | ProgramInstance):
            found = [self(leaves) for leaves in batches]
            return len(found), found[-1]
        sources = self._captured.sources
        if self._rebound or not self._captured.repeats:
            raise TraceError(
                "sink",
                "the function leaves state in new arrays, such as gradients that accumulate",
                hint="clear gradients inside the function, and keep types of state as they are",
            )
        with self._state.lock:
            count = sum(isinstance(s, (Argument, HostValue)) for s in sources)
            first = self.payloads(batches[0]).arrays
            self._take_arguments(batches[1:], batches[0])
            rows = [first[:count]]
            for leaves in batches[1:]:
                row = [read(leaves) for read in self._readers[:count]]
                rows.append([*map(_unless_equal, sources, rows[-1], row)])
            varying = np.array(
                [[a.__array_interface__["data"][0] for a in row] for row in rows], np.int64
            ).reshape(len(rows), count)
            made, results = self.executor.repeat(first, varying)
            return made, self._deliver(results, batches[max(made - 1, 0)])

    def payloads(self, leaves: Sequence[Any], found: Sequence[Any] | None = None) -> Payloads:
        """The arrays of all inputs; those that are updated belong to nobody but their handles.

        Args:
            leaves: the arguments, flattened.
            found: inputs that were read for this call already: Python gives numbers once, since
                random states move on as they are read.
        """
        if self._own_arguments:
            self._take_arguments([leaves])
        state = self._state.watch
        now = [t._data for t in self._tensors]
        if not all(map(is_, now, state.seen)):
            state = self._look_again(now, state)
        if self._mine:
            mine = [now[k] for k in self._mine]
            if max(map(sys.getrefcount, mine)) > _HOLDERS:
                state = self._leave_shared(now, mine, state)
        if found is None:
            arrays = [read(leaves) for read in self._readers]
        else:
            given = zip(self._captured.sources, self._readers, found, strict=False)
            arrays = [x if isinstance(s, HostValue) else read(leaves) for s, read, x in given]
        return Payloads(arrays + state.arrays, state)

    def _see_types(self) -> None:
        """Raise `StateChanged` where state has other shapes or types than at the capture."""
        if not all(map(is_, [t._data for t in self._tensors], self._state.watch.seen)):
            self._check_types()

    def _check_types(self) -> None:
        if not all(map(fits, self._tensors, self._types, self._at)):
            raise _changed()

    def _take_arguments(
        self, batches: Sequence[Sequence[Any]], done: Sequence[Any] | None = None
    ) -> None:
        """Give arguments that are updated arrays of their own, each handle once."""
        taken = set() if done is None else {id(self._handle(i, done)) for i in self._own_arguments}
        for leaves in batches:
            for i in self._own_arguments:
                handle = self._handle(i, leaves)
                if id(handle) not in taken:
                    taken.add(id(handle))
                    if not _is_alone(handle):
                        handle._data = np.array(_dense(handle), order="C", copy=True)

    def _look_again(self, now: list[Any], before: SlotWatch) -> SlotWatch:
        """Look at handles that were rebound since the last call; `now` becomes what they hold."""
        self._check_types()
        arrays = [
            old if data is seen else self._dense(tensor)
            for tensor, data, seen, old in zip(
                self._tensors, now, before.seen, before.arrays, strict=True
            )
        ]
        for k in self._mine:
            if now[k] is before.arrays[k] or _is_ours(now[k], arrays[k]):
                continue
            # Whoever made this array may still hold it: the program writes to its own.
            arrays[k] = now[k] = np.array(arrays[k], order="C", copy=True)
            self._tensors[k]._data = now[k]
        self._state.watch = state = self._watch(now, arrays)
        return state

    def _watch(self, seen: Sequence[Any], arrays: list[Any]) -> SlotWatch:
        return SlotWatch(self._tensors, "_data", seen, arrays, self._mine)

    def _leave_shared(self, now: list[Any], mine: list[Any], before: SlotWatch) -> SlotWatch:
        """Leave arrays that others hold, too, to them, and go on with copies."""
        counts = map(sys.getrefcount, mine)
        shared = [k for k, n in zip(self._mine, counts, strict=True) if n > _HOLDERS]
        seen, arrays = list(now), list(before.arrays)
        for k in shared:
            arrays[k] = seen[k] = self._tensors[k]._data = np.array(now[k], order="C", copy=True)
        self._state.watch = state = self._watch(seen, arrays)
        return state

    def _handle(self, i: int, leaves: Sequence[Any]) -> Tensor:
        source = self._captured.sources[i]
        if isinstance(source, State):
            return source.tensor
        found: Tensor = leaves[source.index] if isinstance(source, Argument) else leaves[0]
        return found

    def _deliver(self, results: list[Any], leaves: Sequence[Any]) -> Any:
        """Results to whoever waits for them: handles, gradients, the caller."""
        if self._only is not None:
            at, kind = self._only
            return wrap(results[at], kind)
        captured, kinds, place = self._captured, self._captured.kinds, self._place
        if self._scattered:
            results = [_placed(r, k) for r, k in zip(results, self._kinds, strict=True)]
        for output, i in self._rebound:
            _set(self._handle(i, leaves), results[place[output]], kinds[output])
        for output, holder in captured.gradients:
            held(holder, leaves).grad = wrap(results[place[output]], kinds[output])
        for holder in captured.cleared:
            held(holder, leaves).grad = None
        for output, reference in captured.escaped:
            alive = reference()
            if alive is not None:
                _set(alive, results[place[output]], kinds[output])
        for output, leave in captured.streams:
            leave(results[place[output]])
        if self._shape is tree.LEAF:
            return self._result(self._leaves[0], results)
        return tree.unflatten(self._shape, [self._result(x, results) for x in self._leaves])

    def _only_result(self) -> tuple[int, EagerType] | None:
        """Return the only result's place and type, where everything that is delivered is one
        tensor.
        """
        captured = self._captured
        elsewhere = (
            self._rebound,
            captured.gradients,
            captured.cleared,
            captured.escaped,
            captured.streams,
        )
        if self._scattered or any(elsewhere) or self._shape is not tree.LEAF:
            return None
        leaf = self._leaves[0]
        if not isinstance(leaf, Output):
            return None
        return self._place[leaf.index], captured.kinds[leaf.index]

    def _result(self, leaf: Any, results: list[Any]) -> Any:
        if type(leaf) is Output:
            return wrap(results[self._place[leaf.index]], self._captured.kinds[leaf.index])
        return leaf


def _is_ours(data: Any, array: Any) -> bool:
    """Return whether the payload of a handle is in memory that nobody else has, and may be written
    to.

    References are the handle, two lists of the caller, both arguments, and two for counting.
    """
    if data is not array or not array.flags.writeable or references((array,)) > _FOUND:
        return False
    return _is_whole(array)


def _is_alone(handle: Tensor) -> bool:
    """Return whether only this handle holds its array, which may be written to."""
    array = handle._data
    if type(array) is not np.ndarray or references((array,)) > _BASE:
        return False
    flags = array.flags
    return flags.writeable and flags.c_contiguous and _is_whole(array)


def _is_whole(array: Any) -> bool:
    """Return whether no other array has a part of the memory."""
    base = array.base
    return base is None or (isinstance(base, OwnMemory) and references((base,)) <= _BASE)


def _unless_equal(source: Any, before: Any, now: Any) -> Any:
    """The array of the turn before where Python gives the same number again."""
    known = isinstance(source, HostValue) and bool((before == now).all())
    return before if known else now


def _set(handle: Tensor, array: Any, kind: EagerType) -> None:
    handle._data = array
    handle._kind = kind
    handle._trace = None


def _changed() -> StateChanged:
    return StateChanged(
        "jit",
        "a tensor that the function reaches has another shape or element type than at its capture",
        hint="call the compiled function, which captures anew",
    )


def _depends(source: Any, type_: TensorType) -> bool:
    """Return whether reading an input takes the extents of the call."""
    if isinstance(source, HostValue):
        return any(isinstance(e, Expr) for e in source.extents)
    return isinstance(source, GradOf) and not type_.is_static


def _reader(
    source: Any, type_: TensorType, at: CompNode | None, dense: Callable[[Tensor], Any]
) -> Any:
    """Return the function that finds one input's array at each call, from the flattened
    arguments.
    """
    if isinstance(source, Argument):
        index = source.index
        return lambda leaves: dense(leaves[index])
    if isinstance(source, State):
        tensor = source.tensor
        return lambda leaves: dense(tensor)
    if isinstance(source, GradOf):
        holder = source.holder

        def read_gradient(leaves: Sequence[Any]) -> Any:
            found = held(holder, leaves).grad
            if not isinstance(found, Tensor) or not fits(found, type_, at):
                raise _changed()
            return dense(found)

        return read_gradient
    if isinstance(source, HostValue):
        value = source.value
        return lambda leaves: value()
    raise TypeError(f"no input is read from {source!r}")


def _finders(
    sources: Sequence[Any], readers: Sequence[Any]
) -> list[Callable[[Sequence[Any]], Any]] | None:
    """Return functions that find inputs which native code looks at; None where gradients are among
    them.
    """
    if any(isinstance(s, GradOf) for s in sources):
        return None
    pairs = zip(sources, readers, strict=True)
    return [_finder(s.index) if isinstance(s, Argument) else read for s, read in pairs]


def _finder(index: int) -> Callable[[Sequence[Any]], Any]:
    return lambda leaves: leaves[index]._data


def _as_found(handle: Tensor) -> Any:
    """Return a handle's payload on its device; on the host row-major."""
    found = payload(handle)
    if not isinstance(found, np.ndarray) or found.flags.c_contiguous:
        return found
    return np.ascontiguousarray(found)


def _placed(result: Any, kind: EagerType) -> Any:
    """A result where the tensor that takes it is said to be."""
    return to_host(result) if kind.device.on_host else to_device(result, kind.device.open())


def _dense(handle: Tensor) -> Any:
    """A row-major array on the host; the handle's payload itself where it is one."""
    array = handle._data
    if type(array) is not np.ndarray:
        array = to_host(payload(handle))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
