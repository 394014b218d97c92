"""Programs of a model as it leaves the process: one or many, in phases where data decide extents.

A phase is compiled as a model of its own, for all extents that the phases before it may find
(`deploy.ranges`); the runtime calls one after the other and reads off what they have found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from treadle.backends.program import Program
from treadle.base.errors import CompileError
from treadle.base.symbol import Dim, Relation, bounds, evaluate, less_equal, symbol, symbols_of
from treadle.deploy.joining import with_joins
from treadle.deploy.ranges import Maker, Opened, Wanted, opened, pattern_of
from treadle.engine.package.extents import Range, Ranges
from treadle.engine.package.models import Model
from treadle.engine.package.native_part import Gear
from treadle.engine.package.native_run import extents
from treadle.engine.package.phases import MOST_PHASES, NativePhase, NativePhases
from treadle.engine.phases import finds_extents, renumbered
from treadle.engine.phases.parting import Phase, phases_of
from treadle.graph.analysis import has_effect
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, lone_symbol, symbols_in
from treadle.ops.transfer import Identity

_FINE = 2
"""So many extents of a phase have cells as those of a compiled function; found ones of more have
coarse ones.
"""


@dataclass(frozen=True, slots=True)
class Compiled:
    """All programs of a model.

    Attributes:
        gears, programs: one for each.
        ranges: the extents that they are for together; None where there is one for one set of
            shapes.
        phases: to which they belong; None where each is all of the model.
    """

    gears: tuple[Gear, ...]
    programs: tuple[Program, ...]
    ranges: Ranges | None = None
    phases: NativePhases | None = None


def compiled(make: Maker, model: Model, ranges: Mapping[str, Wanted] | None) -> Compiled:
    """The programs of a model at its own shapes, or for ranges of extents.

    Raises:
        CompileError: an op needs Python, there are no programs for many extents, or data decide
            extents in a branch or loop.
        ShapeError: the model does not take the ranges.
    """
    if ranges is None:
        for name, value in zip(model.inputs, model.graph.inputs, strict=True):
            if not value.type.is_static:
                problem = f"{name} has symbolic extents"
                raise CompileError(make.what, problem, saw=str(value.type), hint="give ranges")
    given = Opened(model.graph, {}) if ranges is None else opened(model, ranges)
    if finds_extents(given.graph):
        return _Cut(make, given, model.graph).compiled()
    if ranges is None:
        gear, program = make.fixed(model.graph)
        return Compiled((gear,), (program,))
    made = make.programs(given)
    gears = tuple(m.gear for m in made)
    declared = given.declared(model.graph, gears)
    return Compiled(gears, tuple(m.program for m in made), declared)


class _Cut:
    """Cuts a graph into phases, and has programs made for each.

    Args:
        make: makes them.
        given: the graph, and the ranges of extents that callers choose.
        own: the graph at the model's own shapes.
    """

    def __init__(self, make: Maker, given: Opened, own: Graph) -> None:
        self._make, self._own, self._ranges = make, own, given.ranges
        self._graph, self._joined = with_joins(renumbered(_with_own_outputs(given.graph)))
        self._spans: dict[str, Range] = dict(given.ranges)
        """Ranges of the extents that are known."""
        self._places: dict[Value, int] = {v: i for i, v in enumerate(self._graph.inputs)}
        self._count = len(self._places)
        self._within: list[Relation] = []
        """Found extents are not larger than what they are found in."""
        self._gears: list[Gear] = []
        self._programs: list[Program] = []
        self._phases: list[NativePhase] = []

    def compiled(self) -> Compiled:
        """All programs."""
        graph = self._graph
        never = (False,) * len(graph.inputs)
        cut = phases_of(graph, never, apart=True, joined=self._joined)
        if len(cut) > MOST_PHASES:
            raise CompileError(self._make.what, f"there are {len(cut)} phases, which is too many")
        for number, phase in enumerate(cut):
            self._refuse(phase)
            self._add(number, phase)
        dtypes = (
            tuple(v.type.dtype for v in graph.inputs),
            tuple(v.type.dtype for v in graph.outputs),
        )
        results = tuple(self._places[v] for v in graph.outputs)
        phases = NativePhases(tuple(self._phases), results, dtypes)
        return Compiled(tuple(self._gears), tuple(self._programs), self._declared(), phases)

    def _refuse(self, phase: Phase) -> None:
        for node in phase.deciding:
            if node not in phase.bounded:
                raise CompileError(
                    self._make.what,
                    f"data decide extents in {node.op.name}, which is compiled as it runs",
                    hint="keep it in a file without machine code, which compiles where it runs; or "
                    "end the model before this op",
                )

    def _add(self, number: int, phase: Phase) -> None:
        graph, guards = phase.graph, [*phase.graph.guards, *phase.guards]
        if not number:
            known = self._ranges.keys()
            guards += [g for g in self._graph.guards if symbols_of(g.expr) <= known]
        if not (graph.outputs or guards or any(has_effect(n.op) for n in graph.nodes)):
            return
        names = {s.name for v in phase.inputs for s in symbols_in(v.type)}
        carried = self._carrying({s.name for g in guards for s in symbols_in(g.expr)} - names)
        names |= {s.name for v in carried for s in symbols_in(v.type)}
        guards += [g for g in self._within if symbols_of(g.expr) <= names]
        guards = [g for g in dict.fromkeys(guards) if g.truth() is None]
        more = (Value(v.type, None, len(graph.inputs) + i, "") for i, v in enumerate(carried))
        ends = (*graph.inputs, *more)
        own = Graph(graph.name, ends, graph.nodes, graph.outputs, tuple(guards))
        spans = {name: span for name, span in self._spans.items() if name in names}
        coarse = frozenset(spans if len(spans) > _FINE else ()) - self._ranges.keys()
        made = self._make.programs(Opened(own, spans, coarse))
        inputs = tuple(self._places[v] for v in (*phase.inputs, *carried))
        self._places.update((v, self._count + i) for i, v in enumerate(phase.outputs))
        self._count += len(phase.outputs)
        found = {}
        for node in phase.bounded:
            self._places[node.output] = self._count
            self._count += 2
            name, rows = self._found(node)
            found[name] = (0, self._most(rows))
        self._spans.update(found)
        each = tuple(tuple(m.spans[name] for name in spans) for m in made)
        self._phases.append(NativePhase(inputs, len(phase.outputs), found, tuple(spans), each))
        self._gears += [m.gear for m in made]
        self._programs += [m.program for m in made]

    def _carrying(self, names: Iterable[str]) -> list[Value]:
        """Values that have extents, by name, for a phase that only asks about these."""
        sources = {
            lone.name: v for v in self._places for d in v.type.shape if (lone := lone_symbol(d))
        }
        return list(dict.fromkeys(sources[name] for name in sorted(names)))

    def _found(self, node: Node) -> tuple[str, Dim]:
        """The extent that a node finds, and how many rows there are for it."""
        lone = lone_symbol(node.output.type.shape[0])
        bounded = node.op.bounded(tuple([v.type for v in node.inputs]))
        if lone is None or bounded is None:
            raise CompileError(self._make.what, f"{node.op.name} finds no extent of rows")
        rows = bounded.infer(*[v.type for v in node.inputs])[0].shape[0]
        self._within.append(less_equal(node.output.type.shape[0], rows))
        return lone.name, rows

    def _most(self, extent: Dim) -> int:
        """The largest value of an extent within the ranges."""
        within: dict[str, Dim] = {n: symbol(n, *span) for n, span in self._spans.items()}
        high = bounds(evaluate(extent, within))[1]
        if not isfinite(high):
            raise CompileError(
                self._make.what,
                f"there is no largest value of {extent}",
                hint="give the inputs it depends on ranges",
            )
        return int(high)

    def _declared(self) -> Ranges:
        inputs, outputs = (
            tuple(pattern_of(v.type.shape) for v in ends)
            for ends in (self._graph.inputs, self._graph.outputs)
        )
        taken = [extents(v.type) for v in self._own.inputs]
        given = [tuple(self._most(d) for d in v.type.shape) for v in self._graph.outputs]
        needs = [g for g in self._graph.guards if symbols_of(g.expr) <= self._ranges.keys()]
        at = tuple(taken), tuple(given)
        return Ranges(dict(self._ranges), inputs, outputs, at, tuple(map(str, needs)))


def _with_own_outputs(graph: Graph) -> Graph:
    """The graph with outputs that are results of its nodes, each of them once."""
    builder = GraphBuilder(graph.name)
    inside = {v: builder.input(v.type, v.name).value for v in graph.inputs}
    for node in graph.nodes:
        made = builder.copy(node, tuple([inside[v] for v in node.inputs]))
        inside.update(zip(node.outputs, made.outputs, strict=True))
    builder.guard(graph.guards)
    seen = set(graph.inputs)
    for value in graph.outputs:
        given = inside[value]
        if value in seen:
            given = builder.add(Identity(), (given,), (), None, "").output
        seen.add(value)
        builder.output(builder.operand(given))
    return builder.build()


__all__ = ["Compiled", "compiled"]
