"""Claims of segment engines, cut back to what can run in one piece."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from treadle.backends.api import Engine
from treadle.backends.segments import ClaimingEngine
from treadle.engine.report import CompileReport
from treadle.graph.analysis import producers
from treadle.graph.ir import Graph, Node
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow

Unit = tuple[Node, ...]
"""Nodes that one engine gets as a whole or not at all, in program order."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims by engine.

    Attributes:
        nodes: by the name of an engine that claims, the nodes it may have.
        units: the indivisible sets of more than one node, which do not overlap.
    """

    nodes: Mapping[str, Set[Node]] = field(default_factory=dict)
    units: Sequence[Unit] = ()

    def order(self, graph: Graph) -> list[Unit]:
        """All nodes as units, each after the units it needs."""
        if not self.units:
            return [(n,) for n in graph.nodes]
        unit_of = {n: u for u in self.units for n in u}
        return _ordered(graph, unit_of)


def claims_of(graph: Graph, engines: Sequence[Engine], report: CompileReport) -> Claims:
    """Ask every engine that claims. One whose answer fails gets nothing; the report says why."""
    nodes: dict[str, Set[Node]] = {}
    units: list[Unit] = []
    for engine in engines:
        if not isinstance(engine, ClaimingEngine):
            continue
        try:
            sets = [frozenset(s) for s in engine.claim(graph)]
        except Exception as error:  # a plug-in's defect must not take working engines away
            sets = []
            why = f"claim() failed: {type(error).__name__}: {error}"
            report.decide("partition", f"claims of {engine.name}", "none", why)
        nodes[engine.name] = _take(graph, engine.name, sets, units, report)
    return Claims(nodes, units)


def _take(
    graph: Graph,
    name: str,
    sets: Sequence[Collection[Node]],
    units: list[Unit],
    report: CompileReport,
) -> Set[Node]:
    """The nodes of an engine's claims, whose larger sets are added to the units."""
    taken: set[Node] = set()
    members = {n for u in units for n in u}
    for claimed in sets:
        if len(claimed) == 1:
            taken.update(claimed)
            continue
        unit = convex(graph, frozenset(claimed) - members, units)
        if len(unit) < len(claimed):
            why = "what depends on the others only by way of foreign nodes is left out"
            report.decide(
                "partition", f"claim of {name}, {len(claimed)} nodes", str(len(unit)), why
            )
        taken.update(unit)
        if len(unit) > 1:
            units.append(unit)
            members.update(unit)
    return taken


def convex(graph: Graph, claimed: Set[Node], units: Sequence[Unit] = ()) -> Unit:
    """The most of a claim, in program order, that can run without a break in between.

    A node is left out if it depends on one that was kept by way of a node that was not. Earlier
    units count as one node each: no circle may lead through them either.
    """
    kept: list[Node] = []
    inside: set[Node] = set()
    tainted: set[Node] = set()
    for unit in Claims(units=units).order(graph):
        before = {p for n in unit for p in producers(n) if not isinstance(p.op, Constant)}
        if not isinstance(unit[0].op, ControlFlow) and unit[0] in claimed and not before & tainted:
            kept += unit
            inside.update(unit)
        elif before & (inside | tainted):
            tainted.update(unit)
    return tuple(kept)


def _ordered(graph: Graph, unit_of: Mapping[Node, Unit]) -> list[Unit]:
    """Units in an order in which they can run, as near as may be to that of the program."""
    found: list[Unit] = []
    done: set[Node] = set()

    def visit(start: Unit) -> None:
        waiting = [start]
        while waiting:
            unit = waiting[-1]
            if unit[0] in done:
                waiting.pop()
                continue
            inside = set(unit)
            needed = (p for n in unit for p in producers(n) if p not in done and p not in inside)
            first = next(needed, None)
            if first is None:
                done.update(unit)
                found.append(unit)
                waiting.pop()
            else:
                waiting.append(unit_of.get(first, (first,)))

    for node in graph.nodes:
        visit(unit_of.get(node, (node,)))
    return found
