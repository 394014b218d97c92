"""Passes: functions from graph to graph, run in order, verified, timed and dumped."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from treadle.base.env import DUMP
from treadle.base.errors import GraphError, TreadleError
from treadle.base.log import get_logger
from treadle.graph.evaluate import substitute_attributes
from treadle.graph.ir import Graph, Node, Value, regions_of, remake
from treadle.graph.printer import to_text
from treadle.graph.rewrite import counting_hits
from treadle.graph.spec import CAPTURED, Spec
from treadle.graph.verify import verify
from treadle.ops.fused import Fused
from treadle.ops.op import Op

DUMP_FOLDER = Path("treadle-dump")
"""Where `TREADLE_DUMP` writes, below the working directory."""


class Pass(Protocol):
    """A frozen dataclass: its fields are its options."""

    name: ClassVar[str]

    def __call__(self, graph: Graph, /) -> Graph:
        """The rewritten graph, or the graph itself where nothing changed."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did: time in seconds, nodes before and after, rules that fired by name."""

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
    spec: Spec = CAPTURED,
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
        start, before = time.perf_counter(), len(graph.nodes)
        with counting_hits() as hits:
            graph = _stepped(graph, step)
        seconds = time.perf_counter() - start
        if report is not None:
            fired = tuple(hits.most_common())
            report.append(PassReport(step.name, seconds, before, len(graph.nodes), fired))
        dump(graph, step.name, number)
        if check:
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


def _verify_after(graph: Graph, step: Pass, spec: Spec) -> None:
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
    """Whether `TREADLE_DUMP` lists the stage, or says `all`."""
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


def map_regions(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with `change` applied to the regions of its control-flow ops."""
    if not any([n.op._fields and regions_of(n.op) for n in graph.nodes]):
        return graph
    return replace_ops(graph, lambda op: substituted_regions(op, change))


def substituted_regions(op: Op, change: Callable[[Graph], Graph]) -> Op:
    """The op with `change` applied to its regions; itself where nothing changes.

    What another engine runs stays as that engine was given it.
    """
    if not op._fields or not regions_of(op) or (isinstance(op, Fused) and op.engine):
        return op
    return substitute_attributes(op, lambda v: _within(v, change))


def _within(value: object, change: Callable[[Graph], Graph]) -> object:
    if isinstance(value, Graph):
        return change(value)
    if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
        return tuple(_within(v, change) for v in value)
    return value


def replace_ops(graph: Graph, change: Callable[[Op], Op]) -> Graph:
    """The graph with every op replaced by `change(op)`, which must keep the types."""
    renamed: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        op = change(node.op)
        inputs = tuple([renamed.get(v, v) for v in node.inputs])
        same = op is node.op and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made = node if same else remake(node, op, inputs)
        if made is not node:
            renamed.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    if not renamed:
        return graph
    return graph.with_nodes(nodes, (renamed.get(v, v) for v in graph.outputs))
