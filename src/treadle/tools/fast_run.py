"""Measuring the kernels of a model: `--fast-run` and `--full-run`."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.backends.program import MeasuringCompiler, Tuned
from treadle.engine.homes import find_compiler
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.ir import Graph

SECONDS = {"fast": 0.1, "full": 1.0}
"""For each kernel that is measured."""


def measure(graph: Graph, options: Options, seconds: float) -> Iterator[Tuned]:
    """Measure the alternatives of a graph's kernels, and record the best for this machine.

    Programs compiled afterwards use them.
    """
    compiler = find_compiler(options)
    if isinstance(compiler, MeasuringCompiler):
        with compiler.watch() as watched:
            Stages(graph, options=options).compile()
        yield from compiler.tune(watched, seconds)
