"""Programs for many extents of one function: as plain data, and as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.base.table import lines, size
from treadle.engine.extents.regime import OpenProgram
from treadle.graph.ir import symbols_in
from treadle.jit.family import Family, Member
from treadle.jit.variants import Variant

_MOST_MET = 6
"""Extents that the text names of those that a program has met."""


def ranges_of(families: Iterable[Family], variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Facts about captures with symbols, and their programs.

    Args:
        families: the captures.
        variants: the signatures that are kept; those of a program are the extents that it has met.

    Returns:
        For each capture its `extents` by name, the `edges` of ranges and `hints` that are declared
        of them, the `guards` that choose it, the lines that asked
        for `numbers`, why extents have programs of their own (`alone`), and its `programs`: the
        `range` of each extent, the `hint` at which prices are taken, further `guards`, `orders` of
        memory, whether it came from disk (`cached`), and the extents that were `met`, with the
        bytes of the arena there.
    """
    found = []
    for family in families:
        graph = family.captured.graph
        known = {s.name: s for x in graph.input_types for s in symbols_in(x)}
        if known:
            found.append(
                {
                    "extents": sorted(known),
                    "edges": {n: list(s.edges) for n, s in known.items() if s.edges},
                    "hints": {n: s.hint for n, s in known.items() if s.hint},
                    "guards": [str(g) for g in graph.guards],
                    "numbers": {str(x): str(at) for x, at in family.captured.pins.items()},
                    "alone": family.alone,
                    "programs": [_program(r, variants) for r in family.regimes],
                }
            )
    return found


def _program(regime: OpenProgram, variants: Sequence[Variant]) -> dict[str, Any]:
    met = [v for v in variants if isinstance(v, Member) and v.regime is regime]
    return {
        "range": {name: list(ends) for name, ends in regime.cell.ranges.items()},
        "hint": regime.cell.hints,
        "guards": regime.asked(),
        "orders": len(regime.placements.rows),
        "cached": regime.is_recalled,
        "met": [{**v.extents, "arena": v.arena} for v in met],
    }


def to_text(found: Sequence[Mapping[str, Any]]) -> str:
    """The same as a section of a report; empty where nothing is open."""
    return "\n\n".join(map(_section, found))


def _section(capture: Mapping[str, Any]) -> str:
    head = (
        f"programs for many extents: {', '.join(_extent(n, capture) for n in capture['extents'])}"
    )
    if capture["guards"]:
        head += f", where {' and '.join(capture['guards'])}"
    rows = [_row(program) for program in capture["programs"]]
    names = ("range", "prices at", "guards", "orders", "from disk", "met", "arena")
    parts = [head, *(lines(names, rows) if rows else ())]
    parts += [f"  the number of {x} is asked for at {at}" for x, at in capture["numbers"].items()]
    if capture["alone"]:
        parts.append(f"  extents have programs of their own: {capture['alone']}")
    return "\n".join(parts)


def _extent(name: str, capture: Mapping[str, Any]) -> str:
    told = [
        f"edges {' '.join(map(str, edges))}" for edges in (capture["edges"].get(name),) if edges
    ]
    told += [f"tuned for {hint}" for hint in (capture["hints"].get(name),) if hint]
    return f"{name} ({'; '.join(told)})" if told else name


def _row(program: Mapping[str, Any]) -> tuple[str, ...]:
    met = [{n: x for n, x in one.items() if n != "arena"} for one in program["met"]]
    shown = [" x ".join(map(str, one.values())) for one in met[:_MOST_MET]]
    more = len(met) - len(shown)
    return (
        ", ".join(f"{low} <= {n} <= {high}" for n, (low, high) in program["range"].items()),
        " x ".join(map(str, program["hint"].values())),
        " and ".join(program["guards"]) or "-",
        str(program["orders"]),
        "yes" if program["cached"] else "no",
        ", ".join(shown) + (f" and {more} more" if more else "") or "-",
        size(max((one["arena"] for one in program["met"]), default=0)),
    )
