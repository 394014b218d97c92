"""Steps of a model in phases as rows of numbers, which `model.c` goes through.

Branches and loops become jumps. Extents have numbers in the order in which they are found; turns
are counted in further ones, which have no name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.engine.package.extents import Pattern, Range
from treadle.engine.package.native_part import Gear
from treadle.engine.package.phases import (
    NativeBranch,
    NativeCount,
    NativeLoop,
    NativePhase,
    NativePhases,
    NativeRegion,
    NativeStep,
    Read,
)

RUN, UNLESS, GO, UNTIL, SET, COPY, ADD, READ = range(8)
ALIAS, SWAP, ENTRY, SIZE, BEGIN, APPEND, COUNT = range(8, 15)
"""Kinds of rows, as `model.c` has them."""
_MOST = 2**62


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase, with numbers in place of names.

    Attributes:
        phase: the same.
        gears: of it.
        needs: the extents that its gears are chosen by.
        found: the first of the extents that it finds.
        numbers: of all extents that are known there.
    """

    phase: NativePhase
    gears: Sequence[Gear]
    needs: tuple[int, ...]
    found: int
    numbers: Mapping[str, int]


class Steps:
    """All steps, and what they know of values and extents.

    Args:
        phases: of the model.
        gears: of all of them, in order.
        chosen: the extents that callers choose.
        inputs: shapes of the model's inputs.

    Attributes:
        rows: kinds, and three numbers each.
        phases: in the order of their gears.
        known: names and ranges of all extents.
        items, axes: of each value the bytes of an element, and how many axes it has.
    """

    def __init__(
        self,
        phases: NativePhases,
        gears: Sequence[Gear],
        chosen: Mapping[str, Range],
        inputs: Sequence[Pattern],
    ) -> None:
        self._gears, self._at = gears, 0
        self.rows: list[list[int]] = []
        self.phases: list[PhaseRow] = []
        self.known: list[tuple[str, Range]] = list(chosen.items())
        self.items, self.axes = [0] * phases.values, [0] * phases.values
        for i, (dtype, pattern) in enumerate(zip(phases.dtypes[0], inputs, strict=True)):
            self.items[i], self.axes[i] = dtype.itemsize, len(pattern)
        self._all(phases.each, {name: i for i, name in enumerate(chosen)})

    def _emit(self, kind: int, a: int = 0, b: int = 0, c: int = 0) -> list[int]:
        """Append a row, whose places of jumps may be filled in later."""
        self.rows.append([kind, a, b, c])
        return self.rows[-1]

    def _extent(self, name: str = "", span: Range = (0, _MOST)) -> int:
        """A new extent's number."""
        self.known.append((name, span))
        return len(self.known) - 1

    def _all(self, steps: Sequence[NativeStep], numbers: dict[str, int]) -> None:
        for step in steps:
            if isinstance(step, NativePhase):
                self._phase(step, numbers)
            elif isinstance(step, NativeBranch):
                self._branch(step, numbers)
            elif isinstance(step, NativeCount):
                self._counted(step, numbers)
            else:
                self._loop(step, numbers)

    def _phase(self, step: NativePhase, numbers: dict[str, int]) -> None:
        own = self._gears[self._at : self._at + len(step.spans)]
        self._at += len(own)
        needs = tuple([numbers[name] for name in step.extents])
        self._emit(RUN, len(self.phases))
        self.phases.append(PhaseRow(step, own, needs, len(self.known), numbers | {}))
        numbers.update((name, self._extent(name, span)) for name, span in step.found.items())
        for value, type_ in enumerate(own[0].outputs, step.first):
            self.items[value], self.axes[value] = type_.dtype.itemsize, len(type_.shape)

    def _region(self, region: NativeRegion, numbers: Mapping[str, int]) -> None:
        self._all(region.each, dict(numbers))

    def _read(self, read: Read, numbers: dict[str, int]) -> None:
        for (name, span), place in zip(read.ranges.items(), read.places, strict=True):
            numbers[name] = self._extent(name, span)
            self._emit(READ, numbers[name], *place)

    def _alias(self, value: int, of: int) -> None:
        self.items[value], self.axes[value] = self.items[of], self.axes[of]
        self._emit(ALIAS, value, of)

    def _branch(self, step: NativeBranch, numbers: dict[str, int]) -> None:
        jump = self._emit(UNLESS, step.predicate)
        for region in (step.then, step.otherwise):
            self._region(region, numbers)
            for value, of in enumerate(region.results, step.first):
                self._alias(value, of)
            if region is step.then:
                behind = self._emit(GO)
                jump[2] = len(self.rows)
        behind[1] = len(self.rows)
        self._read(step.found, numbers)

    def _counted(self, step: NativeCount, numbers: dict[str, int]) -> None:
        self.items[step.first], self.axes[step.first] = self.items[step.number], 1
        ((name, span),) = step.found.ranges.items()
        numbers[name] = self._extent(name, span)
        self._emit(COUNT, step.first, step.number, numbers[name])

    def _loop(self, step: NativeLoop, numbers: dict[str, int]) -> None:
        inside = dict(numbers)
        for value, of in enumerate(step.inputs[: step.carried], step.first):
            self._alias(value, of)
        turn = self._extent()
        self._emit(SET, turn, 0)
        length = self._length(step, numbers)
        position = self._extent() if step.backwards else turn
        if step.backwards:
            self._emit(COPY, position, length)
        self._begin(step, numbers)
        top = len(self.rows)
        self._read(step.changing, inside)
        if step.condition is not None:
            self._region(step.condition, inside)
            jump, place = self._emit(UNLESS, step.condition.results[0]), 2
        else:
            jump, place = self._emit(UNTIL, turn, length), 3
        if step.backwards:
            self._emit(ADD, position, -1)
        self._turn(step, inside, position)
        self._emit(ADD, turn, 1)
        if step.condition is not None and step.turns is not None:  # Rows take memory in each turn.
            self._emit(SIZE, step.stacked, 0, turn)
            self._emit(READ, self._extent(*step.turns), step.stacked, 0)
        self._emit(GO, top)
        jump[place] = len(self.rows)
        for value in range(step.stacked, step.stacked + len(step.rows)):
            self._emit(SIZE, value, 0, turn)
        self._read(step.found, numbers)

    def _turn(self, step: NativeLoop, numbers: Mapping[str, int], position: int) -> None:
        """A turn, whose entries lie at a position that an extent tells."""
        count = step.carried
        for value, of in enumerate(step.inputs[count:], step.first + count):
            self.items[value], self.axes[value] = self.items[of], self.axes[of] - 1
            self._emit(ENTRY, value, of, position)
        self._region(step.body, numbers)
        for value, of in enumerate(step.body.results[count:], step.stacked):
            self._emit(APPEND, value, of, position)
        for value, of in enumerate(step.body.results[:count], step.first):
            if value != of:  # It stays as it is.
                self._emit(SWAP, value, of)

    def _length(self, step: NativeLoop, numbers: Mapping[str, int]) -> int:
        """The extent that is the number of turns, if that is known."""
        if isinstance(step.length, str):
            return numbers[step.length]
        number = self._extent()
        self._emit(SET, number, step.length)
        return number

    def _begin(self, step: NativeLoop, numbers: Mapping[str, int]) -> None:
        """Stacked results begin with no row, whose shape is known."""
        for value, (dtype, pattern) in enumerate(step.rows, step.stacked):
            self.items[value], self.axes[value] = dtype.itemsize, len(pattern) + 1
            self._emit(BEGIN, value)
            for axis, d in enumerate(pattern, 1):
                number = numbers[d] if isinstance(d, str) else self._extent()
                if isinstance(d, int):
                    self._emit(SET, number, d)
                self._emit(SIZE, value, axis, number)


__all__ = ["PhaseRow", "Steps"]
