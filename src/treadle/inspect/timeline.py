"""A plan over time: when steps run, what they read of one another, what lies where meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from treadle.backends.program import Jump, Step, Together
from treadle.engine.compile.streams import simulate
from treadle.engine.compile.streams_order import blocks_of, dependencies
from treadle.engine.cost import RATES
from treadle.engine.plan import Facts, Plan, Span, step_names
from treadle.graph.ir import Graph
from treadle.inspect.profile import Profile, predicted, rates_in, shares


@dataclass(frozen=True, slots=True)
class Moment:
    """A step of the plan in time; seconds, from the start of a run.

    Attributes:
        number: of the step.
        label: the ops it runs.
        kernel: its name; "host", "together" and "jump" are none.
        stream: which runs it.
        groups: nodes of the compiled graph that it works for.
        start, seconds: as modelled, one turn of a loop.
        measured_start, measured: as measured; negative where it was not.
        flops, nbytes: work.
        reads, writes: what it touches, as text.
    """

    number: int
    label: str
    kernel: str
    stream: int
    groups: tuple[int, ...]
    start: float
    seconds: float
    measured_start: float
    measured: float
    flops: int
    nbytes: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArenaUse:
    """Bytes of the arena from the step that writes them to the last one that reads them.

    `node` of the compiled graph has them written; -1 for copies.
    """

    offset: int
    nbytes: int
    first: int
    last: int
    node: int
    label: str


def moments(plan: Plan, profile: Profile | None = None) -> tuple[Moment, ...]:
    """Every step with its times."""
    starts = _modelled_starts(plan)
    measured = {} if profile is None else {s.number: s for s in profile.steps}
    found = []
    for i, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        label, kernel = step_names(plan, step)
        time = measured.get(i)
        found.append(
            Moment(
                i,
                _jump_text(step) if isinstance(step, Jump) else label,
                kernel or "jump",
                plan.streams.of[i] if plan.streams.of else 0,
                groups_of(step, facts),
                starts[i],
                predicted(step, facts, rates_in(profile)),
                -1.0 if time is None else time.start,
                -1.0 if time is None else time.duration,
                int(facts.flops),
                int(facts.nbytes),
                tuple(_span_text(plan, s) for s in facts.reads),
                tuple(_span_text(plan, s) for s in facts.writes),
            )
        )
    return tuple(found)


def _jump_text(step: Jump) -> str:
    condition = "" if step.unless is None else " unless true"
    return f"go to step {step.target}{condition}"


def groups_of(step: Step, facts: Facts) -> tuple[int, ...]:
    """Nodes of the compiled graph that a step works for."""
    members = facts.members if isinstance(step, Together) else (facts,)
    return tuple(dict.fromkeys(f.node for f in members))


def _modelled_starts(plan: Plan) -> list[float]:
    """Return the start of each step, if every block starts as soon as what it waits for is done."""
    seconds = list(map(predicted, plan.steps, plan.facts))
    blocks = [
        replace(block, seconds=sum(seconds[block.first : block.last + 1]))
        for block in blocks_of(plan, RATES["cpu"])
    ]
    of = [plan.streams.of[b.first] for b in blocks] if plan.streams.of else [0] * len(blocks)
    times = simulate(blocks, dependencies(blocks), of)
    starts = [0.0] * len(plan.steps)
    for block, (start, _) in zip(blocks, times, strict=True):
        now = start
        for i in range(block.first, block.last + 1):
            starts[i] = now
            now += seconds[i]
    return starts


def _span_text(plan: Plan, span: Span) -> str:
    if span.base < plan.inputs:
        name = f"input {span.base}"
    elif span.base < plan.inputs + plan.outputs:
        name = f"output {span.base - plan.inputs}"
    else:
        name = ("constants", "kept", "arena")[span.base - plan.inputs - plan.outputs]
    return (
        f"{name} +{span.offset}: {span.nbytes} bytes"
        if span.offset
        else (f"{name}: {span.nbytes} bytes")
    )


# -- flow between steps ------------------------------------------------------------------------


class _Pieces:
    """Memory cut wherever a step's reads or writes begin or end."""

    def __init__(self, spans: Iterable[Span]) -> None:
        edges: dict[int, set[int]] = {}
        for span in spans:
            edges.setdefault(span.base, set()).update(span.ends)
        self._cuts = {base: sorted(places) for base, places in edges.items()}

    def of(self, span: Span) -> list[tuple[int, int]]:
        """Base and number of the pieces that a span consists of."""
        cuts = self._cuts[span.base]
        first, last = (bisect_left(cuts, at) for at in (span.offset, span.offset + span.nbytes))
        return [(span.base, piece) for piece in range(first, last)]


def flows(plan: Plan) -> list[tuple[int, int]]:
    """Pairs of steps of which the second reads bytes that the first wrote last.

    Room in which the launches of one node work counts as read by those that follow.
    """
    memory = _Pieces(s for f in plan.facts for s in (*f.reads, *f.writes))
    found: dict[tuple[int, int], None] = {}
    writer: dict[tuple[int, int], int] = {}
    for i, facts in enumerate(plan.facts):
        for piece in (p for span in facts.reads for p in memory.of(span)):
            if piece in writer and writer[piece] != i:
                found[writer[piece], i] = None
        for piece in (p for span in facts.writes for p in memory.of(span)):
            last = writer.get(piece, i)
            if last != i and facts.node >= 0 and plan.facts[last].node == facts.node:
                found[last, i] = None
            writer[piece] = i
    return list(found)


# -- memory ------------------------------------------------------------------------------------


def held_bytes(plan: Plan, graph: Graph) -> tuple[ArenaUse, ...]:
    """Return the contents of the arena with their first and last steps, by who wrote them."""
    arena = plan.bases - 1
    memory = _Pieces(s for f in plan.facts for s in (*f.reads, *f.writes) if s.base == arena)
    owner: dict[tuple[int, int], _Live] = {}
    found: list[_Live] = []
    for i, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        for piece in (p for s in facts.reads if s.base == arena for p in memory.of(s)):
            if piece in owner:
                owner[piece].last = i
        for part, own, _ in shares(step, facts):
            for span in dict.fromkeys(s for s in own.writes if s.base == arena):
                pieces = memory.of(span)
                before = owner.get(pieces[0])
                if before is not None and (before.span, before.node) == (span, own.node):
                    before.last = i  # Another launch of the same node goes on there.
                    continue
                made = _Live(span, i, i, own.node, _label(plan, part, own, span, graph))
                found.append(made)
                for piece in pieces:
                    if piece in owner and owner[piece].span == span:
                        owner[piece].end_before(i)
                    owner[piece] = made
    return tuple(
        ArenaUse(int(e.span.offset), int(e.span.nbytes), e.first, e.last, e.node, e.label)
        for e in found
    )


@dataclass(slots=True)
class _Live:
    """Bytes that somebody may still read."""

    span: Span
    first: int
    last: int
    node: int
    label: str

    def end_before(self, step: int) -> None:
        """End the life of a value that a step replaces in place where the new value begins."""
        self.last = max(min(self.last, step - 1), self.first)


def _label(plan: Plan, step: Step, facts: Facts, span: Span, graph: Graph) -> str:
    """Return a name for bytes: a result of a node, or room that it works in."""
    if facts.node < 0:
        return "copy"
    node = graph.nodes[facts.node]
    fits = [v for v in node.outputs if v.type.is_static and v.type.nbytes == span.nbytes]
    what = str(fits[0].type) if fits else "workspace"
    name = next((v.name for v in fits if v.name), "")
    return " ".join(part for part in (name, what, "of", step_names(plan, step)[0]) if part)


def live_bytes(held: Sequence[ArenaUse], steps: int) -> list[int]:
    """Bytes of the arena that are in use at each step."""
    change = [0] * (steps + 1)
    for entry in held:
        change[entry.first] += entry.nbytes
        change[entry.last + 1] -= entry.nbytes
    found, now = [], 0
    for step in change[:steps]:
        now += step
        found.append(now)
    return found
