"""Native parts in phases, run: one after the other, each by the gear for what has been found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from treadle.backends.native_code import Executable
from treadle.base.array import Array
from treadle.base.errors import LoadError, ShapeError
from treadle.base.types import TensorType
from treadle.engine.package.extents import spelled
from treadle.engine.package.native_part import Gear, NativePart
from treadle.engine.package.native_run import (
    MOST_INSTANCES,
    GearInstance,
    NativeRunner,
    Shapes,
    loader_of,
    usable,
)
from treadle.engine.package.phases import NativePhase


class _Phase:
    """The programs of one phase.

    Args:
        part: its gears alone.
        programs: of these.
        phase: what they take and make.
    """

    def __init__(
        self, part: NativePart, programs: Sequence[Executable], phase: NativePhase
    ) -> None:
        self.phase = phase
        self.runner = NativeRunner(part, None, programs)
        self._ready: dict[tuple[int, ...], GearInstance] = {}
        self._lock = threading.Lock()

    def at(self, extents: Mapping[str, int]) -> GearInstance | None:
        """The program for extents, by name; None where there is none.

        Raises:
            OutOfMemory: it needs more scratch memory than the file declares.
            ShapeError: sizes are beyond 64 bits.
        """
        key = tuple([extents[name] for name in self.phase.extents])
        found = self._ready.get(key)
        if found is None:
            found = self._made(key, extents)
            if found is not None:
                with self._lock:
                    while len(self._ready) >= MOST_INSTANCES:
                        self._ready.pop(next(iter(self._ready)), None)
                    self._ready[key] = found
        return found

    def _made(self, key: tuple[int, ...], extents: Mapping[str, int]) -> GearInstance | None:
        for number, spans in enumerate(self.phase.spans):
            if all(low <= n <= high for n, (low, high) in zip(key, spans, strict=True)):
                made = self.runner.gear_at(number, extents)
                if made is not None:
                    return made
        return None


class PhasedNativeRunner:
    """The programs of a native part in phases, opened; see `NativeRunner`.

    Args:
        part: it fits this machine; its weights stay where they are.
        check: raises where the weights are damaged; called ahead of the first run.

    Raises:
        LoadError: its code cannot be opened.
    """

    def __init__(self, part: NativePart, check: Callable[[], None] | None = None) -> None:
        if part.phases is None or part.ranges is None:
            raise LoadError("model", "its native part has no phases")
        self._check, self._known, self.ranges = check, part.phases, part.ranges
        programs = loader_of(part.engine).open_native(part.code)
        self._phases, at = [], 0
        for phase in part.phases.each:
            own = slice(at, at + len(phase.spans))
            code = replace(part.code, programs=part.code.programs[own])
            alone = replace(part, gears=part.gears[own], code=code, ranges=None, phases=None)
            self._phases.append(_Phase(alone, programs[own], phase))
            at = own.stop

    def serves(self, shapes: Shapes) -> bool:
        """Return whether there is a program for inputs of these shapes; data may still decide
        extents that the model does not take.
        """
        return self._first(shapes) is not None

    def results(self, shapes: Shapes) -> list[tuple[int, ...]] | None:
        """Shapes of the results, for inputs of these, with -1 for what is only known when it runs;
        None where there is no program.
        """
        first = self._first(shapes)
        if first is None:
            return None
        begin, _ = self._known.ends(0)
        known = {begin + i: kind[0] for i, kind in enumerate(first.kinds)}
        for i in range(len(self._known.each[0].found)):  # Rows, of which some are in front.
            known.pop(begin + self._known.each[0].outputs + 2 * i)
        pairs = zip(self._known.results, self.ranges.outputs, strict=True)
        return [
            known.get(value) or tuple(d if isinstance(d, int) else -1 for d in pattern)
            for value, pattern in pairs
        ]

    def _first(self, shapes: Shapes) -> GearInstance | None:
        try:
            extents = self.ranges.of([tuple(int(d) for d in shape) for shape in shapes])
        except ShapeError:
            return None
        return self._phases[0].at(extents)

    def refused(self, shapes: Sequence[tuple[int, ...]]) -> ShapeError | None:
        """Return the error for shapes that no program is for."""
        return self.ranges.refused_at(shapes)

    def run(
        self, inputs: Sequence[Array], out: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Run on dense row-major arrays of the input types; threads may do so at the same time.

        Args:
            inputs: one per input.
            out: where results go; None, for one or for all, for new arrays.

        Raises:
            ShapeError: the model does not take these shapes, or extents that data decide, or an
                array of `out` cannot be used.
            OutOfMemory: it needs more scratch memory than the file declares.
            IndexRangeError: an index is out of range; arrays of `out` may hold anything.
            CheckpointError: the weights are damaged.
        """
        extents = self.ranges.of([a.shape for a in inputs])
        if self._check is not None:
            self._check()
            self._check = None
        values = list(inputs)
        for at in self._phases:
            values += self._ran(at, values, extents)
        results = [values[n] for n in self._known.results]
        for i, place in enumerate(out or ()):
            if place is not None:
                dtype = self._known.dtypes[1][i]
                usable(place, TensorType(dtype, results[i].shape), inputs)[...] = results[i]
                results[i] = place
        return results

    def _ran(self, at: _Phase, values: Sequence[Array], extents: dict[str, int]) -> list[Array]:
        """The results of a phase; the extents that it has found are entered."""
        found = at.at(extents)
        if found is None:
            own = {name: extents[name] for name in at.phase.extents}
            if not own.keys() - self.ranges.extents.keys():
                raise self.ranges.refused(own)
            raise ShapeError(
                "model",
                f"data decide extents that it does not take: {spelled(own)}",
                hint="an extent of 1 that data decide does not stretch: use broadcast_to",
            )
        given = [values[n] for n in at.phase.inputs]
        if not _fits(found.gear, given, extents):
            raise LoadError("model", "its phases take other values", hint="compile it anew")
        made = at.runner.launch(found, given)
        for i, (name, (low, high)) in enumerate(at.phase.found.items()):
            place = at.phase.outputs + 2 * i
            rows, count = made[place], int(made[place + 1].reshape(-1)[0])
            if not low <= count <= min(high, len(rows)):
                saw = f"{name} = {count} of {len(rows)} rows, from {low} to {high} declared"
                raise LoadError("model", "its program finds no extent", saw=saw)
            extents[name] = count
            # The rows behind are given back where the caller keeps those in front.
            kept = len(values) + place in self._known.results
            made[place] = np.array(rows[:count]) if kept else rows[:count]
        return made

    def close(self) -> None:
        """Give scratch memory back; the next run takes new."""
        for at in self._phases:
            at.runner.close()


def _fits(gear: Gear, given: Sequence[Array], extents: Mapping[str, int]) -> bool:
    """Return whether values are what a gear reads, as far as its types and patterns tell."""
    if any(a.dtype != t.dtype.numpy for a, t in zip(given, gear.inputs, strict=True)):
        return False
    shapes = gear.shapes if gear.many is None else gear.many.inputs
    return all(
        len(a.shape) == len(shape)
        and all(
            extents.get(d, n) == n if isinstance(d, str) else d == n
            for d, n in zip(shape, a.shape, strict=True)
        )
        for a, shape in zip(given, shapes, strict=True)
    )


def runner_of(
    part: NativePart, check: Callable[[], None] | None = None
) -> NativeRunner | PhasedNativeRunner:
    """Return what runs a native part.

    Raises:
        LoadError: its code cannot be opened.
    """
    return NativeRunner(part, check) if part.phases is None else PhasedNativeRunner(part, check)


__all__ = ["PhasedNativeRunner", "runner_of"]
