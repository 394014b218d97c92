"""Plans as text, a line per step, and the kernels that they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Literal

from treadle.backends.program import (
    Address,
    Compiler,
    Host,
    Launch,
    Run,
    Step,
    StopStep,
    Together,
    runs_of,
)
from treadle.base.symbol import Dim
from treadle.engine.plan import Facts, Plan, Span
from treadle.engine.plan.memory import memory_table, place_name, steps_memory

_WIDTH = 100
_INDENT = "    "
_FORMS: tuple[tuple[Literal["kernel", "llvm", "assembly"], str], ...] = (
    ("kernel", "txt"),
    ("llvm", "ll"),
    ("assembly", "s"),
)


def plan_text(plan: Plan, name: str = "program") -> str:
    """The plan as text.

    A step shows its stream, what it runs on which items (each run of a merged launch on a line of
    its own), the arguments, the events around it, and the bytes it touches: `arena+256:1024` are
    1024 bytes from offset 256 on. Offsets of the arena are multiples of 64. Last comes a table of
    what each needs of memory.
    """
    memory = plan.memory
    head = (
        f"plan {name}: {len(plan.steps)} steps, {plan.inputs} inputs, {plan.outputs} outputs",
        f"arena {memory.peak} bytes (bound {memory.bound}, without reuse {memory.naive}), "
        f"constants {plan.constants.nbytes}, kept {plan.kept}",
        *(f"output {o} replaces input {i}" for o, i in plan.updates),
    )
    prelude = [_laid_out(f"p{i}:", _action(plan, s)) for i, s in enumerate(plan.prelude)]
    table = memory_table(steps_memory(plan))
    steps = "\n".join((*head, *prelude, *_steps(plan)))
    return f"{steps}\n\n{table}\n" if table else f"{steps}\n"


def _steps(plan: Plan) -> Iterator[str]:
    waits: dict[int, list[str]] = {}
    records: dict[int, list[str]] = {}
    for e in plan.streams.events:
        waits.setdefault(e.target, []).append(f"[wait e{e.number}]")
        records.setdefault(e.source, []).append(f"[record e{e.number}]")
    for i, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        rows = _action(plan, step)
        rows[-1] += [*waits.get(i, ()), *records.get(i, ())]
        touched = list(_touched(plan, facts))
        yield _laid_out(f"{i}: s{plan.streams.of[i]}", [*rows, touched] if touched else rows)


def _laid_out(name: str, rows: Sequence[Sequence[str]]) -> str:
    """Rows of parts below one another; a part that does not fit into a line goes to the next."""
    found: list[str] = []
    line = name
    for number, row in enumerate(rows):
        if number:
            found.append(line)
            line = _INDENT[:-2]
        for part in row:
            between = " " if line == name else "  "
            if len(line) + len(between) + len(part) <= _WIDTH:
                line += between + part
                continue
            first = line + between if line == name else _INDENT
            found += [] if line in (name, _INDENT[:-2]) else [line]
            broken = wrap(part, _WIDTH, initial_indent=first, subsequent_indent=_INDENT + "  ")
            found += broken[:-1]
            line = broken[-1]
    return "\n".join((*found, line))


def _touched(plan: Plan, facts: Facts) -> Iterator[str]:
    results = [s for s in facts.writes if s not in facts.scratch]
    named = (("reads", facts.reads), ("writes", results), ("scratch", facts.scratch))
    for word, spans in named:
        if spans:
            yield f"{word} {' '.join(_span(plan, s) for s in spans)}"
    if facts.flops:
        yield f"flops {facts.flops}"


def _action(plan: Plan, step: Step) -> list[list[str]]:
    """Rows of what is said about a step; each run of a merged launch has one."""
    if isinstance(step, Run):
        arguments = ", ".join(_argument(plan, a) for a in step.arguments)
        how = "serial" if step.serial else f"items {step.items}"
        return [[f"{step.kernel.name}({arguments})", how, f"# {step.label}"]]
    if isinstance(step, Together):
        how = "together, serial" if step.serial else "together"
        return [[how], *(row for run in step.runs for row in _action(plan, run))]
    if isinstance(step, StopStep):
        return [["stop: an index is out of range"]]
    if isinstance(step, Host):
        return [[f"host {plan.host[step.task].name}"]]
    unless = "" if step.unless is None else f" unless {_argument(plan, step.unless)}"
    return [[f"go to {step.target}{unless}"]]


def _argument(plan: Plan, argument: Address | Dim) -> str:
    if not isinstance(argument, Address):
        return str(argument)
    return place_name(plan, argument.base, int(argument.offset))


def _span(plan: Plan, span: Span) -> str:
    return f"{place_name(plan, span.base, int(span.offset))}:{span.nbytes}"


def kernel_texts(plan: Plan, compiler: Compiler) -> Iterator[tuple[str, str]]:
    """File names and contents: each kernel in its own language, in LLVM's, and as assembly."""
    runs = runs_of((*plan.prelude, *plan.steps))
    for number, run in enumerate({run.kernel: run for run in runs}.values()):
        for form, ending in _FORMS:
            text = compiler.inspect(Launch(run.kernel, ()), form)
            yield f"{number:03}.{run.kernel.name}.{ending}", text
