"""`Executor`: binds arrays to the bases of a loaded program and runs it.

A run needs a frame: the table of base addresses and an arena. Frames are kept for reuse; threads
that run one program at the same time get one each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from treadle.backends.native_code import Executable
from treadle.backends.watch import SlotWatch
from treadle.base.array import Array
from treadle.base.errors import CompileError
from treadle.base.references import references
from treadle.base.types import TensorType
from treadle.engine.execute.arenas import LARGE, SHARED, Arena, Arenas
from treadle.engine.execute.counters import Counters, NativeTally, Tally, total
from treadle.engine.execute.frames import At, Frame
from treadle.engine.execute.host_tasks import IndexFailure, extents, unknown_index
from treadle.engine.execute.segments import SegmentInstance
from treadle.engine.execute.serving import HostTasks, Many
from treadle.engine.plan import Loaded, Plan
from treadle.ops.check import CheckIndices
from treadle.runtime.host import HostBuffer, address, memory

_OWN_BASES = 3  # constants, what is packed, scratch memory: behind inputs and results
_WATCH = SlotWatch((), "", (), [], ())
_NOTHING = cast(npt.NDArray[np.int64], _WATCH.words)
"""An empty list of watched objects, for runs that are given their arrays."""
_UNUSED = 3
"""References to what is packed where only the executor has it: a local name, and two for
counting."""


class _Packed:
    """Results of a prelude from frozen inputs. Runs hold on to them; those that runs hold are not
    changed.

    Attributes:
        buffer: where it is.
        arrays: the frozen inputs.
        version: names all inputs that are not varying, as they were when it was last looked at.
    """

    __slots__ = ("arrays", "buffer", "version")

    def __init__(self, buffer: HostBuffer, arrays: list[Any]) -> None:
        self.buffer = buffer
        self.arrays = arrays
        self.version: object = None


class Bound(NamedTuple):
    """A program for native code, which runs it one run at a time.

    Attributes:
        program: address of its words.
        bases: its own table: addresses of inputs and results come first, the others are there.
        runs: a word that it adds 1 to for every run.
        kept: what has to stay while it may run.
    """

    program: int
    bases: npt.NDArray[np.int64]
    runs: npt.NDArray[np.int64]
    kept: object


class Packs:
    """Results that programs which share their kept memory have packed last."""

    __slots__ = ("current", "lock")

    def __init__(self) -> None:
        self.current: _Packed | None = None
        self.lock = threading.Lock()


class Executor:
    """Runs a loaded program.

    Args:
        loaded: the program.
        results: types of the outputs that are not updates, in order.
        frozen: inputs that the prelude packs; it runs again when one of them is another array.
        launches: of host tasks, by number, that are not found by asking engines.
        index_error: what to raise where check number so-and-so of the program finds an index that
            is out of range.
        packs: of programs that share what is packed with this one.
        many: for a program for many extents, whose runs are at an `ProgramInstance` each.
    """

    def __init__(
        self,
        loaded: Loaded[Executable],
        results: Sequence[TensorType],
        frozen: Sequence[int] = (),
        launches: Mapping[int, Callable[..., Any] | SegmentInstance] | None = None,
        index_error: IndexFailure = unknown_index,
        packs: Packs | None = None,
        many: Many | None = None,
    ) -> None:
        self.loaded = loaded
        self._host_tasks = HostTasks(loaded, launches, index_error, many)
        self._results = [(extents(t), t.dtype.numpy) for t in results]
        self._frames: list[Frame] = []
        self._tallies: list[Tally | NativeTally] = []
        self._frozen = tuple(frozen) if loaded.prelude is not None else ()
        self._packs = packs or Packs()
        self._arenas = _shared(self, loaded.plan) if many is None else many.arenas

    @property
    def peak(self) -> int:
        """Bytes of scratch memory that one run needs."""
        return self.loaded.plan.memory.peak

    @property
    def counters(self) -> Counters:
        """Cost of all runs so far, those of profiles left out, at the program's border."""
        return total(self._tallies, self.loaded.plan.launches)

    def run(
        self,
        inputs: Sequence[Array],
        varying: int = 0,
        version: object = None,
        at: At | None = None,
    ) -> list[Array]:
        """Run once; inputs that are updated are written in place.

        Args:
            inputs: dense row-major arrays of the program's input types.
            varying: how many of the first ones may be others than those of the last run.
            version: names the rest: as long as it is the same object, so are they. None: all may
                be others.
            at: the extents, for a program for many.

        Returns:
            New arrays, one per result.

        Raises:
            IndexRangeError: an index is out of range. Nothing was updated, but for inputs that the
                index depends on.
        """
        frame = self._frame(at)
        try:
            packed = None
            if self.loaded.prelude is None:
                results, reached = self._called(frame, inputs, varying, version)
            else:
                results = self._bind(frame, inputs, varying, version)
                packed = self._pack(frame, inputs, version)
                reached = self.loaded.main.run(frame.bases)
            frame.tally.iterations += 1
            frame.tally.entries += 1
            if reached >= 0:
                self._go_on(frame, inputs, results, reached)
            del packed
            return results
        finally:
            self._leave(frame)

    def run_if_unchanged(
        self, inputs: Sequence[Any], watch: SlotWatch, at: At | None = None
    ) -> list[Array] | None:
        """Run as `run` does, in one native call, if all inputs but the first ones are unchanged.

        Args:
            inputs: the first ones, whatever they are.
            watch: names the others, and tells native code how to see that they have not changed.
            at: the extents, for a program for many.

        Returns:
            None where nothing has run, since inputs are not row-major arrays of the host, or the
            others have changed or were not those of the frame's last run. `run` is to be called.
        """
        frame = self._frame(at)
        try:
            packed = self._packs.current
            if frame.version is not watch or watch.words is None:
                return None
            if self.loaded.prelude is not None and (
                packed is None or packed.version is not watch or frame.kept is not packed.buffer
            ):
                return None
            empty, given = self.loaded.empty, len(inputs)
            kinds = self._results if at is None else at.results
            results = [empty(shape, dtype) for shape, dtype in kinds]
            first = given + len(watch.seen)
            reached = self.loaded.main.call(
                frame.bases, (*inputs, *results), given, first, watch.words
            )
            if reached < -1:
                return None
            tally = frame.tally
            tally.transfers += given + len(results)
            tally.iterations += 1
            tally.entries += 1
            if reached >= 0:
                self._go_on(frame, [*inputs, *watch.arrays], results, reached)
            del packed
            return results
        finally:
            self._leave(frame)

    def _go_on(
        self, frame: Frame, inputs: Sequence[Array], results: list[Array], reached: int
    ) -> None:
        """The rest of a run from the host task on that it has reached, if any."""
        while reached >= 0:
            self._host_tasks.serve(frame, inputs, results, reached)
            frame.tally.entries += 1
            reached = self.loaded.main.run(frame.bases, reached + 1)

    def bound(self, at: At | None = None) -> Bound | None:
        """Return what native code runs the program with, by addresses of dense row-major memory.

        None for programs that pack or update inputs, or leave ops to the host: Python runs them.
        """
        plan = self.loaded.plan
        address: int = getattr(self.loaded.main, "address", 0)
        if not address or self.loaded.prelude is not None or plan.left or plan.updates:
            return None
        frame = Frame(self.loaded, Tally(), Arena(self.peak if at is None else at.peak))
        if at is not None:
            frame.turn_to(at)
        tally = NativeTally(plan.bases - _OWN_BASES)
        self._tallies.append(tally)
        return Bound(address, frame.bases, tally.runs, (self.loaded, frame))

    def _frame(self, at: At | None) -> Frame:
        """A frame that nobody uses."""
        try:
            frame = self._frames.pop()
        except IndexError:
            tally = Tally()
            self._tallies.append(tally)
            frame = Frame(self.loaded, tally, None if self._arenas else Arena(self.peak))
        if at is not None and frame.at is not at:
            frame.turn_to(at)
        if self._arenas is not None:
            nbytes = self.peak if at is None else at.peak
            if nbytes:
                frame.lend(self._arenas.take(nbytes))
        return frame

    def _leave(self, frame: Frame) -> None:
        """Make a frame free for other runs."""
        if self._arenas is not None and frame.arena is not None:
            self._arenas.give(frame.returned(frame.arena))
        self._frames.append(frame)

    def _bind(
        self,
        frame: Frame,
        inputs: Sequence[Array],
        varying: int = 0,
        version: object = None,
    ) -> list[Array]:
        """Write the addresses of inputs, and of new arrays for the results, which it returns."""
        results, given = self._new(frame, inputs, varying, version)
        _write(frame.bases, inputs, given, results)
        return results

    def _called(
        self, frame: Frame, inputs: Sequence[Array], varying: int, version: object
    ) -> tuple[list[Array], int]:
        """Run a program that packs nothing; native code reads addresses off the arrays.

        Returns:
            New arrays for the results, and the number of the host task reached, or -1.
        """
        results, given = self._new(frame, inputs, varying, version)
        arrays, main = (*inputs[:given], *results), self.loaded.main
        reached = main.call(frame.bases, arrays, given, len(inputs), _NOTHING)
        if reached < -1:  # Arrays of another class, or another kind of code.
            _write(frame.bases, inputs, given, results)
            reached = main.run(frame.bases)
        return results, reached

    def _new(
        self, frame: Frame, inputs: Sequence[Array], varying: int, version: object
    ) -> tuple[list[Array], int]:
        """New arrays for the results, and how many inputs are to be given anew."""
        known = version is not None and frame.version is version
        given, empty = varying if known else len(inputs), self.loaded.empty
        frame.version = version
        kinds = self._results if frame.at is None else frame.at.results
        results = [empty(shape, dtype) for shape, dtype in kinds]
        frame.tally.transfers += given + len(results)
        return results, given

    def repeat(
        self,
        inputs: Sequence[Array],
        varying: npt.NDArray[np.int64],
        at: At | None = None,
    ) -> tuple[int, list[Array]]:
        """Run once per row of `varying` in one native loop, without returning to Python.

        Args:
            inputs: of the first turn.
            varying: for each turn the addresses of the first inputs, one column per input.
            at: the extents, for a program for many.

        Returns:
            The number of turns made, fewer than asked for where an interrupt is pending, and the
            results of the last one.

        Raises:
            CompileError: the program has host tasks.
            IndexRangeError: an index was out of range; the turns before have been made.
        """
        if self.loaded.plan.left:
            names = ", ".join(sorted({t.op.name for t in self.loaded.plan.left}))
            raise CompileError(
                "sink",
                "the program returns to Python in every turn",
                saw=f"ops left to the host: {names}",
                hint="call it step by step",
            )
        frame = self._frame(at)
        try:
            results = self._bind(frame, inputs)
            packed = self._pack(frame, inputs)
            made, reached = self.loaded.main.repeat(frame.bases, varying)
            frame.tally.entries += 1
            frame.tally.iterations += made
            frame.tally.transfers += int((varying[1:made] != varying[: max(made - 1, 0)]).sum())
            if reached >= 0:
                self._host_tasks.serve(frame, inputs, results, reached)
            del packed
            return made, results
        finally:
            self._leave(frame)

    @property
    def is_watched(self) -> bool:
        """True if single steps can be measured, as they can on the host."""
        return True

    def profile(self, inputs: Sequence[Array], repeats: int = 1) -> npt.NDArray[np.int64]:
        """Run a few times and measure every step, host tasks included.

        Nothing that is passed changes: inputs that are updated are copied first.

        Returns:
            For each run and step of the plan four numbers, see `Executable.profile`.
        """
        plan, frame = self.loaded.plan, Frame(self.loaded, Tally(), Arena(self.peak))
        updated = {i for _, i in plan.updates}
        inputs = [x.copy() if i in updated else x for i, x in enumerate(inputs)]
        results = self._bind(frame, inputs)
        packed = self._pack(frame, inputs)
        times = np.zeros((repeats, len(plan.steps), 4), np.int64)
        for run in times:
            reached = self.loaded.main.profile(frame.bases, run)
            while reached >= 0:
                start = time.monotonic_ns()
                self._host_tasks.serve(frame, inputs, results, reached)
                end = time.monotonic_ns()
                run[reached] = start, end, run[reached, 2] + end - start, run[reached, 3] + 1
                reached = self.loaded.main.profile(frame.bases, run, reached + 1)
        del packed
        return times

    def close(self) -> None:
        """Give the frames' memory back; running again makes new ones."""
        self._frames.clear()
        if self._arenas is not None:
            self._arenas.clear()

    # -- packed weights --------------------------------------------------------------------

    def _pack(
        self, frame: Frame, inputs: Sequence[Array], version: object = None
    ) -> _Packed | None:
        """Point the frame to what the prelude makes of the frozen inputs.

        Returns:
            What has to be held on to during the run; None where there is nothing to pack.
        """
        if self.loaded.prelude is None:
            return None
        found = self._packs.current
        if found is None or version is None or found.version is not version:
            found = None  # Whoever refers to it counts as a run.
            found = self._packed_anew(frame, inputs)
            found.version = version
        if frame.kept is not found.buffer:
            frame.kept = found.buffer
            frame.bases[frame.last - 1] = address(found.buffer.bytes)
        return found

    def _packed_anew(self, frame: Frame, inputs: Sequence[Array]) -> _Packed:
        """Return what is packed already, if it is of these inputs; else run the prelude."""
        with self._packs.lock:
            old, arrays = self._packs.current, [inputs[i] for i in self._frozen]
            if old is not None and all(map(is_, old.arrays, arrays)):
                return old
            self._packs.current = None  # From here on nobody begins a run with it.
            if old is None:
                buffer = self.loaded.kept
            elif references((old,)) <= _UNUSED:
                buffer = old.buffer
            else:
                buffer = memory("packed weights", self.loaded.plan.kept)
            frame.bases[frame.last - 1] = address(buffer.bytes)
            frame.kept = buffer
            if self.loaded.prelude is not None:
                self.loaded.prelude.run(frame.bases)
            self._packs.current = made = _Packed(buffer, arrays)
            return made


class ProgramInstance:
    """A program for many extents at certain ones: a `Runner`."""

    __slots__ = ("at", "executor")

    def __init__(self, executor: Executor, at: At) -> None:
        self.executor = executor
        self.at = at

    @property
    def peak(self) -> int:
        """Bytes of scratch memory that one run needs."""
        return self.at.peak

    @property
    def counters(self) -> Counters:
        """Return the costs of all runs, at any extents, at the program's border."""
        return self.executor.counters

    def run(self, inputs: Sequence[Array], varying: int = 0, version: object = None) -> list[Array]:
        """Run once; see `Executor.run`."""
        return self.executor.run(inputs, varying, version, self.at)

    def repeat(
        self, inputs: Sequence[Array], varying: npt.NDArray[np.int64]
    ) -> tuple[int, list[Array]]:
        """Run once per row; see `Executor.repeat`."""
        return self.executor.repeat(inputs, varying, self.at)

    def bound(self) -> Bound | None:
        """Return what native code runs the program with, at these extents; see `Executor.bound`."""
        return self.executor.bound(self.at)

    def close(self) -> None:
        """Give memory back that is kept between runs, whatever extents they had."""
        self.executor.close()


def _shared(user: Executor, plan: Plan) -> Arenas | None:
    """Return the arenas that a program for fixed extents borrows from, None where frames have one.

    Small ones are their own, and those that ops of the host see: what they keep of it, or have
    going on in it, stays as it is until the program runs again.
    """
    seen = any(not isinstance(t.op, CheckIndices) for t in plan.host)
    if seen or plan.memory.peak < LARGE:
        return None
    SHARED.join(user, plan.memory.peak)
    return SHARED


def _write(
    bases: npt.NDArray[np.int64], inputs: Sequence[Array], given: int, results: Sequence[Array]
) -> None:
    """Write the addresses of the first inputs, and of results, which are behind all inputs."""
    for i in range(given):
        bases[i] = inputs[i].__array_interface__["data"][0]
    for i, made in enumerate(results, len(inputs)):
        bases[i] = made.__array_interface__["data"][0]
