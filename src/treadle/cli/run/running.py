"""Steps of `treadle run`: call a program, time it, compare it, look inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import EngineError
from treadle.cli.arguments import Precision
from treadle.cli.console import progress
from treadle.cli.models.comparison import Comparison, with_case, with_file
from treadle.cli.models.inputs import read_inputs
from treadle.cli.models.measure import Figures, first_call, timed, together
from treadle.cli.models.opening import parsed_shapes, random_inputs
from treadle.cli.models.programs import Change, Opened, opened
from treadle.cli.models.settings import Tuning
from treadle.cli.run.findings import Findings
from treadle.cli.run.trial import Setting, Trial, threads_now, using_threads
from treadle.cli.run.values import write_values
from treadle.inspect import Inspected
from treadle.inspect.profile import Profile

if TYPE_CHECKING:
    from treadle.deploy.preprocessing import Preprocessing

Types: TypeAlias = tuple[Precision | None, Sequence[str] | None, Sequence[str] | None, Path | None]
Given: TypeAlias = tuple[
    int | None,
    Sequence[str] | None,
    Path | None,
    Sequence[str] | None,
    int | None,
    Path | None,
]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Questions to answer, and how; the fields are options of the command."""

    iterations: int
    warmup: int
    parallel: int
    trying: bool
    profile: bool
    trace: Path | None
    expect: Path | None
    tolerance: float
    check: bool
    dump: Path | None
    save: Path | None = None
    threads: int = 0
    native: bool | None = None
    recompile: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """Sources of inputs; the fields are options of the command."""

    given: Sequence[str]
    shape: Sequence[str]
    preprocess: Path | None
    layout: str
    channels: str
    scale: float
    mean: str
    std: str


def carry_out(
    source: Path, inputs: Inputs, types: Types, tuning: Given, asked: RunOptions
) -> Findings:
    """Open a model, run it on its inputs, and find out what is asked.

    Args:
        source: file of the model.
        inputs: where they come from.
        types: as in `Change`: precision, keep, allow, calibration.
        tuning: as in `Tuning`.
        asked: what is to be found out.

    Raises:
        TreadleError: a file cannot be read, or the model not be run.
    """
    change = Change(parsed_shapes(inputs.shape), (), inputs.preprocess, *types)
    steps = _steps(inputs)
    with using_threads(asked.threads), progress(f"opening {source.name}") as now:
        program = opened(
            source,
            change,
            Tuning(*tuning),
            allow_native=asked.native,
            recompile=asked.recompile,
        )
        model = program.model
        arrays = {**random_inputs(model), **read_inputs(model, inputs.given, steps)}
        found = find(program, [arrays[n] for n in model.inputs], asked, now.tell)
    if asked.save is not None:
        named: dict[str, Any] = dict(found.outputs)
        np.savez(asked.save, allow_pickle=False, **named)
    return found


def _steps(inputs: Inputs) -> Preprocessing | None:
    """Return the steps on images that options ask for; None where they ask for none."""
    given = inputs.layout, inputs.channels, inputs.scale, inputs.mean, inputs.std
    if given == ("nchw", "", 1.0, "", ""):
        return None
    from treadle.cli.models.images import image_steps

    return image_steps(*given)


def find(
    program: Opened, arrays: Sequence[Array], asked: RunOptions, tell: Callable[[str], None]
) -> Findings:
    """Run a program on these inputs in all the ways that were asked for.

    Args:
        program: what runs.
        arrays: its inputs, in order.
        asked: the ways.
        tell: is given what is being done, "" while something is measured.

    Raises:
        TreadleError: it cannot be compiled or run, or a file of results cannot be read.
    """
    found = Findings(program)
    tell("")
    results, first = first_call(program.run, arrays)
    found.outputs = dict(zip(program.model.outputs, results, strict=True))
    found.figures = Figures(first, timed(program.run, arrays, asked.warmup, asked.iterations))
    if asked.parallel:
        found.throughput = together(program.run, arrays, asked.parallel, asked.iterations)
    if asked.trying:
        plain = Setting(program.options, threads_now())
        found.tried = Trial(program.model.graph, arrays, plain).run(tell)
    if asked.profile or asked.trace is not None:
        tell("profiling")
        found.profile = _profiled(program, arrays, asked)
    found.compared = _compared(program, found, asked)
    if asked.dump is not None:
        tell("writing values")
        found.dumped = write_values(program.model.graph, arrays, asked.dump)
    return found


def _compared(program: Opened, found: Findings, asked: RunOptions) -> list[Comparison]:
    made: list[Comparison] = []
    if asked.expect is not None:
        made += with_file(found.outputs, asked.expect, asked.tolerance)
    if not asked.check:
        return made
    model = program.model
    if not model.cases:
        raise EngineError(
            "--check", "the file keeps no cases", hint="treadle compile writes one, by --case"
        )
    for case in model.cases:
        results = program.run([case.inputs[name] for name in model.inputs])
        made += with_case(case, model.outputs, results)
    return made


def _profiled(program: Opened, arrays: Sequence[Array], asked: RunOptions) -> Profile:
    """Times by kernel, of the graph compiled here: code in files has no names for its parts."""
    found = Inspected(program.stages()).profile(list(arrays), repeats=asked.iterations)
    if not isinstance(found, Profile):
        raise EngineError("--profile", "the program runs on several devices")
    if asked.trace is not None:
        found.save(asked.trace)
    return found
