"""Programs of a model as it leaves the process: one or many, in phases where data decide extents.

A phase is compiled as a model of its own, for all extents that the phases before it may find
(`deploy.ranges`); the runtime calls one after the other and reads off what they have found.
Branches and loops in which data decide extents stand between phases; each of their regions is cut
as a model is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import cast

from treadle.backends.program import Program
from treadle.base.errors import CompileError
from treadle.base.extent import Symbol
from treadle.base.symbol import Dim, Relation, bounds, evaluate, less_equal, symbol, symbols_of
from treadle.deploy.joining import with_joins
from treadle.deploy.ranges import Maker, Opened, Wanted, opened, pattern_of
from treadle.engine.package.extents import Pattern, Range, Ranges
from treadle.engine.package.models import Model
from treadle.engine.package.native_part import Gear
from treadle.engine.package.native_run import extents
from treadle.engine.package.phases import (
    MOST_DEEP,
    MOST_PHASES,
    NativeBranch,
    NativeCount,
    NativeLoop,
    NativePhase,
    NativePhases,
    NativeRegion,
    NativeStep,
    Read,
)
from treadle.engine.phases import finds_extents, renumbered
from treadle.engine.phases.parting import Phase, finds_inside, phases_of, standalone
from treadle.graph.analysis import changing_in, found_by, has_effect
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, lone_symbol, symbols_in
from treadle.ops.control import Cond, FindingWhile, FindingWhileGradient, Scan, While
from treadle.ops.gather import Counted
from treadle.ops.op import Op
from treadle.ops.transfer import Identity

MOST_GROWN = 1 << 16
"""The largest extent of what grows in a loop, unless it begins with a larger one."""
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
        CompileError: an op needs Python, or there are no programs for many extents.
        ShapeError: the model does not take the ranges.
    """
    if ranges is None:
        for name, value in zip(model.inputs, model.graph.inputs, strict=True):
            if not value.type.is_static:
                problem = f"{name} has symbolic extents"
                raise CompileError(make.what, problem, saw=str(value.type), hint="give ranges")
    given = Opened(model.graph, {}) if ranges is None else opened(model, ranges)
    if finds_extents(given.graph):
        return _in_phases(make, given, model.graph)
    if ranges is None:
        gear, program = make.fixed(model.graph)
        return Compiled((gear,), (program,))
    made = make.programs(given)
    gears = tuple(m.gear for m in made)
    declared = given.declared(model.graph, gears)
    return Compiled(gears, tuple(m.program for m in made), declared)


def _in_phases(make: Maker, given: Opened, own: Graph) -> Compiled:
    """All programs of a model in which data decide extents.

    Args:
        make: makes them.
        given: the graph, and the ranges of extents that callers choose.
        own: the graph at the model's own shapes.
    """
    graph, joined = with_joins(renumbered(_with_own_outputs(given.graph)))
    made = _Made(make, frozenset(given.ranges))
    inputs = {v: i for i, v in enumerate(graph.inputs)}
    made.values = len(inputs)
    cut = _Cut(made, graph, joined, _Scope(inputs, dict(given.ranges)))
    each = cut.steps()
    dtypes = (
        tuple(v.type.dtype for v in graph.inputs),
        tuple(v.type.dtype for v in graph.outputs),
    )
    phases = NativePhases(each, cut.places(graph.outputs), dtypes, made.values)
    return Compiled(
        tuple(made.gears), tuple(made.programs), cut.declared(given.ranges, own), phases
    )


class _Made:
    """Programs so far, and numbers of values.

    Args:
        make: makes programs.
        chosen: names of the extents that callers choose.
    """

    def __init__(self, make: Maker, chosen: frozenset[str]) -> None:
        self.make, self.chosen = make, chosen
        self.gears: list[Gear] = []
        self.programs: list[Program] = []
        self.values, self._count = 0, 0

    def numbers(self, count: int) -> range:
        """New values, for a step that has so many."""
        self._count += 1
        if self._count > MOST_PHASES:
            problem = f"there are more than {MOST_PHASES} phases"
            raise CompileError(self.make.what, problem)
        self.values += count
        return range(self.values - count, self.values)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Values and extents that are known at a place.

    Attributes:
        places: numbers of values.
        spans: ranges of extents.
        within: found extents are not larger than what they are found in.
        grown: extents that a loop has changed, and those that are found in such: there may be any
            number, so that they have two cells.
        depth: of branches and loops around it.
    """

    places: dict[Value, int]
    spans: dict[str, Range]
    within: list[Relation] = field(default_factory=list)
    grown: set[str] = field(default_factory=set)
    depth: int = 0

    def inside(self, more: Mapping[str, Range]) -> _Scope:
        """The beginning of a region, where more extents are known, which a loop changes."""
        spans, grown = {**self.spans, **more}, {*self.grown, *more}
        return _Scope(dict(self.places), spans, [*self.within], grown, self.depth + 1)

    def find(self, found: Mapping[str, Range], is_grown: bool) -> None:
        """Enter extents."""
        self.spans.update(found)
        self.grown.update(found if is_grown else ())

    def has_grown(self, extent: Dim) -> bool:
        """Return whether an extent depends on one that a loop has changed."""
        return not symbols_of(extent).isdisjoint(self.grown)


class _Cut:
    """Cuts a graph into phases, and has programs made for each.

    Args:
        made: programs so far.
        graph: the whole, or a region; each of its results is that of a node where it is the whole.
        joined: names of sums of extents.
        known: what is known ahead of it.
    """

    def __init__(self, made: _Made, graph: Graph, joined: Collection[str], known: _Scope) -> None:
        self._made, self._graph, self._joined, self._known = made, graph, joined, known
        self._what = made.make.what
        self._first = frozenset(known.spans)

    def steps(self) -> tuple[NativeStep, ...]:
        """All steps, in order."""
        graph = self._graph
        never = (False,) * len(graph.inputs)
        made: list[NativeStep] = []
        for number, phase in enumerate(phases_of(graph, never, apart=True, joined=self._joined)):
            made += self._phase(number, phase)
            made += [self._controlled(n) for n in phase.deciding if n not in phase.bounded]
        return tuple(made)

    def places(self, values: Iterable[Value]) -> tuple[int, ...]:
        """The numbers of values."""
        return tuple([self._known.places[v] for v in values])

    # -- phases ----------------------------------------------------------------------------------

    def _phase(self, number: int, phase: Phase) -> list[NativeStep]:
        """The phase as a step, if there is something to do in it."""
        graph, guards, known = phase.graph, [*phase.graph.guards, *phase.guards], self._known
        if not number:
            guards += [g for g in self._graph.guards if symbols_of(g.expr) <= self._first]
        is_in_front = not (number or self._made.gears)  # Callers choose its extents.
        has_work = graph.outputs or guards or any(has_effect(n.op) for n in graph.nodes)
        if not (has_work or is_in_front):
            return []
        names = {s.name for v in phase.inputs for s in symbols_in(v.type)}
        carried = self._carrying({s.name for g in guards for s in symbols_in(g.expr)} - names)
        names |= {s.name for v in carried for s in symbols_in(v.type)}
        guards += [g for g in known.within if symbols_of(g.expr) <= names]
        guards = [g for g in dict.fromkeys(guards) if g.truth() is None]
        more = (Value(v.type, None, len(graph.inputs) + i, "") for i, v in enumerate(carried))
        ends = (*graph.inputs, *more)
        own = Graph(graph.name, ends, graph.nodes, graph.outputs, tuple(guards))
        spans = {name: span for name, span in known.spans.items() if name in names}
        inputs = self.places((*phase.inputs, *carried))
        each = self._programs(own, spans)
        numbers = self._made.numbers(len(phase.outputs) + 2 * len(phase.bounded))
        known.places.update(zip(phase.outputs, numbers, strict=False))
        found = {}
        for node, place in zip(phase.bounded, numbers[len(phase.outputs) :: 2], strict=True):
            known.places[node.output] = place
            name, rows = self._found(node)
            found[name] = (0, self._most(rows))
            known.find({name: found[name]}, known.has_grown(rows))
        count, first = len(phase.outputs), numbers.start
        return [NativePhase(inputs, count, found, tuple(spans), each, first)]

    def _programs(self, graph: Graph, spans: Mapping[str, Range]) -> tuple[tuple[Range, ...], ...]:
        """Make the programs of a phase; the ranges of extents of each."""
        coarse = self._known.grown | set(spans if len(spans) > _FINE else ())
        coarse = coarse & spans.keys() - self._made.chosen
        given = Opened(graph, spans, frozenset(coarse))
        made = self._made.make.programs(given)
        self._made.gears += [m.gear for m in made]
        self._made.programs += [m.program for m in made]
        return tuple(tuple(m.spans[name] for name in spans) for m in made)

    def _carrying(self, names: Iterable[str]) -> list[Value]:
        """Values that have extents, by name, for a phase that only asks about these."""
        sources = {
            lone.name: v
            for v in self._known.places
            for d in v.type.shape
            if (lone := lone_symbol(d))
        }
        return list(dict.fromkeys(sources[name] for name in sorted(names)))

    def _found(self, node: Node) -> tuple[str, Dim]:
        """The extent that a node finds, and how many rows there are for it."""
        lone = lone_symbol(node.output.type.shape[0])
        bounded = node.op.bounded(tuple([v.type for v in node.inputs]))
        if lone is None or bounded is None:
            raise CompileError(self._what, f"{node.op.name} finds no extent of rows")
        rows = bounded.infer(*[v.type for v in node.inputs])[0].shape[0]
        self._known.within.append(less_equal(node.output.type.shape[0], rows))
        return lone.name, rows

    def _most(self, extent: Dim) -> int:
        """The largest value of an extent within the ranges."""
        within: dict[str, Dim] = {n: symbol(n, *span) for n, span in self._known.spans.items()}
        high = bounds(evaluate(extent, within))[1]
        if not isfinite(high):
            raise CompileError(
                self._what,
                f"there is no largest value of {extent}",
                hint="give the inputs it depends on ranges",
            )
        return int(high)

    # -- branches and loops ------------------------------------------------------------------------

    def _controlled(self, node: Node) -> NativeStep:
        """A branch or loop in which data decide extents, or a number that is one."""
        op = node.op
        if isinstance(op, Cond):
            return self._branch(node, op)
        if isinstance(op, Counted):
            return self._counted(node)
        if isinstance(op, Scan | While | FindingWhile) and not isinstance(op, FindingWhileGradient):
            return self._loop(node, op)
        raise self._refusal(node, "which is compiled as it runs")

    def _counted(self, node: Node) -> NativeStep:
        (number,), made = self.places(node.inputs), self._made.numbers(1)
        self._known.places[node.output] = made.start
        found = self._read(node, made, dict.fromkeys(_places_in(node), (0, MOST_GROWN)), grown=True)
        return NativeCount(number, found, made.start)

    def _refusal(self, node: Node, why: str) -> CompileError:
        error = CompileError(
            self._what,
            f"data decide extents in {node.op.name}, {why}",
            hint="keep it in a file without machine code, which compiles where it runs; or end the "
            "model before this op",
        )
        error.locate(node.loc)
        return error

    def _branch(self, node: Node, op: Cond) -> NativeStep:
        numbers = self._made.numbers(len(node.outputs))
        regions = (cast(Graph, op.then), cast(Graph, op.otherwise))
        given = self.places(node.inputs[1:])
        made = [self._region(r, node, given, {}) for r in regions]
        (predicate,) = self.places(node.inputs[:1])
        self._known.places.update(zip(node.outputs, numbers, strict=True))
        shapes = [[v.type.shape for v in cut.outputs] for cut, _ in made]
        ranges = {
            name: (0, max(cut._most(s[i][axis]) for (cut, _), s in zip(made, shapes, strict=True)))
            for name, (i, axis) in _places_in(node).items()
        }
        grown = any(
            cut._known.has_grown(s[i][axis])
            for (cut, _), s in zip(made, shapes, strict=True)
            for i, axis in _places_in(node).values()
        )
        found = self._read(node, numbers, ranges, grown)
        return NativeBranch(predicate, made[0][1], made[1][1], found, numbers.start)

    def _loop(self, node: Node, op: Scan | While | FindingWhile) -> NativeStep:
        body, count = cast(Graph, op.body), len(node.inputs)
        carried = op.n_carried if isinstance(op, Scan) else count
        length, backwards = self._turns(node, op)
        kinds = body.output_types[carried:]
        rows = tuple([(t.dtype, self._named(node, t.shape)) for t in kinds])
        inputs, numbers = self.places(node.inputs), self._made.numbers(count + len(rows))
        grown = {s.name: self._grown(node, op, s.name) for s in changing_in(node)}
        ranges = {name: span for name, (span, _) in grown.items()}
        places = tuple([(numbers[i], axis) for _, (i, axis) in grown.values()])
        condition = None
        if isinstance(op, While | FindingWhile):
            region = cast(Graph, op.condition)
            condition = self._region(region, node, numbers[:count], ranges)[1]
        turn = self._region(body, node, numbers[:count], ranges, carried)[1]
        results = (*numbers[:carried], *numbers[count:])
        self._known.places.update(zip(node.outputs, results, strict=True))
        most = max([MOST_GROWN, *(high for _, high in ranges.values())])
        behind = dict.fromkeys(_places_in(node), (0, most))
        found = self._read(node, results, behind, grown=True)
        changing = Read(ranges, places)
        more = length, backwards, rows, found, numbers.start
        return NativeLoop(inputs, carried, changing, condition, turn, *more)

    def _turns(self, node: Node, op: Op) -> tuple[int | str, bool]:
        """The number of turns, if that is known, and whether they begin at the end."""
        if not isinstance(op, Scan):
            return 0, False
        (length,) = self._named(node, (op.length,))
        return length, op.backwards

    def _named(self, node: Node, shape: Sequence[Dim]) -> Pattern:
        """A shape of numbers and known extents."""
        lone = [d if isinstance(d, int) else lone_symbol(d) for d in shape]
        if any(d is None for d in lone):
            raise self._refusal(node, f"with rows or turns of {list(map(str, shape))}")
        return tuple([d if isinstance(d, int) else cast(Symbol, d).name for d in lone])

    def _grown(self, node: Node, op: Op, name: str) -> tuple[Range, tuple[int, int]]:
        """The range of an extent that a loop changes, and which value of the state has it."""
        for i, type_ in enumerate(cast(Graph, cast(FindingWhile, op).body).input_types):
            for axis, d in enumerate(type_.shape):
                if (lone := lone_symbol(d)) is not None and lone.name == name:
                    first = self._most(node.inputs[i].type.shape[axis])
                    return (0, max(MOST_GROWN, first)), (i, axis)
        raise self._refusal(node, f"and no state has {name}")

    def _region(
        self,
        region: Graph,
        node: Node,
        given: Sequence[int],
        more: Mapping[str, Range],
        carried: int = 0,
    ) -> tuple[_Cut, NativeRegion]:
        """A region of a node, whose inputs have these numbers.

        Args:
            region, node, given: the same.
            more: extents that are known in it alone.
            carried: how many of its results are a loop's next state.
        """
        known = self._known.inside(more)
        if known.depth > MOST_DEEP:
            raise self._refusal(node, f"which is in more than {MOST_DEEP} others")
        whole, beside = standalone(region, node, self._graph, self._known.places)
        graph = _with_own_outputs(whole, carried, is_state=True)
        known.places.update(zip(graph.inputs, (*given, *self.places(beside)), strict=True))
        cut = _Cut(self._made, graph, (), known)
        each = cut.steps()
        return cut, NativeRegion(each, cut.places(graph.outputs))

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Results of the graph."""
        return self._graph.outputs

    def _read(
        self, node: Node, numbers: Sequence[int], ranges: Mapping[str, Range], grown: bool
    ) -> Read:
        """Extents of a node's results, which are known behind it."""
        self._known.find(ranges, grown)
        at = _places_in(node)
        return Read(ranges, tuple([(numbers[at[n][0]], at[n][1]) for n in ranges]))

    def declared(self, chosen: Mapping[str, Range], at_own: Graph) -> Ranges:
        """The ranges as a file has them."""
        inputs, outputs = (
            tuple(pattern_of(v.type.shape) for v in ends)
            for ends in (self._graph.inputs, self._graph.outputs)
        )
        taken = [extents(v.type) for v in at_own.inputs]
        given = [tuple(self._most(d) for d in v.type.shape) for v in self._graph.outputs]
        needs = [g for g in self._graph.guards if symbols_of(g.expr) <= chosen.keys()]
        at = tuple(taken), tuple(given)
        return Ranges(dict(chosen), inputs, outputs, at, tuple(map(str, needs)))


def _places_in(node: Node) -> dict[str, tuple[int, int]]:
    """The result and its axis that have each extent that a node finds."""
    found = {s.name for s in found_by(node)}
    places: dict[str, tuple[int, int]] = {}
    for i, value in enumerate(node.outputs):
        for axis, d in enumerate(value.type.shape):
            if (lone := lone_symbol(d)) is not None and lone.name in found:
                places.setdefault(lone.name, (i, axis))
    return places


def _with_own_outputs(graph: Graph, count: int | None = None, *, is_state: bool = False) -> Graph:
    """The graph with outputs that are results of a phase, each of them once.

    Args:
        graph: the same.
        count: of its first outputs, if not of all.
        is_state: an output that is the input of its number may stay.
    """
    builder = GraphBuilder(graph.name)
    inside = {v: builder.input(v.type, v.name).value for v in graph.inputs}
    for node in graph.nodes:
        made = builder.copy(node, tuple([inside[v] for v in node.inputs]))
        inside.update(zip(node.outputs, made.outputs, strict=True))
    builder.guard(graph.guards)
    own = len(graph.outputs) if count is None else count
    seen = set(graph.inputs)
    for i, value in enumerate(graph.outputs):
        given = inside[value]
        stays = is_state and i < len(graph.inputs) and value is graph.inputs[i]
        if i < own and not stays and (value in seen or _is_between(value.producer)):
            given = builder.add(Identity(), (given,), (), None, "").output
        seen.add(value)
        builder.output(builder.operand(given))
    return builder.build()


def _is_between(node: Node | None) -> bool:
    """Return whether a node is a step between phases."""
    if node is None or not (found_by(node) or finds_inside(node)):
        return False
    return node.op.bounded(tuple([v.type for v in node.inputs])) is None


__all__ = ["Compiled", "compiled"]
