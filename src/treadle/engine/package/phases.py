"""Native parts in phases: programs that run one after the other, with extents found between them.

Data decide how many rows a mask selects, or how many boxes are kept. What depends on that is a
phase of its own, which has gears for all such extents (`deploy.phases`). A file says which values
each phase takes and makes; it may be damaged, so all of that is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.base.dtype import DType, as_dtype
from treadle.engine.package.extents import Range, listed, ranges_in

MOST_PHASES = 256
_MOST_VALUES = 1 << 16


@dataclass(frozen=True, slots=True)
class NativePhase:
    """A phase of a part: some of its gears, and the values that they take and make.

    Values have numbers: the inputs of the model first, then the results of each phase, in order.

    Attributes:
        inputs: the values that it takes.
        outputs: how many results it has besides those that tell of found extents.
        found: names and ranges of the extents that it finds. For each there are two more results:
            rows, and how many of them are found, which lie in front.
        extents: names of the extents that its gears are chosen by.
        spans: for each of its gears the ranges of these.
    """

    inputs: tuple[int, ...]
    outputs: int
    found: Mapping[str, Range]
    extents: tuple[str, ...]
    spans: tuple[tuple[Range, ...], ...]

    @property
    def results(self) -> int:
        """Number of results of its gears."""
        return self.outputs + 2 * len(self.found)


@dataclass(frozen=True, slots=True)
class NativePhases:
    """All phases of a part.

    Attributes:
        each: of them, in order.
        results: the values that are the model's outputs.
        dtypes: element types of the model's inputs, and of its outputs.
    """

    each: tuple[NativePhase, ...]
    results: tuple[int, ...]
    dtypes: tuple[tuple[DType, ...], tuple[DType, ...]]

    def ends(self, phase: int) -> tuple[int, int]:
        """The numbers of the first and behind the last result of a phase."""
        first = len(self.dtypes[0]) + sum(p.results for p in self.each[:phase])
        return first, first + self.each[phase].results


# -- in files ------------------------------------------------------------------------------------


def entry_of_phases(given: NativePhases) -> dict[str, Any]:
    """The description for a manifest."""
    each = [
        {
            "inputs": list(p.inputs),
            "outputs": p.outputs,
            "found": listed(p.found),
            "extents": list(p.extents),
            "spans": [[list(span) for span in spans] for spans in p.spans],
        }
        for p in given.each
    ]
    dtypes = [[dtype.name for dtype in ends] for ends in given.dtypes]
    return {"each": each, "results": list(given.results), "dtypes": dtypes}


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
    known = {name: (low, high) for name, (low, high) in chosen.items()}
    values, at = len(inputs), 0
    made = []
    if not 1 <= len(entry["each"]) <= MOST_PHASES:
        raise ValueError(f"{len(entry['each'])} phases")
    for given in entry["each"]:
        phase = _phase(given, known, values)
        own = gears[at : at + len(phase.spans)]
        if len(own) < len(phase.spans) or not own:
            raise ValueError("a phase has no gears")
        if any(ends != (len(phase.inputs), phase.results) for ends in own):
            raise ValueError("a gear has other inputs or outputs than its phase")
        known.update(phase.found)
        at, values = at + len(own), values + phase.results
        made.append(phase)
    if at < len(gears):
        raise ValueError("a gear belongs to no phase")
    results = tuple(_below(n, values) for n in entry["results"])
    if len(results) != len(outputs):
        raise ValueError("phases have other outputs than the model")
    return NativePhases(tuple(made), results, (inputs, outputs))


def _phase(entry: Any, known: Mapping[str, Range], values: int) -> NativePhase:
    """A phase behind which extents and values are known; see `described_phases`."""
    found = ranges_in(entry["found"], 0)
    if not found.keys().isdisjoint(known):
        raise ValueError("an extent is found twice")
    names = tuple(entry["extents"])
    if not known.keys() >= set(names) or len(set(names)) < len(names):
        raise ValueError("the gears of a phase are for extents that are not known")
    spans = tuple(tuple(_spans(names, given).values()) for given in entry["spans"])
    taken = tuple(_below(n, values) for n in entry["inputs"])
    return NativePhase(taken, _below(entry["outputs"], _MOST_VALUES), found, names, spans)


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


__all__ = ["MOST_PHASES", "NativePhase", "NativePhases", "described_phases", "entry_of_phases"]
