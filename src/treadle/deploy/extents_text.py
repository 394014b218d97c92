"""Gears as tables in C, which `model.c` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from treadle.backends.native_code import NativeProgram
from treadle.base.dtype import DType
from treadle.deploy.c_text import integers
from treadle.deploy.phases import Compiled
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
    known = chosen | {n: span for phase in phases.each for n, span in phase.found.items()}
    codes = [_code(gear) for gear in gears]
    starts = list(accumulate((len(p.words) for p in programs), initial=0))
    places = [p.places + start for p, start in zip(programs, starts, strict=False)]
    types = (*gears[0].inputs, *gears[0].outputs)
    patterns = (
        [*ranges.inputs, *ranges.outputs] if ranges is not None else [extents(t) for t in types]
    )
    values = _Values(phases, gears, patterns[: len(names[0])])
    counts = {
        "INPUTS": len(names[0]),
        "OUTPUTS": len(names[1]),
        "WORDS": starts[-1],
        "PLACES": sum(map(len, places)),
        "GEARS": len(gears),
        "EXTENTS": len(chosen),
        "KNOWN": len(known),
        "PHASES": len(phases.each),
        "VALUES": len(values.axes),
        "AXES": sum(map(len, patterns)),
        "MOST_AXES": max((*values.axes, *map(len, patterns)), default=0),
        "BASES": max(p.bases for p in programs),
        "REGISTERS": max(len(code.start) for code in codes),
        "ARENA_BYTES": max(gear.arena for gear in gears),
    }
    lines = [f"#define {key} {value}" for key, value in counts.items()]
    lines += [
        integers("program_words", np.concatenate([p.words for p in programs])),
        integers("kernel_places", np.concatenate(places)),
        *values.tables(patterns, list(known)),
        _extents(name, known),
        *_tensors(name, "inputs", names[0], phases.dtypes[0], patterns),
        *_tensors(name, "outputs", names[1], phases.dtypes[1], patterns[len(names[0]) :]),
    ]
    rows = []
    order, spans = list(known), [span for phase in phases.each for span in _spans(phase, known)]
    for i, (gear, code, own) in enumerate(zip(gears, codes, spans, strict=True)):
        given = [] if gear.many is None else [order.index(n) for n in gear.many.ranges]
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
    return [*lines, *_phases(phases, len(chosen), order)]


def _only(gears: Sequence[Gear], ranges: Ranges | None) -> NativePhases:
    """The one phase of a model in which data decide nothing."""
    first = gears[0]
    inputs, outputs = len(first.inputs), len(first.outputs)
    spans = [() if ranges is None else tuple(_own(g, ranges)) for g in gears]
    names = () if ranges is None else tuple(ranges.extents)
    phase = NativePhase(tuple(range(inputs)), outputs, {}, names, tuple(spans))
    dtypes = tuple(t.dtype for t in first.inputs), tuple(t.dtype for t in first.outputs)
    return NativePhases((phase,), tuple(range(inputs, inputs + outputs)), dtypes)


def _own(gear: Gear, ranges: Ranges) -> Iterator[Range]:
    """The ranges of a gear; what it has as a number begins and ends there."""
    at = bound(ranges.inputs, [extents(t) for t in gear.inputs]) or {}
    many = {} if gear.many is None else gear.many.ranges
    return (many.get(n) or (at[n], at[n]) for n in ranges.extents)


def _spans(phase: NativePhase, known: Mapping[str, Range]) -> Iterator[list[Range]]:
    """Yield for each gear of a phase the ranges of all extents."""
    for spans in phase.spans:
        own = dict(zip(phase.extents, spans, strict=True))
        yield [own.get(name, span) for name, span in known.items()]


class _Values:
    """Values of all phases: bytes of their items, and how many axes they have."""

    def __init__(
        self, phases: NativePhases, gears: Sequence[Gear], inputs: Sequence[Pattern]
    ) -> None:
        self.items = [dtype.itemsize for dtype in phases.dtypes[0]]
        self.axes = list(map(len, inputs))
        self._results = phases.results
        self._told: set[int] = set()
        """Results of the first phase that callers choose the extents of."""
        at = 0
        for number, phase in enumerate(phases.each):
            begin, types = len(self.axes), gears[at].outputs
            if not number:
                self._told.update(range(begin, begin + phase.outputs))
            self.items += [t.dtype.itemsize for t in types]
            self.axes += [len(t.shape) for t in types]
            at += len(phase.spans)

    def tables(self, patterns: Sequence[Pattern], known: Sequence[str]) -> list[str]:
        """The tables of values and ends.

        Args:
            patterns: shapes of the model's inputs and outputs.
            known: names of extents, by number.
        """
        numbers = {n: -1 - i for i, n in enumerate(known)}
        axes = [d if isinstance(d, int) else numbers.get(d, -1) for p in patterns for d in p]
        owners = {value: i for i, value in enumerate(self._results)}
        outputs = patterns[len(patterns) - len(self._results) :]
        found = [  # Whether only a run tells its extents.
            int(v not in self._told and not all(isinstance(d, int) for d in pattern))
            for v, pattern in zip(self._results, outputs, strict=True)
        ]
        return [
            integers("axes", np.array(axes, np.int64)),
            integers("axes_at", np.array([*accumulate(map(len, patterns), initial=0)], np.int64)),
            integers("item_bytes", np.array(self.items, np.int64)),
            integers("value_axes", np.array(self.axes, np.int64)),
            integers("value_outputs", np.array([owners.get(v, -1) for v in range(len(self.axes))])),
            integers("output_values", np.array(self._results, np.int64)),
            integers("output_found", np.array(found, np.int64)),
        ]


def _phases(phases: NativePhases, known: int, order: Sequence[str]) -> list[str]:
    """The tables of phases; of extents in this order `known` are known before the first."""
    lines, rows, gears = [], [], 0
    for i, phase in enumerate(phases.each):
        first, _ = phases.ends(i)
        needs = [order.index(name) for name in phase.extents]
        lines.append(integers(f"takes{i}", np.array(phase.inputs, np.int64)))
        lines.append(integers(f"needs{i}", np.array(needs, np.int64)))
        ends = f"takes{i}, {len(phase.inputs)}, {first}, {phase.results}"
        own = f"{len(phase.found)}, needs{i}, {len(needs)}"
        rows.append(f"  {{{gears}, {len(phase.spans)}, {known}, {ends}, {own}}},")
        gears, known = gears + len(phase.spans), known + len(phase.found)
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


def _extents(name: str, known: dict[str, tuple[int, int]]) -> str:
    rows = [f"  {{{json.dumps(n)}, {low}, {high}}}," for n, (low, high) in known.items()]
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
