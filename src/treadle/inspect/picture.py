"""Everything that a picture of the compiler shows, as data for its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from treadle.backends.program import Compiler, Jump, MeasuringCompiler, StopStep
from treadle.base.table import count, duration, size
from treadle.base.version import VERSION
from treadle.engine.plan import Interface, Plan
from treadle.engine.report import CompileReport
from treadle.graph.ir import Graph
from treadle.graph.simplify import RULES
from treadle.inspect.boxes import Box, Edge, KnownFacts, Sheet, sheet
from treadle.inspect.columns import in_order
from treadle.inspect.explanation import Explanation
from treadle.inspect.families import FAMILIES, family_of
from treadle.inspect.kernels import kernels
from treadle.inspect.origins import leaves, whereabouts
from treadle.inspect.profile import Profile
from treadle.inspect.timeline import Moment, flows, held_bytes, live_bytes, moments

WHAT = {
    "captured": "the program as it was given, op by op",
    "prepared": "what must be computed: folded, simplified, composites shown apart",
    "partitioned": "who runs what: nodes of other engines and segments are groups of their own",
    "optimized": "what runs as one: layouts are chosen, every group becomes one kernel or a few",
    "plan": "steps in the order in which they run; click one to see whose results it reads",
}
"""Of the sheets, in their order."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Content of a picture of a program that has passed all stages.

    Attributes:
        graphs: by stage.
        plan: of the last one.
        interface: which inputs are frozen or updated.
        report: of the stages.
        explanation: of all this.
        compiler: who lowered it.
        profile: where it was measured.
        inputs, outputs: names of the ends, if somebody knows them.
    """

    graphs: Mapping[str, Graph]
    plan: Plan
    interface: Interface
    report: CompileReport
    explanation: Explanation
    compiler: Compiler
    profile: Profile | None
    inputs: Sequence[str]
    outputs: Sequence[str]


def picture(shown: Shown) -> dict[str, Any]:
    """Return dictionaries, lists, strings and numbers; lists of records are tables with columns."""
    plan, found = shown.plan, shown.explanation
    steps = moments(plan, shown.profile)
    held = held_bytes(plan, shown.graphs["optimized"])
    return {
        "name": found.name,
        "facts": _facts(shown, steps),
        "families": FAMILIES,
        "stages": _table(found.stages),
        "sizes": _table(found.sizes),
        "sheets": [*_sheets(shown), _drawn(_plan_sheet(shown, steps))],
        "groups": _table(found.groups),
        "passes": [list(row) for row in found.passes],
        "rules": {r.name: r.level for r in RULES},
        "ops": _op_counts(shown.graphs),
        "decisions": _table(found.refusals),
        "segments": _segments(shown),
        "steps": _table(steps),
        "events": [[e.source, e.target, e.number] for e in plan.streams.events],
        "streams": {**found.streams, "makespan": _end(steps)},
        "measured": None if shown.profile is None else shown.profile.seconds,
        "memory": {
            **found.memory,
            **_ends(shown),
            "held": _table(held),
            "live": live_bytes(held, len(plan.steps)),
        },
        "kernels": _table(kernels(plan, shown.compiler, shown.profile)),
    }


# -- what stands at the head -------------------------------------------------------------------


def _facts(shown: Shown, steps: Sequence[Moment]) -> list[tuple[str, str, str]]:
    """Title, figure and a remark, the most important first."""
    found, plan = shown.explanation, shown.plan
    captured, *_, last = found.sizes
    total = sum(s.seconds or 0.0 for s in found.stages if s.name != "execute")
    work = sum(f.flops for f in plan.facts)
    rows = [
        ("captured", _many(captured.ops, "op"), f"{last.ops} run, as {_launches(plan)}"),
        ("predicted", duration(_end(steps)), "per run, by the model of the engine"),
    ]
    if shown.profile is not None:
        repeats = f"per run, the median of {shown.profile.repeats}"
        rows.append(("measured", duration(shown.profile.seconds), repeats))
    rows += [
        ("memory", size(plan.memory.peak), f"at the peak; {size(plan.memory.naive)} without reuse"),
        ("constants", size(plan.constants.nbytes), f"{size(plan.kept)} packed for kernels"),
        (
            "work",
            f"{count(int(work))}FLOP",
            f"{size(last.nbytes)} moved, {size(captured.nbytes)} before",
        ),
        ("compiled in", duration(total), _stage_times(found)),
    ]
    return [*rows, ("machine", *_machine(shown.compiler)), ("Treadle", VERSION, "")]


def _end(steps: Sequence[Moment]) -> float:
    """Modelled seconds of a run."""
    return max((s.start + s.seconds for s in steps), default=0.0)


def _launches(plan: Plan) -> str:
    number = sum(not isinstance(step, Jump | StopStep) for step in plan.steps)
    return _many(number, "launch", "launches")


def _many(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _stage_times(found: Explanation) -> str:
    known = [s for s in found.stages if s.seconds is not None and s.name != "execute"]
    return ", ".join(f"{s.name} {duration(s.seconds or 0.0)}" for s in known)


def _machine(compiler: Compiler) -> tuple[str, str]:
    about = compiler.about() if isinstance(compiler, MeasuringCompiler) else {}
    name = about.get("processor", "") or compiler.target.split("/")[0]
    told = (f"{key} {about[key]}" for key in ("instructions", "threads") if key in about)
    return name, ", ".join(told)


# -- graphs ------------------------------------------------------------------------------------


def _sheets(shown: Shown) -> list[dict[str, Any]]:
    """The graph at every stage; one that a stage left as it was names the one before."""
    compiled = shown.graphs["optimized"]
    held = {i for i, yes in enumerate(shown.interface.frozen) if yes}
    held |= {i for _, i in shown.interface.updates}
    kept = {j for j, _ in shown.interface.updates}
    times = {g.number: _seconds(g) for g in shown.explanation.groups}
    fates = [op.fate for op in shown.explanation.ops]
    found: list[dict[str, Any]] = []
    drawn: dict[int, str] = {}
    for name, graph in shown.graphs.items():
        if (like := drawn.setdefault(id(graph), name)) != name:
            found.append({"name": name, "what": WHAT[name], "like": like})
            continue
        if graph is compiled:
            known = KnownFacts(held, kept, {n: (i,) for i, n in enumerate(graph.nodes)}, times)
        else:
            known = KnownFacts(held, kept, whereabouts(graph, compiled))
        if name == "captured":
            known = replace(known, fates=dict(zip(graph.nodes, fates, strict=True)))
        known = replace(known, inputs=shown.inputs, outputs=shown.outputs)
        found.append(_drawn(sheet(name, graph, known)))
    return found


def _seconds(group: Any) -> float:
    return float(group.predicted if group.measured is None else group.measured)


def _plan_sheet(shown: Shown, steps: Sequence[Moment]) -> Sheet:
    nodes = shown.graphs["optimized"].nodes
    boxes = []
    for step in steps:
        first = step.groups[0] if step.groups else -1
        family = family_of(nodes[first]) if first >= 0 else "data"
        seconds = step.measured if step.measured >= 0 else step.seconds
        lines = [f"{step.number}  {_cut(step.label)}", _cut(step.kernel), duration(seconds)]
        if step.kernel == "jump":
            family, lines = "control", lines[:1]
        box = Box(step.number, "node", family, tuple(lines), groups=step.groups, seconds=seconds)
        boxes.append(replace(box, flops=step.flops, nbytes=step.nbytes))
    edges = tuple(Edge(a, b) for a, b in flows(shown.plan))
    drawing = in_order([b.size for b in boxes], flows(shown.plan))
    return Sheet("plan", len(boxes), 0, 0, tuple(boxes), edges, drawing)


def _cut(text: str, width: int = 40) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _drawn(found: Sheet) -> dict[str, Any]:
    drawing = found.drawing
    boxes = _table(found.boxes, Box)
    boxes["columns"] += ["x", "y", "w", "h"]
    least = max(b.size[0] for b in found.boxes) if found.name == "plan" and found.boxes else 0.0
    for row, box, (x, y) in zip(boxes["rows"], found.boxes, drawing.centers, strict=True):
        wide, high = max(box.size[0], least), box.size[1]
        row += [round(x - wide / 2), round(y - high / 2), round(wide), round(high)]
    return {
        "name": found.name,
        "what": WHAT[found.name],
        "nodes": found.nodes,
        "folded": found.folded,
        "unboxed": found.unboxed,
        "width": round(drawing.width),
        "height": round(drawing.height),
        "boxes": boxes,
        "edges": [
            [e.source, e.target, e.carries, [round(c) for point in route for c in point]]
            for e, route in zip(found.edges, drawing.routes, strict=True)
        ],
    }


def _op_counts(graphs: Mapping[str, Graph]) -> dict[str, Any]:
    """Count each op in each graph, those in groups included."""
    names = [name for name in WHAT if name in graphs]
    counts = [Counter(leaf.node.op.name for leaf in leaves(graphs[name])) for name in names]
    total = Counter[str]()
    for found in counts:
        total.update(found)
    rows = [[op, *(found[op] for found in counts)] for op, _ in total.most_common()]
    return {"columns": ["op", *names], "rows": rows}


def _segments(shown: Shown) -> list[list[Any]]:
    """Engine, what it got, its groups and share of the time, and why others did not get it."""
    told = [d for d in shown.report.decisions if d.outcome.startswith("Segment")]
    by_engine: dict[str, list[Any]] = {}
    for group in shown.explanation.groups:
        by_engine.setdefault(group.engine, []).append(group)
    total = sum(map(_seconds, shown.explanation.groups)) or 1.0
    rows = []
    for engine, groups in by_engine.items():
        parts = [d.outcome.removeprefix("Segment ") for d in told if _is_of(d.outcome, engine)]
        refused = dict.fromkeys(
            f"{d.subject}: {d.reason}"
            for d in shown.report.decisions
            if d.stage == "partition" and d.outcome == engine and d.reason
        )
        share = sum(map(_seconds, groups)) / total
        rows.append([engine, parts, len(groups), share, list(refused)])
    return rows


def _is_of(outcome: str, engine: str) -> bool:
    return outcome.removeprefix("Segment ").startswith(f"{engine}.")


# -- memory -----------------------------------------------------------------------------------


def _ends(shown: Shown) -> dict[str, int]:
    """Bytes that lie with the caller; outputs that replace an input count once, there."""
    graph, interface = shown.graphs["captured"], shown.interface
    stays = {i for i, yes in enumerate(interface.frozen) if yes}
    stays |= {i for _, i in interface.updates}
    replaced = {j for j, _ in interface.updates}
    sizes = [v.type.nbytes if v.type.is_static else 0 for v in graph.inputs]
    return {
        "weights": sum(n for i, n in enumerate(sizes) if i in stays),
        "inputs": sum(n for i, n in enumerate(sizes) if i not in stays),
        "outputs": sum(
            v.type.nbytes
            for j, v in enumerate(graph.outputs)
            if j not in replaced and v.type.is_static
        ),
    }


# -- tables ------------------------------------------------------------------------------------


def _table(items: Sequence[Any], kind: type | None = None) -> dict[str, Any]:
    """Records as rows under the names of their fields, which are so written once."""
    cls = kind or (type(items[0]) if items else None)
    columns = [f.name for f in fields(cls)] if cls is not None and is_dataclass(cls) else []
    rows = [[_plain(getattr(item, name)) for name in columns] for item in items]
    return {"columns": columns, "rows": rows}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
