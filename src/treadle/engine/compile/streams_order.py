"""Order of a plan's steps: which must wait for which, told from the memory they touch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treadle.backends.program import Host, Jump, Step, StopStep
from treadle.engine.cost import Rates
from treadle.engine.plan import Facts, Plan, Span

_EVERYTHING = Span(-1, 0, 1)
"""Memory that all steps read and a return to the caller writes, so that it has them in order."""


@dataclass(frozen=True, slots=True)
class StreamBlock:
    """Steps `first` to `last` that one stream runs without a break.

    One step as a rule; loops and branches are blocks as a whole.
    """

    first: int
    last: int
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    seconds: float


def blocks_of(plan: Plan, rates: Rates) -> tuple[StreamBlock, ...]:
    """The blocks of a plan in order, with modelled times; a loop is taken to turn once."""
    blocks = []
    for first, last in ranges(plan.steps):
        steps, facts = plan.steps[first : last + 1], plan.facts[first : last + 1]
        hosted = any(isinstance(step, Host) for step in steps)
        blocks.append(
            StreamBlock(
                first,
                last,
                _spans(f.reads for f in facts) + ((_EVERYTHING,) if not hosted else ()),
                _spans(f.writes for f in facts) + ((_EVERYTHING,) if hosted else ()),
                sum(map(seconds_of, steps, facts, [rates] * len(steps))),
            )
        )
    return tuple(blocks)


def ranges(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """First and last step of every block: no jump leads into or out of one, save to its ends."""
    reach = list(range(len(steps)))
    """For each step the last one that belongs to its block as far as is known."""
    for i, step in enumerate(steps):
        if isinstance(step, Jump):
            first, last = (i, step.target - 1) if step.target > i else (step.target, i)
            reach[first] = max(reach[first], last)
    found = []
    first, last = 0, -1
    for i in range(len(steps)):
        last = max(last, reach[i])
        if last == i:
            found.append((first, last))
            first = i + 1
    return found


def _spans(groups: Iterable[tuple[Span, ...]]) -> tuple[Span, ...]:
    return tuple(dict.fromkeys(span for spans in groups for span in spans))


def seconds_of(step: Step, facts: Facts, rates: Rates) -> float:
    """Modelled seconds of one turn of a step."""
    return 0.0 if isinstance(step, Jump | StopStep) else rates.seconds(facts.flops, facts.nbytes)


def dependencies(blocks: Sequence[StreamBlock]) -> list[list[int]]:
    """Return for every block those it has to wait for, without any that others wait for already.

    A read follows the last write of each byte; a write follows the last write and all reads since.
    """
    return _reduced(_conflicts(blocks))


def _conflicts(blocks: Sequence[StreamBlock]) -> list[set[int]]:
    """Return the blocks that each has to wait for, by the pieces that spans cut memory into."""
    edges: dict[int, set[int]] = {}
    for block in blocks:
        for span in (*block.reads, *block.writes):
            edges.setdefault(span.base, set()).update(span.ends)
    cuts = {base: sorted(places) for base, places in edges.items()}
    writer = {base: [-1] * len(places) for base, places in cuts.items()}
    readers: dict[int, list[list[int]]] = {b: [[] for _ in places] for b, places in cuts.items()}
    before: list[set[int]] = []

    def pieces(span: Span) -> range:
        at = cuts[span.base]
        return range(bisect_left(at, span.offset), bisect_left(at, span.offset + span.nbytes))

    for i, block in enumerate(blocks):
        found: set[int] = set()
        for span in block.reads:
            for piece in pieces(span):
                found.add(writer[span.base][piece])
                readers[span.base][piece].append(i)
        for span in block.writes:
            for piece in pieces(span):
                found.add(writer[span.base][piece])
                found.update(readers[span.base][piece])
                writer[span.base][piece] = i
                readers[span.base][piece] = []
        before.append(found - {i, -1})
    return before


def _reduced(before: Sequence[set[int]]) -> list[list[int]]:
    """The transitive reduction; what is above each block is kept as a bit set."""
    above: list[int] = []
    kept: list[list[int]] = []
    for found in before:
        bits, mine = 0, []
        for p in sorted(found, reverse=True):  # Nothing earlier lies below a later one.
            if not bits >> p & 1:
                mine.append(p)
                bits |= above[p] | 1 << p
        above.append(bits)
        kept.append(mine)
    return kept
