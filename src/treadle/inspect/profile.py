"""Profiles: a program's steps measured one by one, as a table and as a trace for Perfetto.

The file format is the Trace Event Format of Chromium, which https://ui.perfetto.dev and
chrome://tracing open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.program import Host, Jump, Limits, Step, StopStep, Together
from treadle.base.errors import EngineError
from treadle.base.table import duration, lines, shortened
from treadle.engine.cost import RATES, Rates, rates_of
from treadle.engine.execute import DeviceExecutor, Executor
from treadle.engine.plan import Facts, Plan, parts_of, step_names

_LONGEST_LABEL = 44


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All launches of one kernel on behalf of one kind of group.

    Attributes:
        label: the ops it runs.
        kernel: its name; "host" for what runs in Python, "together" for merged launches, which
            have their kernels in `label`.
        calls: launches per run of the program.
        seconds: time of them all per run.
        predicted: the same, as the model has it.
        flops, nbytes: work per run.
        attainable: the least time that the machine's measured limits leave for that work; 0 where
            they are not known.
    """

    label: str
    kernel: str
    calls: int
    seconds: float
    predicted: float
    flops: int
    nbytes: int
    attainable: float = 0.0

    @property
    def gflops(self) -> float:
        """Billions of arithmetic operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        """Billions of bytes per second, at least."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def roofline(self) -> float:
        """Share of the machine's best that is reached; above 1 where caches help."""
        return self.attainable / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step: start and duration within a typical run, and its median over all runs.

    Times are seconds; `start` counts from the start of the run. Steps of a loop have the start
    and duration of their last turn, and the time of all `turns` together. `shares` are the nodes
    it works for, with their parts of the modelled time; `node` is -1 where there are several.
    `attainable` is the least time that the machine's limits leave for it, 0 where they are unknown.
    """

    number: int
    label: str
    kernel: str
    stream: int
    node: int
    start: float
    duration: float
    seconds: float
    turns: int
    predicted: float
    flops: int
    nbytes: int
    shares: tuple[tuple[int, float], ...]
    attainable: float = 0.0


@dataclass(frozen=True)
class Profile:
    """Result of measuring.

    Attributes:
        name: the program's.
        repeats: how many runs.
        seconds: median time of a run, from the start of the first step to the end of the last.
        steps: every launch and host task that ran.
        kernels: the same by kernel, the longest first.
        stages: seconds of the compilation, by stage.
        limits: of the machine, where they are known.
        device: on which it ran; "" for the host.
        clock: what told the time there.
        rates: with which times are predicted.
    """

    name: str
    repeats: int
    seconds: float
    steps: tuple[StepTime, ...]
    kernels: tuple[KernelTime, ...]
    stages: Mapping[str, float]
    limits: Limits | None = None
    device: str = ""
    clock: str = ""
    rates: Rates = RATES["cpu"]

    @property
    def busy(self) -> float:
        """Seconds of a run that are spent in steps, not between them."""
        return sum(k.seconds for k in self.kernels)

    def by_node(self) -> dict[int, float]:
        """Seconds for each node of the compiled graph; copies are under -1.

        The time of a merged launch is divided among its nodes as the model has it.
        """
        found: dict[int, float] = {}
        for step in self.steps:
            for node, share in step.shares:
                found[node] = found.get(node, 0.0) + step.seconds * share
        return found

    def __str__(self) -> str:
        header = ("op", "kernel", "calls", "time", "share", "predicted", *RATES_SHOWN)
        busy = self.busy or 1.0
        rows = [
            (
                shortened(k.label, _LONGEST_LABEL),
                k.kernel,
                str(k.calls),
                duration(k.seconds),
                f"{k.seconds / busy:.1%}",
                duration(k.predicted),
                *rates(k.flops, k.nbytes, k.seconds, k.attainable),
            )
            for k in self.kernels
        ]
        head = (
            f"{self.title}: {duration(self.seconds)} per run, the median of {self.repeats}; "
            f"{duration(self.busy)} in {sum(k.calls for k in self.kernels)} launches"
        )
        clock = (f"times are those of {self.clock}",) if self.clock else ()
        return "\n".join((head, *clock, *limits_text(self.limits), *lines(header, rows)))

    @property
    def title(self) -> str:
        """The program, and where it ran."""
        return f"program {self.name}" + (f" on {self.device}" if self.device else "")

    # -- trace -----------------------------------------------------------------------------

    def trace(self) -> dict[str, Any]:
        """The profile in Chromium's Trace Event Format: times are microseconds."""
        events = [*_names(1, self.title, sorted({s.stream for s in self.steps}))]
        events += [_step_event(step) for step in self.steps]
        if self.stages:
            events += [
                _metadata("process_name", 2, 0, name="compilation"),
                _metadata("thread_name", 2, 0, name="stages"),
            ]
        now = 0.0
        for stage, seconds in self.stages.items():
            events.append(_complete(stage, "compile", 2, 0, now, seconds, {}))
            now += seconds
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"name": self.name}}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")


def measure(
    name: str,
    executor: Executor | DeviceExecutor,
    inputs: Sequence[Any],
    repeats: int,
    stages: Mapping[str, float],
    limits: Limits | None = None,
) -> Profile:
    """Run a program a few times on these inputs, which stay as they are.

    One run more comes first and is not counted: it touches memory for the first time.

    Args:
        name: of the program.
        executor: runs it.
        inputs: as for a run.
        repeats: how many runs are measured.
        stages: seconds of the compilation.
        limits: of the machine, if they are known.

    Raises:
        EngineError: there is nothing to repeat.
    """
    if repeats < 1:
        raise EngineError("profile", f"{repeats} repeats", hint="measure one run at least")
    device, clock, rates = "", "", RATES["cpu"]
    if isinstance(executor, Executor):
        times = executor.profile(inputs, repeats + 1)[1:]
    else:
        clock, times = executor.profile(inputs, repeats + 1)
        device, rates, times = executor.device.name, rates_of(executor.device.info), times[1:]
    ran = times[0, :, 3] > 0
    plan = executor.loaded.plan
    if not ran.any():
        return Profile(name, repeats, 0.0, (), (), dict(stages), limits, device, clock, rates)
    starts = np.where(ran, times[:, :, 0], np.iinfo(np.int64).max).min(axis=1)
    spans = times[:, :, 1].max(axis=1) - starts
    typical = int(np.argsort(spans, kind="stable")[(repeats - 1) // 2])
    median = np.median(times[:, :, 2], axis=0)
    steps = tuple(
        _step_time(
            plan, i, times[typical, i], int(starts[typical]), float(median[i]), rates, limits
        )
        for i in np.flatnonzero(ran).tolist()
    )
    total, kernels = float(np.median(spans)) * 1e-9, _by_kernel(steps)
    return Profile(name, repeats, total, steps, kernels, dict(stages), limits, device, clock, rates)


RATES_SHOWN = ("GFLOP/s", "GB/s", "roofline")


def rates(flops: int, nbytes: int, seconds: float, attainable: float) -> tuple[str, ...]:
    """Cells for arithmetic and memory per second, and for how near to the roofline that is."""
    if not seconds:
        return ("-", "-", "-")
    reached = f"{attainable / seconds:.0%}" if attainable else "-"
    return f"{flops / seconds / 1e9:.1f}", f"{nbytes / seconds / 1e9:.1f}", reached


def limits_text(limits: Limits | None) -> tuple[str, ...]:
    """A line about the machine, if its limits are known."""
    if limits is None:
        return ()
    rates = [f"{limits.flops / 1e9:,.0f} GFLOP/s (float32)"]
    rates += [f"{found / 1e9:,.0f} ({unit})" for unit, found in limits.units]
    bandwidth = limits.bandwidth / 1e9
    return (f"the machine at best: {', '.join(rates)}, {bandwidth:.1f} GB/s",)


def rates_in(profile: Profile | None) -> Rates:
    """Return the rates that predict a program's times; the CPU's as long as it has not run."""
    return RATES["cpu"] if profile is None else profile.rates


def predicted(step: Step, facts: Facts, rates: Rates = RATES["cpu"]) -> float:
    """Modelled seconds of one turn of a step, with the rates of what runs launches."""
    if isinstance(step, Jump | StopStep):
        return 0.0
    return (RATES["reference"] if isinstance(step, Host) else rates).seconds(
        facts.flops, facts.nbytes
    )


def shares(step: Step, facts: Facts) -> tuple[tuple[Step, Facts, float], ...]:
    """A step as the runs that it consists of, with their parts of its modelled time."""
    if not isinstance(step, Together):
        return ((step, facts, 1.0),)
    parts = parts_of(step, facts)
    seconds = [predicted(*part) for part in parts]
    total = sum(seconds)
    return tuple((run, f, s / total) for (run, f), s in zip(parts, seconds, strict=True))


def _step_time(
    plan: Plan,
    i: int,
    row: npt.NDArray[np.int64],
    start: int,
    nanoseconds: float,
    rates: Rates,
    limits: Limits | None,
) -> StepTime:
    step, facts, turns = plan.steps[i], plan.facts[i], int(row[3])
    label, kernel = step_names(plan, step)
    return StepTime(
        number=i,
        label=label,
        kernel=kernel,
        stream=plan.streams.of[i],
        node=facts.node,
        start=(int(row[0]) - start) * 1e-9,
        duration=int(row[1] - row[0]) * 1e-9,
        seconds=nanoseconds * 1e-9,
        turns=turns,
        predicted=predicted(step, facts, rates) * turns,
        flops=facts.flops * turns,
        nbytes=facts.nbytes * turns,
        shares=tuple((f.node, share) for _, f, share in shares(step, facts)),
        attainable=0.0 if limits is None else facts.least(limits) * turns,
    )


def _by_kernel(steps: Sequence[StepTime]) -> tuple[KernelTime, ...]:
    groups: dict[tuple[str, str], list[StepTime]] = {}
    for step in steps:
        groups.setdefault((step.label, step.kernel), []).append(step)
    found = [
        KernelTime(
            label,
            kernel,
            sum(s.turns for s in group),
            sum(s.seconds for s in group),
            sum(s.predicted for s in group),
            sum(s.flops for s in group),
            sum(s.nbytes for s in group),
            sum(s.attainable for s in group),
        )
        for (label, kernel), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda k: -k.seconds))


# -- the trace event format ----------------------------------------------------------------------


def _names(pid: int, process: str, streams: Sequence[int]) -> list[dict[str, Any]]:
    found = [_metadata("process_name", pid, 0, name=process)]
    found += [_metadata("thread_name", pid, s, name=f"stream {s}") for s in streams]
    return [*found, *(_metadata("thread_sort_index", pid, s, sort_index=s) for s in streams)]


def _metadata(kind: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _step_event(step: StepTime) -> dict[str, Any]:
    args = {
        "step": step.number,
        "kernel": step.kernel,
        "turns": step.turns,
        "median_us": step.seconds * 1e6,
        "predicted_us": step.predicted * 1e6,
        "flops": step.flops,
        "bytes": step.nbytes,
    }
    kind = "host" if step.kernel == "host" else "kernel"
    return _complete(step.label, kind, 1, step.stream, step.start, step.duration, args)


def _complete(
    name: str,
    kind: str,
    pid: int,
    tid: int,
    start: float,
    seconds: float,
    args: Mapping[str, object],
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "pid": pid,
        "tid": tid,
        "args": dict(args),
    }
