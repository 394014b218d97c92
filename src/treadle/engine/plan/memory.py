"""Memory of a plan by step: operands, results, scratch, what is overwritten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treadle.backends.program import Jump, StopStep
from treadle.base.table import lines, shortened
from treadle.engine.plan import ALIGNMENT, Facts, Plan, Span, aligned, parts_of, step_names


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of a step, or of one run of a merged launch, in bytes.

    Attributes:
        step: its number in the plan.
        run: its number in a merged launch; -1 for a step that is no such launch.
        op: what runs.
        reads, writes: operands, packed weights included; results.
        scratch: what it needs besides, while it runs.
        takes: all places that it touches, in whole lines of 64; what is written over an operand
            is counted once.
        alignment: what the offsets of all these places are multiples of, at most 64; less where it
            looks at a part of a value.
        over: places of operands that results are written over.
        could: places of operands that the kernel allows to be overwritten, where the plan needs
            them later or has put the result elsewhere.
    """

    step: int
    run: int
    op: str
    reads: int
    writes: int
    scratch: int
    takes: int
    alignment: int
    over: tuple[str, ...]
    could: tuple[str, ...]


def steps_memory(plan: Plan) -> tuple[StepMemory, ...]:
    """Every step's memory in the order of the plan; jumps need none."""
    found = []
    for number, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        if isinstance(step, Jump | StopStep):
            continue
        parts = parts_of(step, facts)
        for run, (part, own) in enumerate(parts):
            which = run if len(parts) > 1 else -1
            found.append(_of(plan, number, which, step_names(plan, part)[0], own))
    return tuple(found)


def _of(plan: Plan, number: int, run: int, op: str, facts: Facts) -> StepMemory:
    results = [s for s in facts.writes if s not in facts.scratch]
    places = dict.fromkeys((*facts.reads, *facts.writes))
    over = dict.fromkeys(old for old, new in facts.replaceable if old == new)
    could = dict.fromkeys(old for old, _ in facts.replaceable if old not in over)
    return StepMemory(
        number,
        run,
        op,
        _bytes(facts.reads),
        _bytes(results),
        _bytes(facts.scratch),
        sum(int(aligned(s.nbytes)) for s in places),
        min((_alignment(int(s.offset)) for s in places), default=ALIGNMENT),
        tuple(place_name(plan, s.base, int(s.offset)) for s in over),
        tuple(place_name(plan, s.base, int(s.offset)) for s in could),
    )


def _bytes(spans: Iterable[Span]) -> int:
    return sum(int(s.nbytes) for s in spans)


def _alignment(offset: int) -> int:
    return min(offset & -offset, ALIGNMENT) if offset else ALIGNMENT


def place_name(plan: Plan, base: int, offset: int) -> str:
    """A place as texts write it: the memory, and the bytes before it."""
    if base < plan.inputs:
        name = f"in{base}"
    elif base < plan.inputs + plan.outputs:
        name = f"out{base - plan.inputs}"
    else:
        name = ("constants", "kept", "arena")[base - plan.inputs - plan.outputs]
    return f"{name}+{offset}" if offset else name


def totals(rows: Sequence[StepMemory]) -> dict[str, int]:
    """Sums over all steps; of scratch, the most that one step needs."""
    scratch: dict[int, int] = {}
    for row in rows:
        scratch[row.step] = scratch.get(row.step, 0) + row.scratch
    return {
        "read": sum(row.reads for row in rows),
        "written": sum(row.writes for row in rows),
        "scratch": max(scratch.values(), default=0),
        "in_place": sum(len(row.over) for row in rows),
    }


_HEADER = ("step", "op", "reads", "writes", "scratch", "takes", "align", "in place")
_WIDEST = 26


def memory_table(rows: Sequence[StepMemory]) -> str:
    """A row for every step, and what they come to."""
    if not rows:
        return ""
    cells = [
        (
            str(row.step) if row.run < 0 else f"{row.step}.{row.run}",
            shortened(row.op, _WIDEST),
            *(f"{n:,}" if n else "-" for n in (row.reads, row.writes, row.scratch, row.takes)),
            str(row.alignment),
            shortened(_in_place(row), _WIDEST),
        )
        for row in rows
    ]
    sums = totals(rows)
    last = (
        f"  in all {sums['read']:,} read, {sums['written']:,} written; "
        f"scratch at most {sums['scratch']:,}; {sums['in_place']} written over operands"
    )
    return "\n".join(("memory by step, in bytes", *lines(_HEADER, cells), last))


def _in_place(row: StepMemory) -> str:
    told = ([f"over {' '.join(row.over)}"] if row.over else []) + (
        [f"could be over {' '.join(row.could)}"] if row.could else []
    )
    return ", ".join(told)
