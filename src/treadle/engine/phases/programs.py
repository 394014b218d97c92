"""Programs of phases, made for the extents that turn up, and what runs them one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from treadle.backends.program import Compiler
from treadle.base.errors import EngineError, TreadleError
from treadle.base.guards import recording_guards
from treadle.base.symbol import evaluate
from treadle.base.table import lines
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode, resolve
from treadle.engine.devices.placement import find_compiler
from treadle.engine.eager.dispatch import eager_type, run
from treadle.engine.execute import Runner
from treadle.engine.execute.counters import Counters
from treadle.engine.options import Options
from treadle.engine.phases.parting import (
    finds_extents,
    finds_inside,
    phases_of,
    renumbered,
    standalone,
)
from treadle.engine.phases.phase_programs import PhasePrograms
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.spread import ValuePlaces
from treadle.engine.targets import EngineTarget, StagedProgram
from treadle.graph.analysis import changing_in, found_by
from treadle.graph.evaluate import bind, op_at, specialize
from treadle.graph.ir import Graph, Node, Value, lone_symbol, regions_of
from treadle.ops.control import (
    Cond,
    ControlFlow,
    FindingWhile,
    FindingWhileGradient,
    Region,
    Scan,
    While,
)
from treadle.runtime.array import to_device, to_host


class _Inside:
    """A branch, or a region of a loop.

    Args:
        phases: its programs.
        carried: values of the graph around that it is given behind its inputs.
        changing: extents that are others in each turn.
    """

    def __init__(
        self, phases: Phases, carried: tuple[Value, ...], changing: Collection[str]
    ) -> None:
        self.phases = phases
        self._carried = carried
        places = {
            lone.name: (i, axis)
            for i, type_ in enumerate(phases.graph.input_types)
            for axis, d in enumerate(type_.shape)
            if (lone := lone_symbol(d)) is not None and lone.name in changing
        }
        self._places = tuple([(name, *place) for name, place in places.items()])

    def begin(
        self, inputs: Sequence[Any], known: Mapping[Value, Any], extents: Mapping[str, int]
    ) -> tuple[dict[str, int], list[Any]]:
        """Return all extents as they are in the first turn, and the values it is given besides."""
        graph, fixed = self.phases.graph, dict(extents)
        more = [known[v] for v in self._carried]
        for type_, array in zip(graph.input_types, [*inputs, *more], strict=True):
            bind(graph, type_, array, fixed)
        return fixed, more

    def at(self, inputs: Sequence[Any], fixed: Mapping[str, int]) -> dict[str, int]:
        """Return all extents as they are in a turn, by symbol; `fixed` are those of another."""
        made = dict(fixed)
        for name, i, axis in self._places:
            made[name] = inputs[i].shape[axis]
        return made


class Phases:
    """The programs of a graph some of whose extents data decide.

    Args:
        graph: the whole; it may have other symbols, too.
        options: of the compilation.
        interface: which inputs are frozen; none is updated in place.
        home: where it runs; None for the host.
        named: found extents have their names already.
        changing: extents of inputs that a loop changes.
    """

    def __init__(
        self,
        graph: Graph,
        options: Options,
        interface: Interface,
        home: CompNode | None = None,
        *,
        named: bool = False,
        changing: Collection[str] = (),
    ) -> None:
        self.graph = graph if named else renumbered(graph)
        self.options = options
        self.home = home
        self.programs = [
            PhasePrograms(p, options, home)
            for p in phases_of(
                self.graph,
                interface.frozen,
                inside=home is None or home.on_host,
                changing=changing,
            )
        ]
        self.iterations = 0
        self.found: Mapping[str, int] = {}
        """All extents of the last run, by symbol."""
        self._counting = threading.Lock()
        self._where = home or resolve("cpux")
        self._device = None if self._where.on_host else self._where
        frozen = {v for v, yes in zip(self.graph.inputs, interface.frozen, strict=False) if yes}
        self._regions: dict[int, _Inside] = {}
        deciding = [n for p in self.programs for n in p.phase.deciding]
        known = (*self.graph.inputs, *(v for n in deciding for v in n.outputs))
        for node in deciding:
            fixed = Interface(_fixed(node, frozen))
            own = [s.name for s in changing_in(node)]
            for region in regions_of(node.op):
                inside, carried = standalone(region, node, self.graph, known)
                made = Phases(inside, options, fixed, home, named=True, changing=own)
                self._regions[id(region)] = _Inside(made, carried, own)
        self._direct = self._places()

    @property
    def counters(self) -> Counters:
        """Counters of all runs at any extents; each program that a run has run is one phase."""
        made = self._run
        return replace(made, iterations=self.iterations, phases=made.iterations)

    @property
    def _run(self) -> Counters:
        """Counters of the programs, those of branches and loops included."""
        own = sum((p.counters for p in self.programs), Counters())
        return sum((r.phases._run for r in self._regions.values()), own)

    @property
    def latest(self) -> tuple[Stages, ...]:
        """The programs that ran last, for those who look."""
        own = [s for p in self.programs if (s := p.latest) is not None]
        return (*own, *(s for r in self._regions.values() for s in r.phases.latest))

    def close(self) -> None:
        """Give memory back that is kept between runs, whatever extents they had."""
        for programs in self.programs:
            programs.close()
        for inside in self._regions.values():
            inside.phases.close()

    def at(self, extents: Mapping[str, int]) -> PhasedRunner:
        """The runner of the whole at extents of its inputs, by symbol."""
        return PhasedRunner(self, extents)

    def stages(self, graph: Graph, interface: Interface, extents: Mapping[str, int]) -> Stages:
        """The whole at extents of its inputs, for those who look; `graph` is what it is there."""
        target = InPhases(self.options, self.home, self, extents)
        return Stages(graph, interface, self.options, self.home, target=target)

    def run(
        self, inputs: Sequence[Any], extents: dict[str, int], version: object = None
    ) -> list[Any]:
        """Run all phases, and decide extents between them."""
        made = self._at_once(inputs, extents, version)
        if made is None:
            made = self._in_turn(inputs, extents, version)
        with self._counting:
            self.iterations += 1
            self.found = extents
        return made

    def _places(self) -> tuple[list[int], list[int]] | None:
        """Return where a program of one phase, behind which nothing is decided, has its ends.

        Returns:
            For each input of the one phase the whole's input, for each result of the whole the
            phase's output, or ~i for the whole's input i. None where there is more than a phase.
        """
        first = self.programs[0]
        phase, inputs = first.phase, self.graph.inputs
        if len(self.programs) > 1 or first.is_empty or phase.deciding:
            return None
        places = {v: ~i for i, v in enumerate(inputs)} | {v: i for i, v in enumerate(phase.outputs)}
        return [~places[v] for v in phase.inputs], [places[v] for v in self.graph.outputs]

    def _at_once(
        self, inputs: Sequence[Any], extents: Mapping[str, int], version: object
    ) -> list[Any] | None:
        """Run the only phase; None where there are others."""
        if self._direct is None:
            return None
        taken, left = self._direct
        programs = self.programs[0]
        varying = len(taken) - programs.phase.frozen
        made = programs.at(extents).run([inputs[i] for i in taken], varying, version)
        return [made[i] if i >= 0 else inputs[~i] for i in left]

    def _in_turn(
        self, inputs: Sequence[Any], extents: dict[str, int], version: object
    ) -> list[Any]:
        """Run one phase after the other."""
        known: dict[Value, Any] = dict(zip(self.graph.inputs, inputs, strict=True))
        for programs in self.programs:
            phase = programs.phase
            if programs.is_empty:
                programs.check(extents)
            else:
                given = [known[v] for v in phase.inputs]
                varying = len(given) - phase.frozen
                made = programs.at(extents).run(given, varying, version)
                count = len(phase.outputs)
                known.update(zip(phase.outputs, made[:count], strict=True))
                for i, node in enumerate(phase.bounded):
                    rows, found = made[count + 2 * i : count + 2 * i + 2]
                    known[node.output] = self._first(node, rows, int(found[0]))
                    bind(self.graph, node.output.type, known[node.output], extents)
            for node in phase.deciding:
                if isinstance(node.op, ControlFlow):
                    given = [known[v] for v in node.inputs]
                    found = self._controlled(node, given, known, extents, version)
                    known.update(zip(node.outputs, found, strict=True))
                    for value in node.outputs:
                        bind(self.graph, value.type, known[value], extents)
                elif node not in phase.bounded:
                    self._decide(node, known, extents)
        return [known[v] for v in self.graph.outputs]

    def _controlled(
        self,
        node: Node,
        given: list[Any],
        known: Mapping[Value, Any],
        extents: Mapping[str, int],
        version: object,
    ) -> list[Any]:
        """A branch or loop in which data decide extents: its regions run in phases."""

        bound: dict[int, tuple[dict[str, int], list[Any]]] = {}

        def ran(region: Region, inputs: Sequence[Any]) -> list[Any]:
            inside, started = self._regions[id(region)], bound.get(id(region))
            if started is None:  # What no turn changes is looked at in the first.
                bound[id(region)] = started = inside.begin(inputs, known, extents)
            fixed, more = started
            return inside.phases.run([*inputs, *more], inside.at(inputs, fixed), version)

        op, made = node.op, given
        if isinstance(op, Cond):
            made = ran(op.then if _truth(given[0]) else op.otherwise, given[1:])
        elif isinstance(op, While):
            while _truth(ran(op.condition, made)[0]):
                made = ran(op.body, made)
        elif isinstance(op, FindingWhileGradient):
            made = self._backwards(op, ran, given)
        elif isinstance(op, FindingWhile):
            made = self._collected(op, ran, given, extents)
        else:
            made = self._scanned(cast(Scan, op), ran, given, extents)
        # What goes through belongs to the caller, who may write into it.
        return [_copied(x) if any(x is y for y in given) else x for x in made]

    def _collected(
        self,
        op: FindingWhile,
        ran: Callable[[Region, Sequence[Any]], list[Any]],
        state: list[Any],
        extents: Mapping[str, int],
    ) -> list[Any]:
        count = len(state)
        rows: list[list[Any]] = []
        while _truth(ran(op.condition, state)[0]):
            made = ran(op.body, state)
            state = made[:count]
            rows.append([to_host(x) for x in made[count:]])
        return [*state, *self._stacked(rows, op.body.output_types[count:], extents)]

    def _backwards(
        self,
        op: FindingWhileGradient,
        ran: Callable[[Region, Sequence[Any]], list[Any]],
        given: list[Any],
    ) -> list[Any]:
        count, n = len(op.body.input_types), len(op.carried)
        state, dys, rows = given[:count], given[count : count + n], given[count + n :]
        stacked, turns = [to_host(x) for x in rows], []
        while _truth(ran(op.condition, state)[0]):
            turns.append(state)
            state = ran(op.body, state)[:count]
        while turns:
            i, state = len(turns) - 1, turns.pop()
            dys = ran(op.back, [*state, *dys, *(self._placed(x[i]) for x in stacked)])
        return dys

    def _scanned(
        self,
        op: Scan,
        ran: Callable[[Region, Sequence[Any]], list[Any]],
        given: list[Any],
        extents: Mapping[str, int],
    ) -> list[Any]:
        count = op.n_carried
        state, stacked = given[:count], [to_host(x) for x in given[count:]]
        rows: list[list[Any]] = []
        for i in op.replace(length=evaluate(op.length, extents)).turns:
            made = ran(op.body, [*state, *(self._placed(x[i]) for x in stacked)])
            state = made[:count]
            rows.append([to_host(x) for x in made[count:]])
        rows = rows[::-1] if op.backwards else rows
        return [*state, *self._stacked(rows, op.body.output_types[count:], extents)]

    def _stacked(
        self, rows: list[list[Any]], types: Sequence[TensorType], extents: Mapping[str, int]
    ) -> list[Any]:
        """The rows that the turns of a loop gave, stacked."""
        columns = [
            np.empty((len(rows), *[evaluate(d, extents) for d in t.shape]), t.dtype.numpy)
            for t in types
        ]
        for i, row in enumerate(rows):
            for column, entry in zip(columns, row, strict=True):
                column[i] = entry
        return [self._placed(c) for c in columns]

    def _placed(self, array: Any) -> Any:
        """An array of the host where the program runs."""
        if self._device is not None:
            return to_device(array, self._device.open())
        return np.require(array, requirements="C")

    def _first(self, node: Node, rows: Any, count: int) -> Any:
        """The rows that were found; without the others where the caller keeps them."""
        return rows[:count].copy() if node.output in self.graph.outputs else rows[:count]

    def _decide(self, node: Node, known: dict[Value, Any], extents: dict[str, int]) -> None:
        kinds = tuple([eager_type(v.type.dtype, self._where) for v in node.inputs])
        given = tuple([known[v] for v in node.inputs])
        try:
            found = run(op_at(node.op, extents), kinds, given)[1]
        except TreadleError as error:
            error.locate(node.loc)
            raise
        made = found if isinstance(found, tuple) else (found,)
        for value, array in zip(node.outputs, made, strict=True):
            bind(self.graph, value.type, array, extents)
            known[value] = self._placed(array)


class PhasedRunner:
    """All phases of a program at certain extents of its inputs: a `Runner`.

    Args:
        phases: their programs.
        extents: by symbol.
    """

    def __init__(self, phases: Phases, extents: Mapping[str, int]) -> None:
        self.phases = phases
        self._extents = extents

    @property
    def counters(self) -> Counters:
        """Counters of all runs, at any extents."""
        return self.phases.counters

    @property
    def latest(self) -> tuple[Stages, ...]:
        """The programs that ran last, for those who look."""
        return self.phases.latest

    def run(self, inputs: Sequence[Any], varying: int = 0, version: object = None) -> list[Any]:
        """Run once."""
        return self.phases.run(inputs, dict(self._extents), version)

    def close(self) -> None:
        """Give memory back that is kept between runs, whatever extents they had."""
        self.phases.close()

    def graph(self) -> Graph:
        """Return the graph at the extents of the last run, whatever they were then."""
        with recording_guards():  # Those of the capture stay.
            return specialize(self.phases.graph, self.phases.found)

    def facts(self) -> list[dict[str, Any]]:
        """Return of each phase its ops, programs so far, and what data decide behind it."""
        return [
            {
                "ops": len(p.phase.graph.nodes),
                "programs": p.count,
                "decided": [_decision(n) for n in p.phase.deciding],
            }
            for p in self.phases.programs
        ]

    def table(self) -> str:
        """Return the same as a table."""
        rows = [
            (str(i + 1), str(f["ops"]), str(f["programs"]), ", ".join(f["decided"]) or "-")
            for i, f in enumerate(self.facts())
        ]
        return "\n".join(("phases", *lines(("phase", "ops", "programs", "then decided"), rows)))


def _fixed(node: Node, frozen: set[Value]) -> tuple[bool, ...]:
    """Return which inputs of a node's regions are the same in all runs, and in all turns."""
    op = node.op
    if not isinstance(op, While | FindingWhile | Scan):
        return tuple([v in frozen for v in node.inputs[1:]])
    body = cast(Graph, op.body)
    through = zip(node.inputs, body.inputs, body.outputs, strict=False)
    found = [v in frozen and given is made for v, given, made in through]
    carried = op.n_carried if isinstance(op, Scan) else len(found)
    return tuple([yes and i < carried for i, yes in enumerate(found)])


def _truth(predicate: Any) -> bool:
    return bool(to_host(predicate))


def _copied(x: Any) -> Any:
    """An array of the caller's; those of devices are not written in place."""
    return x.copy() if isinstance(x, np.ndarray) else x


def _decision(node: Node) -> str:
    return f"{node.op.name} -> {', '.join(str(v.type) for v in node.outputs)}"


def decisions_of(graph: Graph) -> list[str]:
    """Return what decides extents in a graph, and of which results."""
    return [_decision(n) for n in graph.nodes if found_by(n) or finds_inside(n)]


class InPhases(EngineTarget):
    """The place of a program that runs in phases; each passes the stages by itself.

    Args:
        options: of the compilation.
        home: where it runs; None for the host.
        phases: its programs, where they serve other extents, too.
        extents: of its inputs then, by symbol.
    """

    def __init__(
        self,
        options: Options,
        home: CompNode | None,
        phases: Phases | None = None,
        extents: Mapping[str, int] | None = None,
    ) -> None:
        self._options = options
        self._home = home
        self._phases = phases
        self._extents = extents or {}

    def compiler(self) -> Compiler:
        """Return the compiler of the phases."""
        return find_compiler(self._options, self._home.kind if self._home else "cpu")

    def why_no_plan(self) -> str:
        """Return why there is no plan: each phase has its own."""
        return "data decide extents in it, and each phase has one"

    def start(self, program: StagedProgram) -> Runner:
        """Return what runs the phases."""
        captured = program.source
        if captured.interface.updates:
            raise EngineError("phases", "a program in phases updates nothing in place")
        phases = self._phases
        if phases is None:
            phases = Phases(captured.graph, captured.options, captured.interface, self._home)
        for i, p in enumerate(phases.programs):
            for node in p.phase.deciding:
                program.report.decide("phases", f"phase {i + 1}", _decision(node), "data decide")
        return phases.at(self._extents)


def stages_of(
    graph: Graph,
    interface: Interface | None = None,
    options: Options | None = None,
    home: CompNode | None = None,
    places: ValuePlaces | None = None,
) -> Stages:
    """A program on its way through the stages, whether data decide extents in it or not."""
    if places is not None or not finds_extents(graph):
        return Stages(graph, interface, options, home, places)
    target = InPhases(options or Options(), home)
    return Stages(graph, interface, options, home, target=target)


__all__ = ["InPhases", "PhasedRunner", "Phases", "decisions_of", "stages_of"]
