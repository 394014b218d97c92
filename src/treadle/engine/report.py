"""The report that all stages write: what they did and decided, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treadle.base.observer import recording

if TYPE_CHECKING:
    from treadle.graph.passes import PassReport


@dataclass(frozen=True, slots=True)
class Decision:
    """Something a stage decided about a node or group: `subject`, `outcome` and why."""

    stage: str
    subject: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReportTable:
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
    tables: list[ReportTable] = field(default_factory=list)
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
        self.tables.append(ReportTable(title, tuple(header), texts))

    def __str__(self) -> str:
        parts = [f"program {self.name}" if self.name else "program"]
        if self.seconds:
            rows = tuple((name, f"{s * 1e3:.1f}") for name, s in self.seconds.items())
            parts.append(str(ReportTable("stages", ("stage", "ms"), rows)))
        if self.passes:
            parts.append(
                str(ReportTable("passes", _PASS_HEADER, tuple(map(_pass_row, self.passes))))
            )
        if self.decisions:
            rows4 = tuple((d.stage, d.subject, d.outcome, d.reason) for d in self.decisions)
            parts.append(str(ReportTable("decisions", ("stage", "what", "outcome", "why"), rows4)))
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


# -- partitions -------------------------------------------------------------------------------

_LISTED = 4


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that one engine runs without a break.

    Attributes:
        engine: its name.
        nodes: how many there are, before any of them are fused.
        reads, writes: bytes that come from outside, and that others need; a guess where extents
            are symbolic.
    """

    engine: str
    nodes: int
    reads: int
    writes: int


def describe_partitions(parts: Sequence[Partition]) -> str:
    """Partitions in a few words: how many, whose, and of what size."""
    if not parts:
        return "-"
    if len(parts) <= _LISTED:
        sizes = [f"{p.engine} {_nodes(p.nodes)}" for p in parts]
        return f"{len(parts)}: {', '.join(sizes)}"
    engines = dict.fromkeys(p.engine for p in parts)
    mine = {e: [p.nodes for p in parts if p.engine == e] for e in engines}
    sizes = [f"{len(nodes)} of {e} with {_nodes(sum(nodes))}" for e, nodes in mine.items()]
    return f"{len(parts)}: {', '.join(sizes)}"


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
