"""`Executor`: binds arrays to the bases of a loaded program and runs it.

A run needs a frame: the table of base addresses and an arena. Frames are kept for reuse; threads
that run one program at the same time get one each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.program import Address, Host
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.engine.plan import HostTask, Loaded, address, memory
from treadle.ops.op import as_tuple
from treadle.runtime.host import HostBuffer

Array = npt.NDArray[Any]


class _Frame:
    """Addresses and scratch memory of one run at a time."""

    __slots__ = ("arena", "bases", "version")

    def __init__(self, loaded: Loaded) -> None:
        plan = loaded.plan
        self.arena: HostBuffer = memory("activations", plan.memory.peak)
        self.bases = np.zeros(plan.bases, np.int64)
        self.bases[-3:] = [address(b.bytes) for b in (loaded.constants, loaded.kept, self.arena)]
        self.version: object = None
        """Names the inputs whose addresses are in the table; None where they must be written."""


class Executor:
    """Runs a loaded program.

    Args:
        loaded: the program.
        results: types of the outputs that are not updates, in order.
        frozen: inputs that the prelude packs; it runs again when one of them is another array.
    """

    def __init__(
        self, loaded: Loaded, results: Sequence[TensorType], frozen: Sequence[int] = ()
    ) -> None:
        self.loaded = loaded
        self._results = [(_extents(t), t.dtype.numpy) for t in results]
        self._frames: list[_Frame] = []
        self._frozen = tuple(frozen) if loaded.prelude is not None else ()
        self._packed: list[Any] = [None] * len(self._frozen)
        self._packed_version: object = None
        self._packing = threading.Lock()
        self._ready = loaded.prelude is None

    @property
    def peak(self) -> int:
        """Bytes of scratch memory that one run needs."""
        return self.loaded.plan.memory.peak

    def run(self, inputs: Sequence[Array], varying: int = 0, version: object = None) -> list[Array]:
        """Run once; inputs that are updated are written in place.

        Args:
            inputs: dense row-major arrays of the program's input types.
            varying: how many of the first ones may be others than those of the last run.
            version: names the rest: as long as it is the same object, so are they. None: all may
                be others.

        Returns:
            New arrays, one per result.
        """
        frame = self._frames.pop() if self._frames else _Frame(self.loaded)
        try:
            results = self._bind(frame, inputs, varying, version)
            if version is None or version is not self._packed_version:
                self._pack(frame, inputs)
                self._packed_version = version
            reached = self.loaded.main.run(frame.bases)
            while reached >= 0:
                self._serve(frame, inputs, results, reached)
                reached = self.loaded.main.run(frame.bases, reached + 1)
            return results
        finally:
            self._frames.append(frame)

    def _bind(
        self,
        frame: _Frame,
        inputs: Sequence[Array],
        varying: int = 0,
        version: object = None,
    ) -> list[Array]:
        """Write the addresses of inputs, and of new arrays for the results, which it returns."""
        bases, empty = frame.bases, self.loaded.empty
        known = version is not None and frame.version is version
        for i in range(varying if known else len(inputs)):
            bases[i] = inputs[i].__array_interface__["data"][0]
        frame.version = version
        results = []
        at = len(inputs)
        for shape, dtype in self._results:
            made = empty(shape, dtype)
            bases[at] = made.__array_interface__["data"][0]
            results.append(made)
            at += 1
        return results

    def repeat(
        self, inputs: Sequence[Array], varying: npt.NDArray[np.int64]
    ) -> tuple[int, list[Array]]:
        """Run once per row of `varying` in one native loop, without returning to Python.

        Args:
            inputs: of the first turn.
            varying: for each turn the addresses of the first inputs, one column per input.

        Returns:
            The number of turns made, fewer than asked for where an interrupt is pending, and the
            results of the last one.

        Raises:
            CompileError: the program has host tasks.
        """
        if self.loaded.plan.host:
            names = ", ".join(sorted({t.op.name for t in self.loaded.plan.host}))
            raise CompileError(
                "sink",
                "the program returns to Python in every turn",
                saw=f"ops left to the host: {names}",
                hint="call it step by step",
            )
        frame = self._frames.pop() if self._frames else _Frame(self.loaded)
        try:
            results = self._bind(frame, inputs)
            self._pack(frame, inputs)
            made = self.loaded.main.repeat(frame.bases, varying)
            return made, results
        finally:
            self._frames.append(frame)

    def profile(self, inputs: Sequence[Array], repeats: int = 1) -> npt.NDArray[np.int64]:
        """Run a few times and measure every step, host tasks included.

        Nothing that is passed changes: inputs that are updated are copied first.

        Returns:
            For each run and step of the plan four numbers, see `Executable.profile`.
        """
        plan, frame = self.loaded.plan, _Frame(self.loaded)
        updated = {i for _, i in plan.updates}
        inputs = [x.copy() if i in updated else x for i, x in enumerate(inputs)]
        results = self._bind(frame, inputs)
        self._pack(frame, inputs)
        times = np.zeros((repeats, len(plan.steps), 4), np.int64)
        for run in times:
            reached = self.loaded.main.profile(frame.bases, run)
            while reached >= 0:
                start = time.monotonic_ns()
                self._serve(frame, inputs, results, reached)
                end = time.monotonic_ns()
                run[reached] = start, end, run[reached, 2] + end - start, run[reached, 3] + 1
                reached = self.loaded.main.profile(frame.bases, run, reached + 1)
        return times

    def close(self) -> None:
        """Give the frames' memory back; running again makes new ones."""
        self._frames.clear()

    # -- packed weights --------------------------------------------------------------------

    def _pack(self, frame: _Frame, inputs: Sequence[Array]) -> None:
        """Fill the kept memory where a frozen input is not the array that was packed."""
        if self.loaded.prelude is None:
            return
        if self._ready and all(
            [inputs[i] is p for i, p in zip(self._frozen, self._packed, strict=True)]
        ):
            return
        with self._packing:
            self.loaded.prelude.run(frame.bases)
            self._packed = [inputs[i] for i in self._frozen]
            self._ready = True

    # -- host tasks ------------------------------------------------------------------------

    def _serve(
        self, frame: _Frame, inputs: Sequence[Array], results: Sequence[Array], step: int
    ) -> None:
        """Do the host task at a step."""
        plan = self.loaded.plan
        halt = plan.steps[step]
        if not isinstance(halt, Host):
            raise CompileError("execute", f"step {step} is no host task")
        memories = [
            *inputs,
            *results,
            self.loaded.constants.bytes,
            self.loaded.kept.bytes,
            frame.arena.bytes,
        ]
        _perform(plan.host[halt.task], memories)


def _perform(task: HostTask, memories: Sequence[Array]) -> None:
    """Run an op's oracle on memory of the program."""
    arrays = [_array(memories, a, t) for a, t in task.inputs]
    results = as_tuple(task.op.reference(*arrays))
    for result, (where, type_) in zip(results, task.outputs, strict=True):
        _array(memories, where, type_)[...] = result


def _array(memories: Sequence[Array], where: Address, type_: TensorType) -> Array:
    """An array over memory of the program."""
    raw = memories[where.base].reshape(-1).view(np.uint8)
    shape = _extents(type_)
    part = raw[where.offset : where.offset + type_.nbytes]
    made: Array = part.view(type_.dtype.numpy).reshape(shape)
    return made


def _extents(type_: TensorType) -> tuple[int, ...]:
    """The shape of a type that is static, as everything compiled is."""
    return tuple([d for d in type_.shape if isinstance(d, int)])
