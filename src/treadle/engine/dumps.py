"""Dumps of stages, as the files that `TREADLE_DUMP` asks for."""

from __future__ import annotations

from typing import Any

from treadle.backends.program import Compiler
from treadle.base.env import DUMP
from treadle.engine.artifacts import Captured, Optimized, Partitioned, Planned, Prepared
from treadle.engine.plan import Plan
from treadle.engine.plan.text import kernel_texts, plan_text
from treadle.graph.passes import dump, is_dumped, write_dump

_STAGES = {
    Captured: "capture",
    Prepared: "prepare",
    Partitioned: "partition",
    Optimized: "optimize",
}


def dump_artifact(artifact: Any, compiler: Compiler) -> None:
    """Write an artifact, if its stage is to be written; one without a text has no file.

    Args:
        artifact: of a stage.
        compiler: who lowered the program.
    """
    if isinstance(artifact, Planned):
        _dump_plan(artifact.plan, artifact.captured.graph.name, compiler)
    elif type(artifact) in _STAGES:
        dump(artifact.graph, _STAGES[type(artifact)])


def _dump_plan(plan: Plan, name: str, compiler: Compiler) -> None:
    if is_dumped("compile"):
        write_dump(name, "00.compile.txt", plan_text(plan, name))
    # Assembly takes its time, so that `all` does not stand for it.
    if "kernels" in DUMP.get().split(","):
        for file, text in kernel_texts(plan, compiler):
            write_dump(name, f"kernels.{file}", text)
