"""Explanations as text, at most 120 columns wide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from treadle.base.table import count, duration, lines, size
from treadle.engine.plan.memory import memory_table
from treadle.inspect.explanation import ExplainedGroup, ExplainedRefusal, Explanation
from treadle.inspect.origins import joined
from treadle.inspect.profile import RATES_SHOWN, rates

MOST_ROWS = 24
"""Rows of a table, unless everything is asked for."""


def to_text(found: Explanation, *, full: bool = False) -> str:
    """The explanation for people.

    Args:
        found: what to say.
        full: every group, op and pass in a row of its own, however many there are.
    """
    parts = [_head(found), _stages(found), _sizes(found), _partitions(found) if full else ""]
    parts.append(_every_group(found) if full else _groups(found))
    parts.append(_ops(found) if full else _lines(found))
    if full:
        parts.append(_passes(found))
    parts += [_refusals(found.refusals, full), _memory(found)]
    parts += [memory_table(found.steps) if full else "", _streams(found)]
    return "\n\n".join(p for p in parts if p)


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join((title, *lines(header, rows))) if rows else ""


def _head(found: Explanation) -> str:
    fates = Counter(op.fate for op in found.ops if op.fate != "constant")
    captured = ", ".join(f"{n} {fate}" for fate, n in fates.most_common())
    return f"program {found.name}: {sum(fates.values())} ops captured ({captured})"


def _stages(found: Explanation) -> str:
    rows = [
        (s.name, "-" if s.seconds is None else duration(s.seconds), s.did) for s in found.stages
    ]
    return _section("stages", ("stage", "time", "what it did"), rows)


def _sizes(found: Explanation) -> str:
    first, *_, last = found.sizes
    named = (
        ("ops", [str(s.ops) for s in found.sizes], first.ops, last.ops),
        ("regions", [str(s.regions) for s in found.sizes], 0, 0),
        ("kernels", [str(s.kernels) for s in found.sizes], first.kernels, last.kernels),
        ("launches", [str(s.launches) for s in found.sizes], first.launches, last.launches),
        ("bytes moved", [size(s.nbytes) for s in found.sizes], first.nbytes, last.nbytes),
        ("intermediates", [size(s.memory) for s in found.sizes], first.memory, last.memory),
    )
    rows = [
        (name, *cells, f"{now / before:.0%}" if before else "-")
        for name, cells, before, now in named
        if name != "regions" or any(s.regions for s in found.sizes)
    ]
    header = ("before and after", *(s.graph for s in found.sizes), "left")
    return "\n".join(lines(header, rows))


def _partitions(found: Explanation) -> str:
    rows = [(p.engine, str(p.nodes), size(p.reads), size(p.writes)) for p in found.partitions]
    return _section("partitions, as they run", ("engine", "nodes", "reads", "writes"), rows)


# -- groups ------------------------------------------------------------------------------------

_HEADER = ("ops", "kernels", "moved", "predicted", "measured", *RATES_SHOWN, "lines")
_MEASURED = ("measured", *RATES_SHOWN)


def _cells(group: ExplainedGroup) -> tuple[str, ...]:
    kernels = " ".join(k if n == 1 else f"{n}x {k}" for k, n in group.kernels)
    return (
        _brief(group),
        kernels,
        size(group.nbytes),
        duration(group.predicted),
        "-" if group.measured is None else duration(group.measured),
        *rates(group.flops, group.nbytes, group.measured or 0.0, group.attainable),
        joined(group.lines),
    )


def _brief(group: ExplainedGroup) -> str:
    """The ops, the same one many times in a row as one."""
    runs = [(name, len(list(same))) for name, same in groupby(group.ops)]
    return " ".join(name if n == 1 else f"{name}*{n}" for name, n in runs)


def _groups(found: Explanation) -> str:
    """Equal groups in one row, the most expensive first."""
    alike: dict[object, list[ExplainedGroup]] = {}
    for g in found.groups:
        alike.setdefault((_kind(g), g.engine, g.ops, g.kernels), []).append(g)
    ranked = sorted(alike.values(), key=lambda same: -sum(_time(g) for g in same))
    rows = []
    for same in ranked[:MOST_ROWS]:
        one = _summed(same)
        rows.append((str(len(same)), _kind(one), *_cells(one)))
    hidden = ranked[MOST_ROWS:]
    if hidden:
        rest = [g for same in hidden for g in same]
        _, _, *cells = _cells(_summed(rest))
        name = f"({len(hidden)} more kinds, see full=True)"
        rows.append((str(len(rest)), "", name, "", *cells))
    title = f"groups: {len(found.groups)}, the longest first"
    return _section(title, ("n", "kind", *_shown(found, _HEADER)), _trimmed(found, rows))


def _kind(group: ExplainedGroup) -> str:
    """The kind, with the user's name."""
    return f'{group.kind} "{group.name}"' if group.name else group.kind


def _time(group: ExplainedGroup) -> float:
    return group.predicted if group.measured is None else group.measured


def _sum(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _summed(same: Sequence[ExplainedGroup]) -> ExplainedGroup:
    """Groups with the same ops and kernels as one, with all their work."""
    first = same[0]
    kernels = Counter[str]()
    for g in same:
        kernels.update(dict(g.kernels))
    return ExplainedGroup(
        first.number,
        first.kind,
        first.ops,
        tuple(dict.fromkeys(line for g in same for line in g.lines)),
        first.engine,
        tuple(kernels.items()),
        tuple(sorted({s for g in same for s in g.streams})),
        sum(g.flops for g in same),
        sum(g.nbytes for g in same),
        sum(g.output_bytes for g in same),
        sum(g.predicted for g in same),
        _sum([g.measured for g in same]),
        sum(g.attainable for g in same),
        first.name,
    )


def _shown(found: Explanation, header: Sequence[str]) -> tuple[str, ...]:
    """The header without the measured columns where nothing was measured."""
    return tuple(h for h in header if h not in _MEASURED or _measured(found))


def _trimmed(found: Explanation, rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    if _measured(found):
        return [tuple(row) for row in rows]
    return [(*row[: -1 - len(_MEASURED)], row[-1]) for row in rows]


def _measured(found: Explanation) -> bool:
    return any(g.measured is not None for g in found.groups)


def _every_group(found: Explanation) -> str:
    rows = []
    for g in found.groups:
        number = "" if g.number < 0 else f"#{g.number}"
        streams = ",".join(map(str, g.streams))
        rows.append((number, _kind(g), streams, size(g.output_bytes), count(g.flops), *_cells(g)))
    header = ("node", "kind", "stream", "output", "flops", *_shown(found, _HEADER))
    return _section("groups, as they run", header, _trimmed(found, rows))


# -- ops and lines -----------------------------------------------------------------------------


def _lines(found: Explanation) -> str:
    """The user's lines with what became of them."""
    by_line: dict[str, list[int]] = {}
    for i, op in enumerate(found.ops):
        if op.fate != "constant":
            by_line.setdefault(op.line, []).append(i)
    total = sum(_time(g) for g in found.groups) or 1.0
    share = _shares(found)
    ranked = sorted(by_line.items(), key=lambda pair: -share.get(pair[0], 0.0))
    rows = []
    for line, mine in ranked[:MOST_ROWS]:
        ops = [found.ops[i] for i in mine]
        names = Counter(op.name for op in ops)
        told = " ".join(n if k == 1 else f"{n}*{k}" for n, k in names.most_common())
        groups = {g for op in ops for g in op.groups}
        part = share.get(line, 0.0) / total
        rows.append((line or "(no line)", f"{part:.0%}", str(len(ops)), str(len(groups)), told))
    if len(ranked) > MOST_ROWS:
        rest = ranked[MOST_ROWS:]
        part = sum(share.get(line, 0.0) for line, _ in rest) / total
        ops_left = sum(len(mine) for _, mine in rest)
        rows.append((f"({len(rest)} more)", f"{part:.0%}", str(ops_left), "", ""))
    return _section("lines", ("line", "time", "ops", "groups", "captured there"), rows)


def _shares(found: Explanation) -> dict[str, float]:
    """Time by line: each group's is shared equally among the captured ops that it computes."""
    members: dict[int, list[str]] = {}
    for op in found.ops:
        for g in op.groups:
            members.setdefault(g, []).append(op.line)
    share: dict[str, float] = {}
    for group in found.groups:
        mine = members.get(group.number, [])
        for line in mine:
            share[line] = share.get(line, 0.0) + _time(group) / len(mine)
    return share


def _ops(found: Explanation) -> str:
    rows = [
        (
            op.line,
            op.name,
            op.result,
            size(op.output_bytes),
            op.fate,
            " ".join(f"#{g}" for g in op.groups[:4]) + (" …" if len(op.groups) > 4 else ""),
            op.engine,
            op.why,
        )
        for op in found.ops
    ]
    header = ("line", "op", "result", "bytes", "became", "in", "engine", "why")
    return _section("captured ops", header, rows)


# -- the rest ----------------------------------------------------------------------------------


def _passes(found: Explanation) -> str:
    rows = []
    for name, before, after, seconds, hits in found.passes:
        fired = "; ".join(f"{rule} ({n})" for rule, n in hits)
        rows.append((name, f"{before} -> {after}", duration(seconds), fired))
    return _section("passes", ("pass", "nodes", "time", "fired"), rows)


def _refusals(refusals: Sequence[ExplainedRefusal], full: bool) -> str:
    shown = refusals if full else sorted(refusals, key=lambda r: -r.count)[:MOST_ROWS]
    rows = [(r.stage, str(r.count), r.example, r.outcome, r.reason) for r in shown]
    left = len(refusals) - len(shown)
    if left:
        rows.append(("", str(left), "(more, see full=True)", "", ""))
    return _section("decisions", ("stage", "n", "for example", "outcome", "why"), rows)


def _memory(found: Explanation) -> str:
    m = found.memory
    rows = [
        ("arena", size(m["arena"]), f"lower bound {size(m['bound'])}"),
        ("one buffer per value", size(m["naive"]), "without reuse"),
        ("constants", size(m["constants"]), "data in the program"),
        ("packed once", size(m["packed"]), "weights in the form kernels like"),
        ("scratch", size(m["scratch"]), "the most that one step needs; in the arena"),
    ]
    return _section("memory", ("what", "bytes", ""), rows)


def _streams(found: Explanation) -> str:
    s = found.streams
    planned = f"{s['in_use']} in use, {s['count']} planned" if s["count"] > 1 else s["in_use"]
    head = f"streams: {planned} ({s['reason']}); modelled {duration(s['makespan'])} per run"
    return "\n".join((head, *_stream_rows(found)))


def _stream_rows(found: Explanation) -> Iterator[str]:
    s = found.streams
    if s["count"] > 1:
        yield "  planned for devices with several queues; here the steps run one after the other"
        yield f"  steps by stream: {', '.join(map(str, s['steps']))}"
        yield (
            f"  dependencies between streams: {s['crossing']}; events {s['events']}, "
            f"{s['event_numbers']} at a time; on one stream {duration(s['single'])}"
        )
