"""Passes: functions from graph to graph, run in order, verified, timed and dumped."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from treadle.base.env import DUMP
from treadle.base.errors import GraphError, TreadleError
from treadle.base.log import get_logger
from treadle.graph.ir import Graph
from treadle.graph.printer import to_text
from treadle.graph.rewrite import counting_hits
from treadle.graph.spec import CAPTURED, StageRules
from treadle.graph.verify import verify

DUMP_FOLDER = Path("treadle-dump")
"""Folder of dumps that `TREADLE_DUMP` asks for, below the working directory."""


class Pass(Protocol):
    """A frozen dataclass: its fields are its options."""

    name: ClassVar[str]

    def __call__(self, graph: Graph, /) -> Graph:
        """The rewritten graph, or the graph itself where nothing changed."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class PassReport:
    """Report of one pass: time in seconds, nodes before and after, rules that fired by name."""

    name: str
    seconds: float
    before: int
    after: int
    hits: tuple[tuple[str, int], ...] = ()


PASSES: dict[str, type[Pass]] = {}
C = TypeVar("C", bound=type[Pass])


def register(cls: C) -> C:
    """Class decorator: makes a pass known by name to `parse_passes`."""
    if cls.name in PASSES and PASSES[cls.name].__qualname__ != cls.__qualname__:
        raise GraphError("passes", f"two passes are named {cls.name}")
    PASSES[cls.name] = cls
    return cls


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    *,
    check: bool = True,
    spec: StageRules = CAPTURED,
    report: list[PassReport] | None = None,
) -> Graph:
    """Run passes in order.

    Args:
        graph: what to rewrite.
        passes: what to run.
        check: verify before the first and after each pass.
        spec: what has to hold in between.
        report: receives one entry per pass.

    Raises:
        GraphError: the graph was broken before; or a pass broke it, and is named.
    """
    if check:
        verify(graph, spec)
    for number, step in enumerate(passes):
        start, before = time.perf_counter(), graph
        with counting_hits() as hits:
            graph = _stepped(graph, step)
        seconds = time.perf_counter() - start
        if report is not None:
            fired, sizes = tuple(hits.most_common()), (len(before.nodes), len(graph.nodes))
            report.append(PassReport(step.name, seconds, *sizes, fired))
        dump(graph, step.name, number)
        if check and graph is not before:
            _verify_after(graph, step, spec)
    return graph


def _stepped(graph: Graph, step: Pass) -> Graph:
    try:
        return step(graph)
    except TreadleError:
        raise
    except Exception as problem:
        raise GraphError(
            f"pass {pass_text(step)}",
            f"failed: {type(problem).__name__}: {problem}",
            hint=f"this is a defect of the pass; Options(disabled=({step.name!r},)) leaves it out",
        ) from problem


def _verify_after(graph: Graph, step: Pass, spec: StageRules) -> None:
    try:
        verify(graph, spec)
    except GraphError as problem:
        raise GraphError(
            f"pass {pass_text(step)}",
            f"broke the graph: {problem.problem}",
            saw=problem.saw,
            hint="this is a defect of the pass; TREADLE_DUMP shows the graph before it",
            at=problem.at,
        ) from problem


def dump(graph: Graph, stage: str, number: int = 0) -> None:
    """Write the graph as text if `TREADLE_DUMP` lists the stage or pass, or says `all`."""
    if is_dumped(stage):
        write_dump(graph.name, f"{number:02}.{stage}.txt", to_text(graph, locs=True))


def is_dumped(stage: str) -> bool:
    """Return whether `TREADLE_DUMP` lists the stage, or says `all`."""
    return bool({w.strip() for w in DUMP.get().split(",")} & {stage, "all"})


def write_dump(program: str, file: str, text: str) -> None:
    """Write a text about a program below `DUMP_FOLDER`."""
    DUMP_FOLDER.mkdir(exist_ok=True)
    name = re.sub(r"[^\w.-]+", "_", program) or "graph"
    path = DUMP_FOLDER / f"{name}.{file}"
    path.write_text(text, encoding="utf-8")
    get_logger("graph").info("wrote %s", path)


def pass_text(step: Pass) -> str:
    """A pass as text, `simplify{fuel=50}`; options at their defaults are left out."""
    given = [
        f"{f.name}={getattr(step, f.name)!r}"
        for f in options_of(type(step))
        if getattr(step, f.name) != f.default
    ]
    return f"{step.name}{{{', '.join(given)}}}" if given else step.name


def options_of(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The options of a pass: the fields of its dataclass."""
    return dataclasses.fields(cls)


# -- what passes share -------------------------------------------------------------------------
