"""`Scheduler`: runs the parts of a program over several devices, those that can at the same time.

Every device has a worker, one thread of the process. A part starts on it when all that it reads is
there; nobody waits inside a worker for another one, so workers cannot wait for each other. A value
that several parts of a device read is copied there once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.engine.devices.names import CompNode
from treadle.engine.execute.counters import Counters, Tally, total
from treadle.engine.execute.runner import Runner
from treadle.engine.execute.timeline import Span, Timeline
from treadle.engine.spread import DevicePart, Memory, PartInput, Spread
from treadle.graph.ir import Value
from treadle.ops.constant import Constant
from treadle.runtime.array import DeviceArray, to_device

_HOST = "cpu0"
"""Name of the host in reports where any of its names would do."""


class _Workers:
    """One thread per device, made when it is first needed."""

    def __init__(self) -> None:
        self._pools: dict[Memory, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    def submit(self, device: CompNode, work: Callable[[], None]) -> None:
        """Submit work to the device's worker, after what it was given before."""
        with self._lock:
            pool = self._pools.get(device.memory)
            if pool is None:
                name = f"treadle-{device.physical_name.partition(':')[0]}"
                pool = self._pools[device.memory] = ThreadPoolExecutor(1, name)
        pool.submit(work)

    def renew(self) -> None:
        """Start anew in a child process, which has no threads of its parent."""
        self._pools, self._lock = {}, threading.Lock()


_WORKERS = _Workers()
os.register_at_fork(after_in_child=_WORKERS.renew)


@dataclass(slots=True)
class _Run:
    """One run on its way.

    Attributes:
        inputs: of the program.
        made: results of the parts that have run.
        waits: for each part, how many parts it waits for.
        moved: copies of values on other devices, by source and memory.
        running: parts that were submitted and have not ended.
        done: nothing runs any more.
        contexts: for each part, what holds where the caller is, such as policies.
        exact: wait for devices at the end of every part, so that times are those of the work.
    """

    inputs: Sequence[Any]
    made: list[Sequence[Any]]
    waits: list[int]
    contexts: list[Context]
    exact: bool
    moved: dict[tuple[PartInput, Memory], Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    spans: list[Span] = field(default_factory=list)
    running: int = 0
    copies: int = 0
    copied: int = 0


class Scheduler:
    """Runs a program that was cut by device.

    Args:
        name: of the program.
        spread: its parts.
        runners: what runs each part.
    """

    def __init__(self, name: str, spread: Spread, runners: Sequence[Runner]) -> None:
        self._name = name
        self._parts = spread.parts
        self._runners = list(runners)
        self._outputs = spread.outputs
        self._free = spread.free
        self._before = [{s.part for s in p.sources if s.part >= 0} for p in spread.parts]
        self._after: list[list[int]] = [[] for _ in spread.parts]
        for i, before in enumerate(self._before):
            for j in before:
                self._after[j].append(i)
        self._leaving = _leaving(spread.parts)
        self._tally = Tally()
        self._counting = threading.Lock()
        self._copies: Counter[str] = Counter()
        self.last = Timeline(name, ())
        """The run before; times of devices that work asynchronously are those of submission."""

    @classmethod
    def of_one(cls, part: DevicePart, runner: Runner) -> Scheduler:
        """A scheduler of a program that is one part, to measure it as others are."""
        sources = tuple(PartInput(-1, i) for i in range(len(part.graph.inputs)))
        outputs = tuple(PartInput(0, i) for i in range(len(part.graph.outputs)))
        whole = DevicePart(part.graph, part.home, sources)
        return cls(part.graph.name, Spread((whole,), outputs, frozenset()), [runner])

    @property
    def counters(self) -> Counters:
        """Cost of all runs so far at the border; entries are runs of parts."""
        launches = sum(r.counters.launches for r in self._runners)
        made = total([self._tally], 0)
        copies, copied = self._copies["copies"], self._copies["bytes"]
        return Counters(made.iterations, made.entries, made.transfers, launches, copies, copied)

    def run(self, inputs: Sequence[Any], varying: int = 0, version: object = None) -> list[Any]:
        """Run once; nothing that is passed changes.

        Args:
            inputs: arrays of the program's inputs, each on its device.
            varying, version: as for programs of one device; nothing depends on them here.

        Returns:
            One array per output, where it was computed.
        """
        return self._finished(self._started(inputs, exact=False))

    def measure(self, inputs: Sequence[Any]) -> Timeline:
        """Run once and wait for devices after every part, so that spans are those of the work."""
        self._finished(self._started(inputs, exact=True))
        return self.last

    def close(self) -> None:
        """Give back what parts keep between runs."""
        for runner in self._runners:
            runner.close()

    # -- one run ---------------------------------------------------------------------------

    def _started(self, inputs: Sequence[Any], *, exact: bool) -> _Run:
        count = len(self._parts)
        run = _Run(
            inputs=inputs,
            made=[()] * count,
            waits=[len(b) for b in self._before],
            contexts=[copy_context() for _ in range(count)],
            exact=exact,
        )
        ready = [i for i, n in enumerate(run.waits) if not n]
        run.running = len(ready)
        if not ready:
            run.done.set()
        for i in ready:
            self._submit(run, i)
        return run

    def _submit(self, run: _Run, i: int) -> None:
        def work() -> None:
            run.contexts[i].run(self._do, run, i)

        _WORKERS.submit(self._parts[i].home, work)

    def _finished(self, run: _Run) -> list[Any]:
        """The outputs, once nothing runs any more.

        Raises:
            Exception: what the first part to fail raised; no handle has changed.
        """
        run.done.wait()
        spans = sorted(run.spans, key=lambda s: s.start)
        self.last = Timeline(self._name, tuple(spans))
        if run.error is not None:
            try:
                raise run.error
            finally:
                run.error = None  # or it and this frame would hold each other
        outputs = [self._output(run, source) for source in self._outputs]
        with self._counting:
            self._tally.iterations += 1
            self._tally.entries += len(self._parts)
            self._tally.transfers += len(run.inputs) + len(outputs)
            self._copies["copies"] += run.copies
            self._copies["bytes"] += run.copied
        return outputs

    def _output(self, run: _Run, source: PartInput | Value) -> Any:
        if isinstance(source, PartInput):
            return self._value(run, source)
        node = source.producer
        if node is None or not isinstance(node.op, Constant):
            raise TypeError(f"{source!r} is computed by no part")
        return np.asarray(node.op.reference())

    @staticmethod
    def _value(run: _Run, source: PartInput) -> Any:
        return run.inputs[source.index] if source.part < 0 else run.made[source.part][source.index]

    def _do(self, run: _Run, i: int) -> None:
        """Run a part on its worker, and hand on to those that waited for it."""
        try:
            if run.error is None:
                run.made[i] = self._results(run, i)
        except BaseException as error:  # raised where the program was called
            run.error = run.error or error
        with run.lock:
            ready = []
            for j in self._after[i]:
                run.waits[j] -= 1
                if not run.waits[j]:
                    ready.append(j)
            ready = [] if run.error is not None else ready
            run.running += len(ready) - 1
            over = not run.running
        for j in ready:
            self._submit(run, j)
        if over:
            run.done.set()

    def _results(self, run: _Run, i: int) -> Sequence[Any]:
        part, runner = self._parts[i], self._runners[i]
        inputs = [self._arrived(run, source, part.home) for source in part.sources]
        began = time.monotonic_ns()
        made = runner.run(inputs)
        if run.exact and not part.home.on_host:
            part.home.open().synchronize()
        place = _short(part.home)
        self._note(run, Span(part.graph.name, place, "part", began, time.monotonic_ns()))
        # Others wait for these: they come down before the device is given more to do.
        for j in self._leaving[i]:
            if type(made[j]) is DeviceArray and not self._direct(made[j], i):
                self._copy(run, made[j], _HOST, made[j].host)
        return made

    def _direct(self, array: DeviceArray, i: int) -> bool:
        """Return whether all devices that wait for results of a part can fetch them without the
        host.
        """
        homes = {self._parts[j].home for j in self._after[i]}
        away = [h for h in homes if h.memory != self._parts[i].home.memory]
        return all(not h.on_host and h.open().reaches(array.device) for h in away)

    def _arrived(self, run: _Run, source: PartInput, home: CompNode) -> Any:
        """A value on the device that reads it, copied there by the first part that does."""
        given = self._value(run, source)
        if source.part < 0 and source.index in self._free:
            return given
        if home.on_host:
            if type(given) is not DeviceArray:
                return given
            return given.host() if given.on_host else self._copy(run, given, _HOST, given.host)
        device = home.open()
        if type(given) is DeviceArray and given.device is device:
            return given
        key = source, home.memory  # Only this device's worker comes here with it.
        if key not in run.moved:

            def move() -> DeviceArray:
                made = to_device(given, device)
                _ = made.block  # Now, and not in the middle of the part.
                return made

            run.moved[key] = self._copy(run, given, _short(home), move)
        return run.moved[key]

    def _copy(self, run: _Run, array: Any, place: str, copy: Callable[[], Any]) -> Any:
        """Make a copy that is counted and shows in the timeline."""
        began = time.monotonic_ns()
        made = copy()
        what = f"{np.dtype(array.dtype).name}[{','.join(map(str, array.shape))}]"
        ended = time.monotonic_ns()
        self._note(run, Span(what, place, "copy", began, ended, array.nbytes))
        with run.lock:
            run.copies += 1
            run.copied += array.nbytes
        return made

    @staticmethod
    def _note(run: _Run, span: Span) -> None:
        with run.lock:
            run.spans.append(span)


def _leaving(parts: Sequence[DevicePart]) -> list[list[int]]:
    """Return for each part the numbers of its results that other devices read."""
    found: list[set[int]] = [set() for _ in parts]
    for part in parts:
        for source in part.sources:
            if source.part >= 0 and parts[source.part].home.memory != part.home.memory:
                found[source.part].add(source.index)
    return [sorted(numbers) for numbers in found]


def _short(device: CompNode) -> str:
    """The physical device without its stream."""
    return device.physical_name.partition(":")[0]
