"""Plans as text, a line per step, and the kernels that they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from treadle.backends.program import (
    Address,
    Compiler,
    Host,
    Launch,
    Run,
    Step,
    Stop,
    Together,
    runs_of,
)
from treadle.engine.plan import Facts, Plan, Span

_FORMS: tuple[tuple[Literal["kernel", "llvm", "assembly"], str], ...] = (
    ("kernel", "txt"),
    ("llvm", "ll"),
    ("assembly", "s"),
)


def plan_text(plan: Plan, name: str = "program") -> str:
    """The plan as text.

    A step shows its stream, what it runs on which items (each run of a merged launch on a line of
    its own), the arguments, the events around it, and the bytes it touches: `arena+256:1024` are
    1024 bytes from offset 256 on. Offsets of the arena are multiples of 64.
    """
    memory = plan.memory
    head = (
        f"plan {name}: {len(plan.steps)} steps, {plan.inputs} inputs, {plan.outputs} outputs",
        f"arena {memory.peak} bytes (bound {memory.bound}, without reuse {memory.naive}), "
        f"constants {plan.constants.nbytes}, kept {plan.kept}",
        *(f"output {o} replaces input {i}" for o, i in plan.updates),
    )
    prelude = [f"p{i}: {_action(plan, s)}" for i, s in enumerate(plan.prelude)]
    return "\n".join((*head, *prelude, *_steps(plan))) + "\n"


def _steps(plan: Plan) -> Iterator[str]:
    waits: dict[int, list[str]] = {}
    records: dict[int, list[str]] = {}
    for e in plan.streams.events:
        waits.setdefault(e.target, []).append(f"wait e{e.number}")
        records.setdefault(e.source, []).append(f"record e{e.number}")
    for i, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        events = [*waits.get(i, ()), *records.get(i, ())]
        what = [_action(plan, step), *(f"[{text}]" for text in events), *_touched(plan, facts)]
        yield f"{i}: s{plan.streams.of[i]} {'  '.join(what)}"


def _touched(plan: Plan, facts: Facts) -> Iterator[str]:
    for word, spans in (("reads", facts.reads), ("writes", facts.writes)):
        if spans:
            yield f"{word} {' '.join(_span(plan, s) for s in spans)}"
    if facts.flops:
        yield f"flops {facts.flops}"


def _action(plan: Plan, step: Step) -> str:
    if isinstance(step, Run):
        arguments = ", ".join(_argument(plan, a) for a in step.arguments)
        how = "serial" if step.serial else f"items {step.items}"
        return f"{step.kernel.name}({arguments})  {how}  # {step.label}"
    if isinstance(step, Together):
        how = "together, serial" if step.serial else "together"
        return "\n    ".join((how, *(_action(plan, run) for run in step.runs))) + "\n   "
    if isinstance(step, Stop):
        return "stop: an index is out of range"
    if isinstance(step, Host):
        return f"host {plan.host[step.task].name}"
    unless = "" if step.unless is None else f" unless {_argument(plan, step.unless)}"
    return f"go to {step.target}{unless}"


def _argument(plan: Plan, argument: Address | int) -> str:
    if isinstance(argument, int):
        return str(argument)
    return _place(plan, argument.base, argument.offset)


def _span(plan: Plan, span: Span) -> str:
    return f"{_place(plan, span.base, span.offset)}:{span.nbytes}"


def _place(plan: Plan, base: int, offset: int) -> str:
    if base < plan.inputs:
        name = f"in{base}"
    elif base < plan.inputs + plan.outputs:
        name = f"out{base - plan.inputs}"
    else:
        name = ("constants", "kept", "arena")[base - plan.inputs - plan.outputs]
    return f"{name}+{offset}" if offset else name


def kernel_texts(plan: Plan, compiler: Compiler) -> Iterator[tuple[str, str]]:
    """File names and contents: each kernel in its own language, in LLVM's, and as assembly."""
    runs = runs_of((*plan.prelude, *plan.steps))
    for number, run in enumerate({run.kernel: run for run in runs}.values()):
        for form, ending in _FORMS:
            text = compiler.inspect(Launch(run.kernel, ()), form)
            yield f"{number:03}.{run.kernel.name}.{ending}", text
