"""Gears as tables in C, which `model.c` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from treadle.backends.native_code import NativeProgram
from treadle.base.dtype import DType
from treadle.deploy.c_text import integers
from treadle.deploy.phases import Compiled
from treadle.deploy.steps_text import Steps
from treadle.engine.package.extents import Pattern, Range, Ranges, bound
from treadle.engine.package.native_part import Gear
from treadle.engine.package.native_run import extents
from treadle.engine.package.phases import NativePhase, NativePhases

Numbers = npt.NDArray[np.int64]
Names = tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Code:
    """Code for the numbers of a gear; one for a set of shapes has constants alone."""

    start: Numbers
    first: int
    rows: npt.NDArray[np.int32]
    orders: tuple[npt.NDArray[np.int32], ...]
    peak: int
    least: int
    results: list[int]
    stops: list[int]


def gear_tables(
    name: str, made: Compiled, programs: Sequence[NativeProgram], names: Names
) -> list[str]:
    """Lines of C: words, inputs and outputs, extents, what computes numbers from them, and phases.

    Args:
        name: prefix of the library's types.
        made: gears of the library, and the phases that they belong to.
        programs: one for each gear.
        names: of inputs and of outputs.
    """
    gears, ranges = made.gears, made.ranges
    chosen = {} if ranges is None else dict(ranges.extents)
    phases = made.phases or _only(gears, ranges)
    codes = [_code(gear) for gear in gears]
    starts = list(accumulate((len(p.words) for p in programs), initial=0))
    places = [p.places + start for p, start in zip(programs, starts, strict=False)]
    types = (*gears[0].inputs, *gears[0].outputs)
    patterns = (
        [*ranges.inputs, *ranges.outputs] if ranges is not None else [extents(t) for t in types]
    )
    steps = Steps(phases, gears, chosen, patterns[: len(names[0])])
    values = _Values(phases, steps)
    counts = {
        "INPUTS": len(names[0]),
        "OUTPUTS": len(names[1]),
        "WORDS": starts[-1],
        "PLACES": sum(map(len, places)),
        "GEARS": len(gears),
        "EXTENTS": len(chosen),
        "KNOWN": len(steps.known),
        "PHASES": len(steps.phases),
        "STEPS": len(steps.rows),
        "VALUES": phases.values,
        "DIMS": sum(steps.axes),
        "AXES": sum(map(len, patterns)),
        "MOST_AXES": max((*steps.axes, *map(len, patterns)), default=0),
        "BASES": max(p.bases for p in programs),
        "REGISTERS": max(len(code.start) for code in codes),
        "ARENA_BYTES": max(gear.arena for gear in gears),
    }
    lines = [f"#define {key} {value}" for key, value in counts.items()]
    lines += [
        integers("program_words", np.concatenate([p.words for p in programs])),
        integers("kernel_places", np.concatenate(places)),
        integers("steps", np.array(steps.rows, np.int64).reshape(-1)),
        *values.tables(patterns, list(chosen)),
        _extents(name, steps.known),
        *_tensors(name, "inputs", names[0], phases.dtypes[0], patterns),
        *_tensors(name, "outputs", names[1], phases.dtypes[1], patterns[len(names[0]) :]),
    ]
    rows = []
    owners = [(row, spans) for row in steps.phases for spans in row.phase.spans]
    for i, (gear, code, (row, own)) in enumerate(zip(gears, codes, owners, strict=True)):
        given = [] if gear.many is None else [row.numbers[n] for n in gear.many.ranges]
        lines += _gear(i, gear, code, own, given)
        parts = [
            starts[i],
            max(gear.arena, 1),
            f"ranges{i}, given{i}, {len(given)}, start{i}, {len(code.start)}, {code.first}",
            f"{{code{i}, {len(code.rows)}}}, orders{i}, {len(code.orders)}",
            f"{code.peak}, {code.least}, results{i}, stops{i}, {len(gear.stops)}",
        ]
        rows.append(f"  {{{', '.join(map(str, parts))}}},")
    body = "\n".join(rows)
    lines.append(f"static const Gear gears[] = {{\n{body}\n}};")
    return [*lines, *_phases(steps)]


def _only(gears: Sequence[Gear], ranges: Ranges | None) -> NativePhases:
    """The one phase of a model in which data decide nothing."""
    first = gears[0]
    inputs, outputs = len(first.inputs), len(first.outputs)
    spans = [() if ranges is None else tuple(_own(g, ranges)) for g in gears]
    names = () if ranges is None else tuple(ranges.extents)
    phase = NativePhase(tuple(range(inputs)), outputs, {}, names, tuple(spans), inputs)
    dtypes = tuple(t.dtype for t in first.inputs), tuple(t.dtype for t in first.outputs)
    results = tuple(range(inputs, inputs + outputs))
    return NativePhases((phase,), results, dtypes, inputs + outputs)


def _own(gear: Gear, ranges: Ranges) -> Iterator[Range]:
    """The ranges of a gear; what it has as a number begins and ends there."""
    at = bound(ranges.inputs, [extents(t) for t in gear.inputs]) or {}
    many = {} if gear.many is None else gear.many.ranges
    return (many.get(n) or (at[n], at[n]) for n in ranges.extents)


class _Values:
    """Values of all phases."""

    def __init__(self, phases: NativePhases, steps: Steps) -> None:
        self._steps, self._results = steps, phases.results
        first = phases.first
        self._told = range(first.first, first.first + first.outputs)
        """Results of the first phase that callers choose the extents of."""

    def tables(self, patterns: Sequence[Pattern], known: Sequence[str]) -> list[str]:
        """The tables of values and ends.

        Args:
            patterns: shapes of the model's inputs and outputs.
            known: names of extents that callers choose, by number.
        """
        numbers = {n: -1 - i for i, n in enumerate(known)}
        axes = [d if isinstance(d, int) else numbers.get(d, -1) for p in patterns for d in p]
        items, counts = self._steps.items, self._steps.axes
        owners = {value: i for i, value in enumerate(self._results)}
        outputs = patterns[len(patterns) - len(self._results) :]
        found = [  # Whether only a run tells its extents.
            int(v not in self._told and not all(isinstance(d, int) for d in pattern))
            for v, pattern in zip(self._results, outputs, strict=True)
        ]
        return [
            integers("axes", np.array(axes, np.int64)),
            integers("axes_at", np.array([*accumulate(map(len, patterns), initial=0)], np.int64)),
            integers("item_bytes", np.array(items, np.int64)),
            integers("value_axes", np.array(counts, np.int64)),
            integers("value_dims", np.array([*accumulate(counts, initial=0)], np.int64)),
            integers("value_outputs", np.array([owners.get(v, -1) for v in range(len(counts))])),
            integers("output_values", np.array(self._results, np.int64)),
            integers("output_found", np.array(found, np.int64)),
        ]


def _phases(steps: Steps) -> list[str]:
    """The tables of phases."""
    lines, rows, gears = [], [], 0
    for i, row in enumerate(steps.phases):
        phase = row.phase
        lines.append(integers(f"takes{i}", np.array(phase.inputs, np.int64)))
        lines.append(integers(f"needs{i}", np.array(row.needs, np.int64)))
        ends = f"takes{i}, {len(phase.inputs)}, {phase.first}, {phase.results}"
        own = f"{row.found}, {len(phase.found)}, needs{i}, {len(row.needs)}"
        rows.append(f"  {{{gears}, {len(row.gears)}, {ends}, {own}}},")
        gears += len(row.gears)
    body = "\n".join(rows)
    return [*lines, f"static const Phase phases[] = {{\n{body}\n}};"]


def _code(gear: Gear) -> _Code:
    if gear.many is None or gear.many.open is None:
        shapes = [d for t in gear.outputs for d in extents(t)]
        start = np.array([*shapes, gear.arena], np.int64)
        none = np.zeros((0, 4), np.int32)
        places = list(range(len(shapes)))
        return _Code(start, len(start), none, (), 0, len(shapes), places, [-1] * len(gear.stops))
    made = gear.many.open
    code, count = made.scheme.arithmetic, len(gear.outputs)
    results = [place for shape in made.scheme.results[:count] for place in shape]
    stops = [pair[1] for pair in made.scheme.results[count:]]
    at = made.scheme.at
    return _Code(
        code.start, code.first, code.rows, made.placements, at.peak, at.least, results, stops
    )


def _gear(
    i: int, gear: Gear, code: _Code, spans: Sequence[Range], given: Sequence[int]
) -> list[str]:
    """The tables of a gear; `given` are the numbers of the extents that its code takes."""
    own = [end for span in spans for end in span]
    lines = [
        integers(f"ranges{i}", np.array(own, np.int64)),
        integers(f"given{i}", np.array(given, np.int64)),
        integers(f"start{i}", code.start),
        integers(f"results{i}", np.array(code.results, np.int64)),
        integers(f"code{i}", code.rows.reshape(-1), item="int32_t"),
    ]
    for k, rows in enumerate(code.orders):
        lines.append(integers(f"order{i}_{k}", rows.reshape(-1), item="int32_t"))
    orders = [f"{{order{i}_{k}, {len(rows)}}}" for k, rows in enumerate(code.orders)]
    lines.append(f"static const Code orders{i}[] = {{{', '.join(orders) or '{0, 0}'}}};")
    stops = [
        f"  {{{s.step}, {s.base}, {s.offset}, {json.dumps(s.op)}, {s.high}, {place}}},"
        for s, place in zip(gear.stops, code.stops, strict=True)
    ]
    body = "\n".join(stops) or '  {-1, 0, 0, "", 0, -1},'
    return [*lines, f"static const Stop stops{i}[] = {{\n{body}\n}};"]


def _extents(name: str, known: Sequence[tuple[str, Range]]) -> str:
    rows = [f"  {{{json.dumps(n)}, {low}, {high}}}," for n, (low, high) in known]
    body = "\n".join(rows) or '  {"", 0, 0},'
    return f"static const {name}_extent extents_known[] = {{\n{body}\n}};"


def _tensors(
    name: str,
    what: str,
    names: Sequence[str],
    dtypes: Sequence[DType],
    patterns: Sequence[Pattern],
) -> list[str]:
    shapes, rows = [], []
    for i, (label, dtype, pattern) in enumerate(zip(names, dtypes, patterns, strict=False)):
        listed = ", ".join(str(d) if isinstance(d, int) else "-1" for d in pattern) or "0"
        shapes.append(f"static const int64_t {what}_shape{i}[] = {{{listed}}};")
        closed = [d for d in pattern if isinstance(d, int)]
        size = dtype.itemsize * int(np.prod(closed, dtype=np.int64))
        nbytes = size if len(closed) == len(pattern) else 0
        rows.append(
            f'  {{{json.dumps(label)}, "{dtype.name}", {len(pattern)}, {what}_shape{i}, {nbytes}}},'
        )
    body = "\n".join(rows) or '  {"", "", 0, 0, 0},'
    return [*shapes, f"static const {name}_tensor {what}[] = {{\n{body}\n}};"]


__all__ = ["Names", "gear_tables"]
