"""Gears as tables in C, which `model.c` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from treadle.backends.native_code import NativeProgram
from treadle.base.types import TensorType
from treadle.deploy.c_text import integers
from treadle.engine.package.extents import Pattern, Ranges, bound
from treadle.engine.package.native_part import Gear
from treadle.engine.package.native_run import extents

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
    name: str,
    gears: Sequence[Gear],
    programs: Sequence[NativeProgram],
    names: Names,
    ranges: Ranges | None,
) -> list[str]:
    """Lines of C: words, inputs and outputs, extents, and what computes numbers from them.

    Args:
        name: prefix of the library's types.
        gears: of the library.
        programs: one for each gear.
        names: of inputs and of outputs.
        ranges: that the gears are for; None where there is one for one set of shapes.
    """
    known = {} if ranges is None else dict(ranges.extents)
    codes = [_code(gear) for gear in gears]
    starts = list(accumulate((len(p.words) for p in programs), initial=0))
    places = [p.places + start for p, start in zip(programs, starts, strict=False)]
    types = (*gears[0].inputs, *gears[0].outputs)
    patterns = (
        [*ranges.inputs, *ranges.outputs] if ranges is not None else [extents(t) for t in types]
    )
    counts = {
        "INPUTS": len(gears[0].inputs),
        "OUTPUTS": len(gears[0].outputs),
        "WORDS": starts[-1],
        "PLACES": sum(map(len, places)),
        "GEARS": len(gears),
        "EXTENTS": len(known),
        "AXES": sum(map(len, patterns)),
        "BASES": max(p.bases for p in programs),
        "REGISTERS": max(len(code.start) for code in codes),
        "ARENA_BYTES": max(gear.arena for gear in gears),
    }
    numbers = {n: -1 - i for i, n in enumerate(known)}
    axes = [d if isinstance(d, int) else numbers.get(d, -1) for p in patterns for d in p]
    lines = [f"#define {key} {value}" for key, value in counts.items()]
    lines += [
        integers("program_words", np.concatenate([p.words for p in programs])),
        integers("kernel_places", np.concatenate(places)),
        integers("axes", np.array(axes, np.int64)),
        integers("item_bytes", np.array([t.dtype.itemsize for t in types], np.int64)),
        _extents(name, known),
        *_tensors(name, "inputs", names[0], gears[0].inputs, patterns),
        *_tensors(name, "outputs", names[1], gears[0].outputs, patterns[len(names[0]) :]),
    ]
    rows = []
    for i, (gear, code) in enumerate(zip(gears, codes, strict=True)):
        lines += _gear(i, gear, code, ranges)
        given = len(gear.many.ranges) if gear.many is not None else 0
        parts = [
            starts[i],
            max(gear.arena, 1),
            f"ranges{i}, given{i}, {given}, start{i}, {len(code.start)}, {code.first}",
            f"{{code{i}, {len(code.rows)}}}, orders{i}, {len(code.orders)}",
            f"{code.peak}, {code.least}, results{i}, stops{i}, {len(gear.stops)}",
        ]
        rows.append(f"  {{{', '.join(map(str, parts))}}},")
    body = "\n".join(rows)
    return [*lines, f"static const Gear gears[] = {{\n{body}\n}};"]


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


def _gear(i: int, gear: Gear, code: _Code, ranges: Ranges | None) -> list[str]:
    """The tables of a gear."""
    own: list[int] = []
    given: list[int] = []
    if ranges is not None:
        spans = _spans(gear, ranges)
        own = [end for span in spans.values() for end in span]
        order = list(ranges.extents)
        given = [order.index(n) for n in gear.many.ranges] if gear.many is not None else []
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


def _spans(gear: Gear, ranges: Ranges) -> dict[str, tuple[int, int]]:
    """The ranges of a gear; what it has as a number begins and ends there."""
    shapes = [extents(t) for t in gear.inputs]
    at = bound(ranges.inputs, shapes) or {}
    own = {} if gear.many is None else gear.many.ranges
    return {n: own.get(n, (at[n], at[n])) for n in ranges.extents}


def _extents(name: str, known: dict[str, tuple[int, int]]) -> str:
    rows = [f"  {{{json.dumps(n)}, {low}, {high}}}," for n, (low, high) in known.items()]
    body = "\n".join(rows) or '  {"", 0, 0},'
    return f"static const {name}_extent extents_known[] = {{\n{body}\n}};"


def _tensors(
    name: str,
    what: str,
    names: Sequence[str],
    types: Sequence[TensorType],
    patterns: Sequence[Pattern],
) -> list[str]:
    shapes, rows = [], []
    for i, (label, type_, pattern) in enumerate(zip(names, types, patterns, strict=False)):
        listed = ", ".join(str(d) if isinstance(d, int) else "-1" for d in pattern) or "0"
        shapes.append(f"static const int64_t {what}_shape{i}[] = {{{listed}}};")
        dtype = type_.dtype
        closed = [d for d in pattern if isinstance(d, int)]
        size = dtype.itemsize * int(np.prod(closed, dtype=np.int64))
        nbytes = size if len(closed) == len(pattern) else 0
        rows.append(
            f'  {{{json.dumps(label)}, "{dtype.name}", {len(pattern)}, {what}_shape{i}, {nbytes}}},'
        )
    body = "\n".join(rows) or '  {"", "", 0, 0, 0},'
    return [*shapes, f"static const {name}_tensor {what}[] = {{\n{body}\n}};"]


__all__ = ["gear_tables"]
