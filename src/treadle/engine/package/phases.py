"""Native parts in phases: programs that run one after the other, with extents found between them.

Data decide how many rows a mask selects, or how many boxes are kept. What depends on that is a
phase of its own, which has gears for all such extents (`deploy.phases`). Branches and loops in
which data decide extents stand between phases, and have phases of their own. A file says which
values each phase takes and makes; it may be damaged, so all of that is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from treadle.base.dtype import DType, as_dtype
from treadle.engine.package.extents import Pattern, Range, listed, patterns_in, ranges_in

MOST_PHASES = 256
_MOST_VALUES = 1 << 16
MOST_DEEP = 32


@dataclass(frozen=True, slots=True)
class NativePhase:
    """A phase of a part: some of its gears, and the values that they take and make.

    Values have numbers: the inputs of the model first, then the results of each step, in order;
    those of a branch or loop come before those of what it holds.

    Attributes:
        inputs: the values that it takes.
        outputs: how many results it has besides those that tell of found extents.
        found: names and ranges of the extents that it finds. For each there are two more results:
            rows, and how many of them are found, which lie in front.
        extents: names of the extents that its gears are chosen by.
        spans: for each of its gears the ranges of these.
        first: the number of its first result.
    """

    inputs: tuple[int, ...]
    outputs: int
    found: Mapping[str, Range]
    extents: tuple[str, ...]
    spans: tuple[tuple[Range, ...], ...]
    first: int

    @property
    def results(self) -> int:
        """Number of results of its gears."""
        return self.outputs + 2 * len(self.found)


@dataclass(frozen=True, slots=True)
class Read:
    """Extents that are read off values.

    Attributes:
        ranges: of them, by name.
        places: for each the value that has it, and the axis.
    """

    ranges: Mapping[str, Range]
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class NativeRegion:
    """A branch, or the condition or body of a loop.

    Attributes:
        each: its steps, in order.
        results: the values that are its results.
    """

    each: tuple[NativeStep, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NativeBranch:
    """A branch in which data decide extents.

    Attributes:
        predicate: the value that says which region runs.
        then, otherwise: the regions; they have as many results.
        found: extents of its results.
        first: the number of its first result.
    """

    predicate: int
    then: NativeRegion
    otherwise: NativeRegion
    found: Read
    first: int


@dataclass(frozen=True, slots=True)
class NativeLoop:
    """A loop in which data decide extents, or whose state has others in every turn.

    It first has a value for each input, which its regions read: the state, and the entries of a
    turn. The state's are its results, too; behind them are the stacked results.

    Attributes:
        inputs: the values that the state begins with, then those that turns take entries of.
        carried: how many of them are the state.
        changing: extents of the state, read ahead of each turn.
        condition: says whether there is another turn; None where the number of turns is known.
        body: its results are the next state, then rows.
        length: turns, or the name of an extent; with a condition 0.
        backwards: whether turns begin at the last entry.
        rows: element types and shapes of what each turn returns besides.
        found: extents of the results.
        first: the number of the state's first value.
    """

    inputs: tuple[int, ...]
    carried: int
    changing: Read
    condition: NativeRegion | None
    body: NativeRegion
    length: int | str
    backwards: bool
    rows: tuple[tuple[DType, Pattern], ...]
    found: Read
    first: int

    @property
    def stacked(self) -> int:
        """The number of the first stacked result."""
        return self.first + len(self.inputs)

    @property
    def turns(self) -> tuple[str, Range] | None:
        """The number of turns, found as the extent of what they stack; None where none is."""
        names = zip(self.found.ranges.items(), self.found.places, strict=True)
        return next((name for name, place in names if place == (self.stacked, 0)), None)


@dataclass(frozen=True, slots=True)
class NativeCount:
    """Numbers from 0 on, as many as a value says.

    Attributes:
        number: the value.
        found: how many there are; none where the value is negative.
        first: the number of the result.
    """

    number: int
    found: Read
    first: int


NativeStep: TypeAlias = "NativePhase | NativeBranch | NativeLoop | NativeCount"


@dataclass(frozen=True, slots=True)
class NativePhases:
    """All phases of a part.

    Attributes:
        each: of them, in order, with branches and loops between; the first one is a phase.
        results: the values that are the model's outputs.
        dtypes: element types of the model's inputs, and of its outputs.
        values: how many values there are.
    """

    each: tuple[NativeStep, ...]
    results: tuple[int, ...]
    dtypes: tuple[tuple[DType, ...], tuple[DType, ...]]
    values: int

    @property
    def first(self) -> NativePhase:
        """The first phase, which callers choose the extents of."""
        (found,) = (step for step in self.each[:1] if isinstance(step, NativePhase))
        return found

    @property
    def programs(self) -> tuple[NativePhase, ...]:
        """The phases alone, those of branches and loops included, in the order of their gears."""
        return tuple(_programs(self.each))

    @property
    def is_plain(self) -> bool:
        """Return whether no branches and loops are between phases."""
        return all(isinstance(step, NativePhase) for step in self.each)


def _programs(steps: Sequence[NativeStep]) -> Iterator[NativePhase]:
    for step in steps:
        if isinstance(step, NativePhase):
            yield step
        for region in regions_of(step):
            yield from _programs(region.each)


def regions_of(step: NativeStep) -> tuple[NativeRegion, ...]:
    """The regions of a step, in order."""
    if isinstance(step, NativeBranch):
        return step.then, step.otherwise
    if isinstance(step, NativeLoop):
        return (step.body,) if step.condition is None else (step.condition, step.body)
    return ()


# -- in files ------------------------------------------------------------------------------------


def entry_of_phases(given: NativePhases) -> dict[str, Any]:
    """The description for a manifest."""
    dtypes = [[dtype.name for dtype in ends] for ends in given.dtypes]
    return {"each": _entries(given.each), "results": list(given.results), "dtypes": dtypes}


def _entries(steps: Sequence[NativeStep]) -> list[dict[str, Any]]:
    """Steps one behind the other, those of regions behind the branch or loop that has them."""
    made: list[dict[str, Any]] = []
    for step in steps:
        inside = [_entries(region.each) for region in regions_of(step)]
        made.append(_entry(step) | {"steps": list(map(len, inside))} if inside else _entry(step))
        made += chain.from_iterable(inside)
    return made


def _entry(step: NativeStep) -> dict[str, Any]:
    if isinstance(step, NativePhase):
        return {
            "inputs": list(step.inputs),
            "outputs": step.outputs,
            "found": listed(step.found),
            "extents": list(step.extents),
            "spans": [[list(span) for span in spans] for spans in step.spans],
        }
    if isinstance(step, NativeCount):
        return {"count": step.number, "found": _read_entry(step.found)}
    results = [list(region.results) for region in regions_of(step)]
    if isinstance(step, NativeBranch):
        return {"branch": step.predicate, "results": results, "found": _read_entry(step.found)}
    return {
        "loop": list(step.inputs),
        "carried": step.carried,
        "changing": _read_entry(step.changing),
        "results": results,
        "length": step.length,
        "backwards": step.backwards,
        "rows": [[dtype.name, list(shape)] for dtype, shape in step.rows],
        "found": _read_entry(step.found),
    }


def _read_entry(read: Read) -> list[list[Any]]:
    return [[*row, *place] for row, place in zip(listed(read.ranges), read.places, strict=True)]


def described_phases(
    entry: Any, gears: Sequence[tuple[int, int]], chosen: Mapping[str, Range]
) -> NativePhases:
    """Return what an entry of a manifest describes.

    Args:
        entry: of the manifest.
        gears: numbers of inputs and outputs of each gear of the part.
        chosen: the extents that are known before the first phase.

    Raises:
        ValueError, KeyError, TypeError: it is damaged: gears do not fit their phase, or a value or
            an extent is used before it is known.
    """
    inputs, outputs = (tuple(as_dtype(_text(n)) for n in names) for names in entry["dtypes"])
    reader = _Reader(entry["each"], gears, len(inputs))
    scope = _Scope(set(range(len(inputs))), dict(chosen))
    made = reader.steps(len(entry["each"]), scope)
    if not isinstance(made[0], NativePhase):
        raise ValueError("there is no phase in front")
    if reader.gear < len(gears):
        raise ValueError("a gear belongs to no phase")
    results = tuple(scope.value(n) for n in entry["results"])
    if len(results) != len(outputs):
        raise ValueError("phases have other outputs than the model")
    return NativePhases(made, results, (inputs, outputs), reader.values)


@dataclass(slots=True)
class _Scope:
    """The values and extents that are known at a place."""

    values: set[int]
    extents: dict[str, Range]

    def inside(self) -> _Scope:
        """The beginning of a region."""
        return _Scope(set(self.values), dict(self.extents))

    def value(self, number: Any) -> int:
        """A value that is known here."""
        if type(number) is not int or number not in self.values:
            raise ValueError(f"{str(number)[:40]} is no value of a phase")
        return number

    def find(self, found: Mapping[str, Range]) -> None:
        """Enter extents."""
        if not found.keys().isdisjoint(self.extents):
            raise ValueError("an extent is found twice")
        self.extents.update(found)


class _Reader:
    """Reads steps; counts gears and values.

    Args:
        entries: of the manifest, one behind the other.
        gears: numbers of inputs and outputs of each.
        values: how many there are before the first step.
    """

    def __init__(self, entries: Any, gears: Sequence[tuple[int, int]], values: int) -> None:
        if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_PHASES:
            raise ValueError("there are no phases, or too many")
        self._entries, self._at = entries, 0
        self._gears, self.gear, self.values = gears, 0, values

    def steps(self, end: Any, scope: _Scope, depth: int = 0) -> tuple[NativeStep, ...]:
        """Read the steps up to a number, in a scope, which knows of their results afterwards."""
        if type(end) is not int or not self._at <= end <= len(self._entries) or depth > MOST_DEEP:
            raise ValueError("a branch or loop has other steps")
        made: list[NativeStep] = []
        while self._at < end:
            entry = self._entries[self._at]
            self._at += 1
            if "branch" in entry:
                made.append(self._branch(entry, scope, depth))
            elif "loop" in entry:
                made.append(self._loop(entry, scope, depth))
            elif "count" in entry:
                made.append(self._counted(entry, scope))
            else:
                made.append(self._phase(entry, scope))
        if self._at > end:
            raise ValueError("a branch or loop has other steps")
        return tuple(made)

    def _numbers(self, count: int) -> range:
        """New values."""
        first = self.values
        self.values += count
        if self.values > _MOST_VALUES:
            raise ValueError("phases have too many values")
        return range(first, self.values)

    def _phase(self, entry: Any, scope: _Scope) -> NativePhase:
        found = ranges_in(entry["found"], 0)
        names = tuple(entry["extents"])
        if not scope.extents.keys() >= set(names) or len(set(names)) < len(names):
            raise ValueError("the gears of a phase are for extents that are not known")
        spans = tuple(tuple(_spans(names, given).values()) for given in entry["spans"])
        taken = tuple(scope.value(n) for n in entry["inputs"])
        outputs = _below(entry["outputs"], _MOST_VALUES)
        made = self._numbers(outputs + 2 * len(found))
        phase = NativePhase(taken, outputs, found, names, spans, made.start)
        own = self._gears[self.gear : self.gear + len(spans)]
        if len(own) < len(spans) or not own:
            raise ValueError("a phase has no gears")
        if any(ends != (len(taken), phase.results) for ends in own):
            raise ValueError("a gear has other inputs or outputs than its phase")
        self.gear += len(own)
        scope.find(found)
        scope.values.update(made)
        return phase

    def _counted(self, entry: Any, scope: _Scope) -> NativeCount:
        number = scope.value(entry["count"])
        made = self._numbers(1)
        scope.values.update(made)
        found = _read(entry["found"], scope)
        if found.places != ((made.start, 0),):
            raise ValueError("a number has no extent")
        return NativeCount(number, found, made.start)

    def _region(self, entry: Any, number: int, scope: _Scope, depth: int) -> NativeRegion:
        """Read a region of a branch or loop."""
        count = entry["steps"][number]
        each = self.steps(self._at + _below(count, MOST_PHASES), scope, depth + 1)
        return NativeRegion(each, tuple(scope.value(n) for n in entry["results"][number]))

    def _branch(self, entry: Any, scope: _Scope, depth: int) -> NativeBranch:
        predicate = scope.value(entry["branch"])
        counts = set(map(len, entry["results"]))
        if len(entry["steps"]) != 2 or len(entry["results"]) != 2 or len(counts) != 1:
            raise ValueError("branches have different numbers of results")
        made = self._numbers(counts.pop())
        then, otherwise = (self._region(entry, i, scope.inside(), depth) for i in (0, 1))
        scope.values.update(made)
        found = _read(entry["found"], scope)
        return NativeBranch(predicate, then, otherwise, found, made.start)

    def _loop(self, entry: Any, scope: _Scope, depth: int) -> NativeLoop:
        inputs = tuple(scope.value(n) for n in entry["loop"])
        carried, length = _below(entry["carried"], len(inputs) + 1), entry["length"]
        if length not in scope.extents and (type(length) is not int or length < 0):
            raise ValueError("the number of turns is not known")
        regions = len(entry["steps"])
        if type(entry["backwards"]) is not bool or len(entry["results"]) != regions:
            raise ValueError("a loop has no direction, or no results")
        kinds = [as_dtype(_text(name)) for name, _ in entry["rows"]]
        shapes = patterns_in([shape for _, shape in entry["rows"]], scope.extents)
        rows = tuple(zip(kinds, shapes, strict=True))
        made = self._numbers(len(inputs) + len(rows))
        inside, condition = scope.inside(), None
        inside.values.update(made[: len(inputs)])
        changing = _read(entry["changing"], inside)
        if regions == 2:
            condition = self._region(entry, 0, inside.inside(), depth)
            if len(condition.results) != 1 or carried < len(inputs):
                raise ValueError("a loop has no condition")
        elif regions != 1:
            raise ValueError("a loop has no body")
        body = self._region(entry, regions - 1, inside, depth)
        if len(body.results) != carried + len(rows):
            raise ValueError("a loop has another number of results")
        scope.values.update(made)
        found = _read(entry["found"], scope)
        more = length, entry["backwards"], rows, found, made.start
        loop = NativeLoop(inputs, carried, changing, condition, body, *more)
        if condition is not None and rows and loop.turns is None:
            raise ValueError("a loop stacks any number of rows")
        return loop


def _read(entry: Any, scope: _Scope) -> Read:
    """Extents that are read off values, which are known from here on."""
    ranges = ranges_in([row[:3] for row in entry], 0)
    if len(ranges) < len(entry):
        raise ValueError("an extent is found twice")
    places = tuple((scope.value(value), _below(axis, 64)) for _, _, _, value, axis in entry)
    scope.find(ranges)
    return Read(ranges, places)


def _spans(names: Sequence[str], given: Any) -> Mapping[str, Range]:
    return ranges_in([[name, *span] for name, span in zip(names, given, strict=True)], 0)


def _below(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise ValueError(f"{str(value)[:40]} is no value of a phase")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError(f"{str(value)[:40]} is not a name")
    return value


__all__ = [
    "MOST_DEEP",
    "MOST_PHASES",
    "NativeBranch",
    "NativeCount",
    "NativeLoop",
    "NativePhase",
    "NativePhases",
    "NativeRegion",
    "NativeStep",
    "Read",
    "described_phases",
    "entry_of_phases",
    "regions_of",
]
