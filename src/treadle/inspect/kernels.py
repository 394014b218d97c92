"""The kernels of a plan: what they take, and their texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from treadle.backends.program import Compiler, Jump, Launch, Run, StopStep, runs_of
from treadle.engine.plan import Plan
from treadle.inspect.profile import Profile, predicted, rates_in, shares

MOST_TEXT, MOST_KERNEL_TEXT = 600_000, 60_000
"""Characters of kernels that a page holds, and of one of them."""


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel of the program.

    Attributes:
        name: of the kernel.
        labels: the ops that it runs.
        launches: per run of the program; 0 for what runs once, before the first run.
        seconds: predicted, of all launches of a run.
        measured: the same as measured; negative where it was not.
        flops, nbytes: work of a run.
        steps: that launch it.
        text: in the language of kernels; "" where it would be too long.
        length: lines of the text.
    """

    name: str
    labels: tuple[str, ...]
    launches: int
    seconds: float
    measured: float
    flops: int
    nbytes: int
    steps: tuple[int, ...]
    text: str
    length: int


@dataclass(slots=True)
class _Use:
    """Use of one kernel in a run."""

    labels: dict[str, None]
    steps: dict[int, None]
    launches: int = 0
    seconds: float = 0.0
    measured: float = 0.0
    flops: int = 0
    nbytes: int = 0


def kernels(plan: Plan, compiler: Compiler, profile: Profile | None) -> tuple[KernelText, ...]:
    """Every kernel of a plan, the one that takes longest first."""
    uses: dict[Any, _Use] = {}
    times = {} if profile is None else {s.number: s.seconds for s in profile.steps}
    for i, (step, facts) in enumerate(zip(plan.steps, plan.facts, strict=True)):
        for part, own, share in () if isinstance(step, Jump | StopStep) else shares(step, facts):
            if isinstance(part, Run):
                use = uses.setdefault(part.kernel, _Use({}, {}))
                use.labels[part.label] = use.steps[i] = None
                use.launches += 1
                use.seconds += predicted(step, facts, rates_in(profile)) * share
                use.measured += times.get(i, 0.0) * share
                use.flops += own.flops
                use.nbytes += own.nbytes
    for run in runs_of(plan.prelude):
        uses.setdefault(run.kernel, _Use({}, {})).labels[run.label] = None
    measured = profile is not None

    def cost(use: _Use) -> float:
        return use.measured if measured else use.seconds

    ranked = sorted(uses.items(), key=lambda pair: -cost(pair[1]))
    return tuple(_texts(compiler, ranked, measured))


def _texts(
    compiler: Compiler, ranked: Iterable[tuple[Any, _Use]], measured: bool
) -> Iterable[KernelText]:
    """Yield kernels with their texts, until the page has enough of them."""
    left = MOST_TEXT
    for kernel, use in ranked:
        text = compiler.inspect(Launch(kernel, ()), "kernel")
        fits = len(text) <= min(left, MOST_KERNEL_TEXT)
        left -= len(text) if fits else 0
        yield KernelText(
            str(kernel.name),
            tuple(use.labels),
            use.launches,
            use.seconds,
            use.measured if measured else -1.0,
            use.flops,
            use.nbytes,
            tuple(use.steps),
            text if fits else "",
            text.count("\n") + 1,
        )
