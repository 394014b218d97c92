"""Everything an explanation says, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

from treadle.backends.program import Host, Jump, Step, StopStep, Together, runs_of
from treadle.engine.plan import Facts, Plan, step_names
from treadle.engine.plan.memory import StepMemory, steps_memory, totals
from treadle.engine.report import CompileReport, Partition, describe_partitions
from treadle.graph.ir import Graph, Node, regions_of
from treadle.inspect.origins import leaves, place, places_of, whereabouts
from treadle.inspect.profile import Profile, predicted, rates_in, shares
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused
from treadle.ops.movement import Reshape
from treadle.ops.transfer import Identity

STAGES = ("prepare", "partition", "optimize", "compile", "load", "execute")


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage, its seconds (None where it was not measured), and what it did in a few words."""

    name: str
    seconds: float | None
    did: str


@dataclass(frozen=True, slots=True)
class Size:
    """A program at one stage, were it run as it stands.

    Attributes:
        graph: which of the graphs.
        ops: nodes, constants left out.
        regions: programs inside of control flow.
        kernels: different kernels; one per op where nothing is fused yet.
        launches: kernels that run, and returns to the caller.
        nbytes: what all launches read and write.
        memory: bytes of intermediate results.
    """

    graph: str
    ops: int
    regions: int
    kernels: int
    launches: int
    nbytes: int
    memory: int


@dataclass(frozen=True, slots=True)
class ExplainedGroup:
    """A part that runs as one: a fused group, an op on its own, or a copy.

    Attributes:
        number: of the node in the compiled graph; -1 for copies to where outputs belong.
        kind: "contraction", "loop", "attention", "window"; "op" for one on its own; "host", "copy";
            "segment." and an engine's name.
        ops: what it computes.
        lines: of the user's program.
        engine: who runs it.
        kernels: their names and launches.
        streams: on which it runs.
        flops, nbytes: work of a run, as the kernels declare it.
        output_bytes: of its results.
        predicted, measured: seconds of a run; None where there is no profile.
        attainable: the least seconds that the machine's measured limits allow; 0 if not known.
        name: what the user calls it.
    """

    number: int
    kind: str
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    engine: str
    kernels: tuple[tuple[str, int], ...]
    streams: tuple[int, ...]
    flops: int
    nbytes: int
    output_bytes: int
    predicted: float
    measured: float | None
    attainable: float = 0.0
    name: str = ""

    @property
    def launches(self) -> int:
        """Number of runs of kernels that it takes; some may share a launch with those of others."""
        return sum(n for _, n in self.kernels)


@dataclass(frozen=True, slots=True)
class CapturedOp:
    """One op of the user's program, and the groups that compute it; none where it is gone.

    `wanted` is the name of the group that the user put it into.
    """

    name: str
    result: str
    output_bytes: int
    line: str
    fate: str
    engine: str
    why: str
    groups: tuple[int, ...]
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class ExplainedRefusal:
    """Something that was not done, why, and how often."""

    stage: str
    outcome: str
    reason: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a program."""

    name: str
    stages: tuple[StageTime, ...]
    sizes: tuple[Size, ...]
    groups: tuple[ExplainedGroup, ...]
    ops: tuple[CapturedOp, ...]
    refusals: tuple[ExplainedRefusal, ...]
    passes: tuple[tuple[str, int, int, float, tuple[tuple[str, int], ...]], ...]
    memory: Mapping[str, int]
    streams: Mapping[str, Any]
    steps: tuple[StepMemory, ...] = ()
    partitions: tuple[Partition, ...] = ()

    def data(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, strings and numbers."""
        return asdict(self)


def explain(
    graphs: Mapping[str, Graph],
    plan: Plan,
    report: CompileReport,
    engine: str,
    profile: Profile | None = None,
) -> Explanation:
    """Put together what the stages know.

    Args:
        graphs: "captured", "prepared" and "optimized".
        plan: of the optimized graph.
        report: of the stages.
        engine: name of the one that compiled it.
        profile: of the program, if it was measured.
    """
    groups = _groups(graphs["optimized"], plan, engine, profile)
    steps = steps_memory(plan)
    return Explanation(
        report.name,
        _stages(graphs, plan, report, groups, profile, engine),
        _sizes(graphs, plan),
        groups,
        _ops(graphs, groups, report, engine, frozenset(plan.once)),
        _refusals(report),
        tuple((f"{s} {r.name}", r.before, r.after, r.seconds, r.hits) for s, r in report.passes),
        {
            "arena": plan.memory.peak,
            "bound": plan.memory.bound,
            "naive": plan.memory.naive,
            "constants": plan.constants.nbytes,
            "packed": plan.kept,
            **totals(steps),
        },
        _streams(plan),
        steps,
        report.partitions or _whole(graphs["prepared"], engine),
    )


def _whole(graph: Graph, engine: str) -> tuple[Partition, ...]:
    """A program that nobody cut is one partition."""
    reads, writes = (sum(map(_nbytes, values)) for values in (graph.inputs, graph.outputs))
    return (Partition(engine, len(graph.nodes), reads, writes),)


def _streams(plan: Plan) -> dict[str, Any]:
    streams, steps = plan.streams, zip(plan.streams.of, plan.steps, strict=True)
    launching = [stream for stream, step in steps if not isinstance(step, Jump | StopStep)]
    return {
        "count": streams.count,
        "steps": [launching.count(s) for s in range(streams.count)],
        "crossing": streams.crossing,
        "events": len(streams.events),
        "event_numbers": streams.numbers,
        "single": streams.single,
        "makespan": streams.makespan,
        "reason": streams.reason,
        # Executors submit all steps of a plan to one queue, in order.
        "in_use": 1,
        "events_in_use": 0,
    }


# -- groups ------------------------------------------------------------------------------------


def _groups(
    graph: Graph, plan: Plan, engine: str, profile: Profile | None
) -> tuple[ExplainedGroup, ...]:
    members: dict[int, list[_Member]] = {}
    for i, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        if isinstance(step, Jump | StopStep):
            continue
        seconds, stream = predicted(step, facts, rates_in(profile)), plan.streams.of[i]
        for part, own, share in shares(step, facts):
            mine = members.setdefault(own.node, [])
            mine.append(_Member(part, own, stream, seconds * share))
    measured = profile.by_node() if profile is not None else {}
    limits = None if profile is None else profile.limits
    found = []
    for number, mine in members.items():
        node = graph.nodes[number] if number >= 0 else None
        tasks = [plan.host[m.step.task] for m in mine if isinstance(m.step, Host)]
        kernels = Counter(step_names(plan, m.step)[1] for m in mine)
        found.append(
            ExplainedGroup(
                number,
                _kind(node, bool(tasks)),
                ("copy",) if node is None else _names(node),
                () if node is None else places_of(node),
                tasks[0].engine if tasks else engine,
                tuple(kernels.items()),
                tuple(sorted({m.stream for m in mine})),
                sum(int(m.facts.flops) for m in mine),
                sum(int(m.facts.nbytes) for m in mine),
                0 if node is None else sum(v.type.nbytes for v in node.outputs),
                sum(m.seconds for m in mine),
                None if profile is None else measured.get(number, 0.0),
                sum(m.facts.least(limits) for m in mine) if limits else 0.0,
                _name(node),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Member:
    """A step on behalf of one node, or one run of a step on behalf of several."""

    step: Step
    facts: Facts
    stream: int
    seconds: float


def _name(node: Node | None) -> str:
    """The user's name of a group that was made of all its ops."""
    return node.group if node is not None and isinstance(node.op, Fused) else ""


def _kind(node: Node | None, hosted: bool) -> str:
    if node is None:
        return "copy"
    if isinstance(node.op, Fused) and (node.op.is_segment or not node.op.engine):
        return node.op.kind
    return "host" if hosted else "op"


def _names(node: Node) -> tuple[str, ...]:
    if not isinstance(node.op, Fused):
        return (node.op.name,)
    inside = [n.op for body in regions_of(node.op) for n in body.nodes]
    return tuple(op.name for op in inside if not op.incidental) or tuple(op.name for op in inside)


# -- stages and sizes --------------------------------------------------------------------------


def _stages(
    graphs: Mapping[str, Graph],
    plan: Plan,
    report: CompileReport,
    groups: Sequence[ExplainedGroup],
    profile: Profile | None,
    engine: str,
) -> tuple[StageTime, ...]:
    captured, prepared = (len(graphs[g].nodes) for g in ("captured", "prepared"))
    fired = Counter[str]()
    for _, r in report.passes:
        fired.update(dict(r.hits))
    kinds = Counter(g.kind for g in groups)
    did = {
        "prepare": f"{captured} -> {prepared} nodes; {len(report.passes)} passes, "
        f"{sum(fired.values())} rewrites",
        "partition": describe_partitions(report.partitions or _whole(graphs["prepared"], engine)),
        "optimize": f"{prepared} -> {len(graphs['optimized'].nodes)} nodes; "
        + ", ".join(f"{n} {kind}" for kind, n in kinds.items()),
        "compile": f"{_launches(plan)}, {len(plan.left)} host tasks, "
        + (f"1 stream, {plan.streams.count} planned" if plan.streams.count > 1 else "1 stream")
        + (f", {len(plan.once)} groups once" if plan.once else ""),
        "load": f"{len({run.kernel for run in runs_of(plan.steps)})} kernels, "
        "those that the cache has not are compiled",
        "execute": "not measured; see profile()"
        if profile is None
        else f"median of {profile.repeats} runs",
    }
    seconds: dict[str, float | None] = dict(report.seconds)
    seconds["execute"] = None if profile is None else profile.seconds
    return tuple(StageTime(name, seconds.get(name), did[name]) for name in STAGES)


def _launches(plan: Plan) -> str:
    runs = len(list(runs_of(plan.steps)))
    merged = [len(s.runs) for s in plan.steps if isinstance(s, Together)]
    text = f"{runs - sum(merged) + len(merged)} launches"
    return f"{text}, {len(merged)} of which are {sum(merged)} runs together" if merged else text


def _sizes(graphs: Mapping[str, Graph], plan: Plan) -> tuple[Size, ...]:
    found = [_graph_size(name, graphs[name]) for name in ("captured", "prepared")]
    compiled = graphs["optimized"]
    launches = sum(not isinstance(s, Jump | StopStep) for s in plan.steps)
    moved = sum(int(f.nbytes) for f in plan.facts)
    kernels = len({run.kernel for run in runs_of(plan.steps)}) + len(plan.left)
    regions = _regions(compiled)
    found.append(
        Size("compiled", _running(compiled), regions, kernels, launches, moved, plan.memory.peak)
    )
    return tuple(found)


_VIEWS = (Reshape, Identity)


def _running(graph: Graph) -> int:
    """Nodes that run, those of regions included; a group is one."""
    own = [n for n in graph.nodes if not isinstance(n.op, Constant)]
    inner = [r for n in own if not isinstance(n.op, Fused) for r in regions_of(n.op)]
    return len(own) + sum(map(_running, inner))


def _graph_size(name: str, graph: Graph) -> Size:
    ops = [leaf.node for leaf in leaves(graph)]
    runs = [n for n in ops if not isinstance(n.op, _VIEWS)]
    moved = sum(_nbytes(v) for n in runs for v in (*dict.fromkeys(n.inputs), *n.outputs))
    results = set(graph.outputs)
    memory = sum(_nbytes(v) for n in runs for v in n.outputs if v not in results)
    return Size(name, len(ops), _regions(graph), len(runs), len(runs), moved, memory)


def _regions(graph: Graph) -> int:
    """Programs inside of control flow, at any depth."""
    inner = [r for n in graph.nodes if not isinstance(n.op, Fused) for r in regions_of(n.op)]
    return len(inner) + sum(map(_regions, inner))


def _nbytes(value: Any) -> int:
    return int(value.type.nbytes) if value.type.is_static else 0


# -- captured ops ------------------------------------------------------------------------------


def _ops(
    graphs: Mapping[str, Graph],
    groups: Sequence[ExplainedGroup],
    report: CompileReport,
    engine: str,
    once: Set[int],
) -> tuple[CapturedOp, ...]:
    captured, compiled = graphs["captured"], graphs["optimized"]
    running = {g.number: g for g in groups}
    why = _reasons(report)
    found = []
    for node, tops in whereabouts(captured, compiled).items():
        mine = [running[t] for t in tops if t in running]
        on_host = any(g.engine != engine for g in mine)
        found.append(
            CapturedOp(
                node.op.name,
                " ".join(str(v.type) for v in node.outputs),
                sum(map(_nbytes, node.outputs)),
                place(node.loc),
                _fate(node, tops, mine, once),
                ", ".join(dict.fromkeys(g.engine for g in mine)),
                why.get(node.op.name, f"not by {engine}" if on_host else ""),
                tuple(g.number for g in mine),
                node.group,
            )
        )
    return tuple(found)


def _fate(node: Node, tops: Sequence[int], mine: Sequence[ExplainedGroup], once: Set[int]) -> str:
    if isinstance(node.op, Constant):
        return "constant"
    if not tops:
        return "folded or shared"
    if not mine:
        return "once" if any(t in once for t in tops) else "view"
    if all(g.kind == "op" for g in mine):
        return "alone" if node.op.name in mine[0].ops else "rewritten"
    return "on the host" if any(g.kind == "host" for g in mine) else "fused"


def _reasons(report: CompileReport) -> dict[str, str]:
    """Return the reasons for the places of ops, by op."""
    found: dict[str, str] = {}
    for d in report.decisions:
        if d.stage == "partition" and d.reason:
            found[d.subject.split(" ")[0]] = d.reason
        elif d.stage == "compile" and d.outcome == "host":
            found[d.subject] = d.reason
    return found


def _refusals(report: CompileReport) -> tuple[ExplainedRefusal, ...]:
    counts: dict[tuple[str, str, str], list[str]] = {}
    for d in report.decisions:
        if not d.outcome.startswith(("fused", "Segment")):
            counts.setdefault((d.stage, d.outcome, d.reason), []).append(d.subject)
    return tuple(
        ExplainedRefusal(stage, outcome, reason, len(subjects), subjects[0])
        for (stage, outcome, reason), subjects in counts.items()
    )
