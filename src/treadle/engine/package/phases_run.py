"""Native parts in phases, run: one after the other, each by the gear for what has been found.

Between them Python takes branches and goes through loops in which data decide extents.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from treadle.backends.native_code import Executable
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import LoadError, ShapeError
from treadle.base.types import TensorType
from treadle.engine.package.extents import Range, Ranges, spelled
from treadle.engine.package.native_part import Gear, NativePart
from treadle.engine.package.native_run import (
    MOST_INSTANCES,
    GearInstance,
    NativeRunner,
    Shapes,
    loader_of,
    usable,
)
from treadle.engine.package.phases import (
    NativeBranch,
    NativeCount,
    NativeLoop,
    NativePhase,
    NativePhases,
    NativeStep,
    Read,
    regions_of,
)

_Values = list[Array | None]
"""All values by number; None for those that are not there yet."""
_Extents = dict[str, int]


class _Run(Protocol):
    """A step that is ready to run."""

    def __call__(self, values: _Values, extents: _Extents, /) -> None:
        """Run, and enter results and extents."""
        ...


class _Phase:
    """The programs of one phase.

    Args:
        part: its gears alone.
        programs: of these.
        phase: what they take and make.
        whole: the part, whose inputs and outputs the caller has.
    """

    def __init__(
        self,
        part: NativePart,
        programs: Sequence[Executable],
        phase: NativePhase,
        whole: tuple[NativePhases, Ranges],
    ) -> None:
        self.phase = phase
        self._results, self._ranges = frozenset(whole[0].results), whole[1]
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

    def __call__(self, values: _Values, extents: _Extents) -> None:
        """Run the phase, and enter its results, and the extents that it has found."""
        phase, found = self.phase, self.at(extents)
        if found is None:
            raise self._refused({name: extents[name] for name in phase.extents})
        given = [_there(values[n]) for n in phase.inputs]
        if not _fits(found.gear, given, extents):
            raise LoadError("model", "its phases take other values", hint="compile it anew")
        made = self.runner.launch(found, given)
        for i, (name, (low, high)) in enumerate(phase.found.items()):
            place = phase.outputs + 2 * i
            rows, count = made[place], int(made[place + 1].reshape(-1)[0])
            if not low <= count <= min(high, len(rows)):
                saw = f"{name} = {count} of {len(rows)} rows, from {low} to {high} declared"
                raise LoadError("model", "its program finds no extent", saw=saw)
            extents[name] = count
            # The rows behind are given back where the caller keeps those in front.
            kept = phase.first + place in self._results
            made[place] = np.array(rows[:count]) if kept else rows[:count]
        values[phase.first : phase.first + len(made)] = made

    def _refused(self, own: _Extents) -> ShapeError:
        if not own.keys() - self._ranges.extents.keys():
            return self._ranges.refused(own)
        return ShapeError(
            "model",
            f"data decide extents that it does not take: {spelled(own)}",
            hint="an extent of 1 that data decide does not stretch: use broadcast_to",
        )


class _Region:
    """A branch, or a region of a loop.

    Args:
        each: its steps, ready to run.
        results: the values that are its results.
    """

    def __init__(self, each: Sequence[_Run], results: Sequence[int]) -> None:
        self._each, self._results = each, results

    def __call__(self, values: _Values, extents: _Extents) -> list[Array]:
        """Run it; its results."""
        for step in self._each:
            step(values, extents)
        return [_there(values[n]) for n in self._results]


class _Branch:
    """A branch, ready to run."""

    def __init__(self, step: NativeBranch, then: _Region, otherwise: _Region) -> None:
        self._step, self._then, self._otherwise = step, then, otherwise

    def __call__(self, values: _Values, extents: _Extents) -> None:
        """Run one of the two."""
        step = self._step
        taken = self._then if _truth(_there(values[step.predicate])) else self._otherwise
        made = taken(values, extents)
        values[step.first : step.first + len(made)] = made
        _read(step.found, values, extents)


class _Loop:
    """A loop, ready to run."""

    def __init__(self, step: NativeLoop, condition: _Region | None, body: _Region) -> None:
        self._step, self._condition, self._body = step, condition, body

    def __call__(self, values: _Values, extents: _Extents) -> None:
        """Run all turns."""
        step = self._step
        count, first = step.carried, step.first
        values[first : step.stacked] = [values[n] for n in step.inputs]
        stacked = [_there(values[n]) for n in step.inputs[count:]]
        length = extents[step.length] if isinstance(step.length, str) else step.length
        if any(x.ndim == 0 or len(x) != length for x in stacked):
            raise LoadError("model", "a loop has other entries than turns", hint="compile it anew")
        rows: list[list[Array]] = []
        for turn in itertools.count():
            _read(step.changing, values, extents)
            if self._condition is not None:
                (going,) = self._condition(values, extents)
                if not _truth(going):
                    break
            elif turn == length:
                break
            else:
                at = length - 1 - turn if step.backwards else turn
                values[first + count : step.stacked] = [np.asarray(x[at]) for x in stacked]
            made = self._body(values, extents)
            values[first : first + count] = made[:count]
            if step.rows:
                rows.append(made[count:])
                self._check_turns(len(rows))
        rows = rows[::-1] if step.backwards else rows
        for i, (dtype, pattern) in enumerate(step.rows):
            shape = [extents[d] if isinstance(d, str) else d for d in pattern]
            values[step.stacked + i] = _stacked([row[i] for row in rows], dtype, shape)
        _read(step.found, values, extents)

    def _check_turns(self, turns: int) -> None:
        """Refuse more than the file is for, ahead of the memory that their rows would take."""
        if (known := self._step.turns) is not None and turns > known[1][1]:
            _within(known[0], turns, known[1])


class _Count:
    """Numbers from 0 on, ready to be made."""

    def __init__(self, step: NativeCount) -> None:
        self._step = step

    def __call__(self, values: _Values, extents: _Extents) -> None:
        """Make them; how many is looked at ahead."""
        step = self._step
        number = _there(values[step.number])
        if number.shape or number.dtype.kind != "i":
            raise LoadError("model", "its phases take other values", hint="compile it anew")
        count = max(int(number), 0)
        ((name, span),) = step.found.ranges.items()
        extents[name] = _within(name, count, span)
        values[step.first] = np.arange(count, dtype=number.dtype)


def _within(name: str, extent: int, span: Range) -> int:
    """An extent that a file is for.

    Raises:
        ShapeError: it is none.
    """
    low, high = span
    if low <= extent <= high:
        return extent
    raise ShapeError(
        "model",
        f"{name} becomes {extent}, and its file is for {low} to {high}",
        hint="load it with recompile=True and run it there, or let the loop end earlier",
    )


def _stacked(rows: Sequence[Array], dtype: DType, shape: Sequence[int]) -> Array:
    """Rows that the turns of a loop gave, one behind the other."""
    if any(row.dtype != dtype.numpy or list(row.shape) != shape for row in rows):
        raise LoadError("model", "a loop gives other rows", hint="compile it anew")
    made: Array = np.empty((len(rows), *shape), dtype.numpy)
    for i, row in enumerate(rows):
        made[i] = row
    return made


def _there(value: Array | None) -> Array:
    if value is None:
        raise LoadError("model", "its phases take what is not there", hint="compile it anew")
    return value


def _truth(value: Array) -> bool:
    if value.shape or value.dtype != np.bool_:
        raise LoadError("model", "a condition is no truth value", hint="compile it anew")
    return bool(value)


def _read(read: Read, values: _Values, extents: _Extents) -> None:
    """Enter extents that values have, which are looked at."""
    for (name, span), (value, axis) in zip(read.ranges.items(), read.places, strict=True):
        shape = _there(values[value]).shape
        if axis >= len(shape):
            raise LoadError("model", "its phases take other values", hint="compile it anew")
        extents[name] = _within(name, shape[axis], span)


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
        self._phases, at = list[_Phase](), 0
        whole = part.phases, part.ranges
        for phase in part.phases.programs:
            own = slice(at, at + len(phase.spans))
            code = replace(part.code, programs=part.code.programs[own])
            alone = replace(part, gears=part.gears[own], code=code, ranges=None, phases=None)
            self._phases.append(_Phase(alone, programs[own], phase, whole))
            at = own.stop
        self._steps = _ready(part.phases.each, iter(self._phases))

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
        phase = self._known.first
        known = {phase.first + i: kind[0] for i, kind in enumerate(first.kinds)}
        for i in range(len(phase.found)):  # Rows, of which some are in front.
            known.pop(phase.first + phase.outputs + 2 * i)
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
        values: _Values = [*inputs, *(None for _ in range(self._known.values - len(inputs)))]
        for step in self._steps:
            step(values, extents)
        results = [_there(values[n]) for n in self._known.results]
        for i, place in enumerate(out or ()):
            if place is not None:
                dtype = self._known.dtypes[1][i]
                usable(place, TensorType(dtype, results[i].shape), inputs)[...] = results[i]
                results[i] = place
        return results

    def close(self) -> None:
        """Give scratch memory back; the next run takes new."""
        for at in self._phases:
            at.runner.close()


def _ready(steps: Sequence[NativeStep], phases: Iterator[_Phase]) -> list[_Run]:
    """Steps that are ready to run; their phases are the next of those."""
    made: list[_Run] = []
    for step in steps:
        if isinstance(step, NativePhase):
            made.append(next(phases))
            continue
        if isinstance(step, NativeCount):
            made.append(_Count(step))
            continue
        regions = [_Region(_ready(r.each, phases), r.results) for r in regions_of(step)]
        if isinstance(step, NativeBranch):
            made.append(_Branch(step, regions[0], regions[1]))
        else:
            made.append(_Loop(step, regions[0] if regions[1:] else None, regions[-1]))
    return made


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
