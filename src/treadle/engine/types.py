"""Records that stages hand to one another, and the report that all of them write."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treadle.base.observer import recording
from treadle.engine.partitions import Partition
from treadle.graph.ir import Graph, Node, Value

if TYPE_CHECKING:
    from treadle.graph.passes import PassReport

# -- what partition gives ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that one engine runs without a break.

    Attributes:
        engine: its name.
        level: segments of a level do not depend on one another.
        nodes: in program order.
        inputs: values that come from outside, in order of use; the inputs of `graph`.
        outputs: values that are needed outside; the outputs of `graph`.
        graph: the nodes as a program of their own.
    """

    engine: str
    level: int
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    graph: Graph

    def __repr__(self) -> str:
        return f"<Segment {self.engine}.{self.level}: {len(self.nodes)} nodes>"


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A program with every node in one segment; segments are in an order in which they can run.

    `graph` has the border ops (`End`, `Placeholder`) where a value changes its memory space;
    `fixed` are those of its values that segment engines may make for themselves.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    fixed: Collection[Value] = ()

    def engines(self) -> Mapping[Node, str]:
        """The engine of every node."""
        return {n: s.engine for s in self.segments for n in s.nodes}


# -- the report --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """Something a stage decided about a node or group: `subject`, `outcome` and why."""

    stage: str
    subject: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title, as later stages report kernels, memory and times."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return "\n".join((self.title, *_aligned((self.header, *self.rows))))


@dataclass(slots=True)
class CompileReport:
    """Collects what the stages did; printing it is the answer to "what became of my program?".

    Attributes:
        name: the program's name.
        seconds: time by stage.
        passes: what each pass did, with its stage, in order.
        decisions: engines, refusals, groups.
        tables: whatever else a stage shows: kernels, memory, times.
        partitions: of the program, in an order in which they can run.
        cuts: what is reduced together, as agreed with other ranks: reductions, as text, and their
            numbers by bucket.
    """

    name: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    passes: list[tuple[str, PassReport]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    partitions: tuple[Partition, ...] = ()
    cuts: list[tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time the block takes to the stage's."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.seconds[name] = self.seconds.get(name, 0.0) + end - start
            if (observer := recording()) is not None:
                observer.stage(self.name, name, start, end)

    def decide(self, stage: str, subject: str, outcome: str, reason: str = "") -> None:
        """Note a decision."""
        self.decisions.append(Decision(stage, subject, outcome, reason))

    def table(self, title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table; cells are turned to text."""
        texts = tuple(tuple(str(cell) for cell in row) for row in rows)
        self.tables.append(Table(title, tuple(header), texts))

    def __str__(self) -> str:
        parts = [f"program {self.name}" if self.name else "program"]
        if self.seconds:
            rows = tuple((name, f"{s * 1e3:.1f}") for name, s in self.seconds.items())
            parts.append(str(Table("stages", ("stage", "ms"), rows)))
        if self.passes:
            parts.append(str(Table("passes", _PASS_HEADER, tuple(map(_pass_row, self.passes)))))
        if self.decisions:
            rows4 = tuple((d.stage, d.subject, d.outcome, d.reason) for d in self.decisions)
            parts.append(str(Table("decisions", ("stage", "what", "outcome", "why"), rows4)))
        return "\n\n".join((*parts, *map(str, self.tables)))


_PASS_HEADER = ("stage", "pass", "nodes", "ms", "fired")


def _pass_row(entry: tuple[str, PassReport]) -> tuple[str, ...]:
    stage, report = entry
    nodes = f"{report.before} -> {report.after}"
    fired = "; ".join(f"{name} ({count})" for name, count in report.hits)
    return stage, report.name, nodes, f"{report.seconds * 1e3:.1f}", fired


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns padded to equal width, indented by two."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  " + "  ".join(cells).rstrip()
