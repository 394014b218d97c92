"""Measuring the kernels of a model: `--fast-run` and `--full-run`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from treadle.backends.measuring import MEASURING
from treadle.backends.program import MeasuringCompiler, Tuned
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.phases import stages_of
from treadle.graph.ir import Graph
from treadle.lite.packed import Choices

SECONDS = {"fast": 0.1, "full": 1.0}
"""For each kernel that is measured."""


def measure(graph: Graph, options: Options, seconds: float) -> Iterator[Tuned]:
    """Measure the alternatives of a graph's kernels, and record the best for this machine.

    Programs compiled afterwards use them.
    """
    stages = stages_of(graph, options=options)
    yield from MEASURING.measured(find_compiler(options), stages.compile, seconds)


def carried(found: Iterable[Tuned], measured: Graph, run: Graph, options: Options) -> Choices:
    """Return measurements of a graph as choices for the same graph on another batch size.

    Their questions are the same in the same order; answers that are none for the other size, and
    all of them where the engine makes something else of it, are left out.
    """
    best = {one.name: one.choice for one in found}
    before, after = (_questions(graph, options) for graph in (measured, run))
    if len(before) != len(after):
        return {}
    choices: dict[str, Mapping[str, int]] = {}
    for (asked, _), (name, offers) in zip(before, after, strict=True):
        choice = best.get(asked)
        if choice is not None and choice in offers:
            choices[name] = choice
    return choices


def _questions(graph: Graph, options: Options) -> list[tuple[str, tuple[Mapping[str, int], ...]]]:
    """Return the questions that the compilation of a graph asks, and the answers that there are."""
    compiler = find_compiler(options)
    if not isinstance(compiler, MeasuringCompiler):
        return []
    with compiler.watch() as watched:
        stages_of(graph, options=options).compile()
    return [question for work in watched for question in work.asked.items()]
