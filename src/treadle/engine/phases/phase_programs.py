"""Programs of one phase, made for the extents that turn up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from treadle.base.errors import ShapeError, TreadleError
from treadle.base.guards import recording_guards
from treadle.base.symbol import Relation, symbols_of
from treadle.engine.devices.names import CompNode
from treadle.engine.execute import ProgramInstance, Runner
from treadle.engine.execute.counters import Counters
from treadle.engine.extents.plans import Plans
from treadle.engine.extents.regime import Regime
from treadle.engine.options import Options
from treadle.engine.phases.parting import Phase
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.analysis import has_effect
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph, symbols_in

MOST_RUNNERS = 256
"""Programs of one extents each that a phase keeps."""
MOST_INSTANCES = 4096
"""Extents at which a phase keeps shared programs ready, some hundred bytes for each: a loop
whose state grows needs the same ones in every call."""


class PhasePrograms:
    """The programs of one phase.

    Args:
        phase: the part of the whole.
        options: of the compilation.
        home: where it runs; None for the host.

    Attributes:
        phase: the same.
        is_empty: whether there is nothing to compute, to check or to print.
    """

    def __init__(self, phase: Phase, options: Options, home: CompNode | None) -> None:
        self.phase = phase
        graph = phase.graph
        self.is_empty = not graph.outputs and not any(has_effect(n.op) for n in graph.nodes)
        self._options, self._home = options, home
        frozen = (False,) * (len(phase.inputs) - phase.frozen) + (True,) * phase.frozen
        self._interface = Interface(frozen)
        self._names = sorted({s.name for v in phase.inputs for s in symbols_in(v.type)})
        guarded = {name for g in phase.guards for name in symbols_of(g.expr)}
        self._keys = (*self._names, *sorted(guarded - {*self._names}))
        self._plans: dict[tuple[tuple[str, int], ...], Plans] = {}
        self._ready: dict[tuple[int, ...], Runner] = {}
        self._alone: deque[tuple[int, ...]] = deque()
        self._shared: deque[tuple[int, ...]] = deque()
        """Extents of programs of their own, and of shared ones, oldest first."""
        self._made: dict[int, Runner] = {}
        self._given_up, self._past = 0, Counters()
        self._lock = threading.RLock()
        self._look: Callable[[], Stages] | None = None

    @property
    def counters(self) -> Counters:
        """Counters of all its programs, whatever they were made for."""
        return sum((r.counters for r in list(self._made.values())), self._past)

    @property
    def count(self) -> int:
        """Programs that were made."""
        return self._given_up + len(self._made)

    @property
    def latest(self) -> Stages | None:
        """The program that was asked for last, for those who look."""
        return None if self._look is None else self._look()

    def at(self, extents: Mapping[str, int]) -> Runner:
        """The runner of the phase at extents, by symbol.

        Raises:
            ShapeError: guards do not hold.
        """
        key = tuple([extents[n] for n in self._keys])
        found = self._ready.get(key)
        if found is None:
            self.check(extents)
            with self._lock:
                found = self._ready.get(key) or self._kept(key, extents)
        return found

    def _kept(self, key: tuple[int, ...], extents: Mapping[str, int]) -> Runner:
        """A new runner, in place of the oldest of its kind where there are many."""
        made = self._ready[key] = self._new({n: extents[n] for n in self._names})
        is_shared = id(made) not in self._made
        keys, most = (self._shared, MOST_INSTANCES) if is_shared else (self._alone, MOST_RUNNERS)
        keys.append(key)
        while len(keys) > most:
            self._give_up(self._ready.pop(keys.popleft()))
        return made

    def check(self, extents: Mapping[str, int]) -> None:
        """Raise ShapeError where the phase does not take extents, by symbol."""
        for guard in self.phase.guards:
            if not guard.holds(extents):
                raise _misfit(self.phase, guard, extents)

    def _give_up(self, runner: Runner) -> None:
        """Drop a program that serves one number of rows, but for what it counted."""
        if self._made.pop(id(runner), None) is not None:
            self._past, self._given_up = self._past + runner.counters, self._given_up + 1

    def _new(self, extents: dict[str, int]) -> Runner:
        """A program that many extents share, or one of their own; 0 and 1 are numbers in both."""
        small = {n: x for n, x in extents.items() if x < 2}
        others = {n: x for n, x in extents.items() if x >= 2}
        if others:
            key = tuple(small.items())
            if key not in self._plans:
                graph = self._graph(small)
                self._plans[key] = Plans(graph, self._options, self._interface, self._home)
            shared = self._plans[key].at(others)
            if shared is not None:
                regime, instance = shared
                self._look = lambda: _stages_at(regime, instance)
                self._made[id(instance.executor)] = instance
                return instance
        stages = Stages(self._graph(extents), self._interface, self._options, self._home)
        self._look = lambda: stages
        runner = stages.compile()
        self._made[id(runner)] = runner
        return runner

    def _graph(self, extents: Mapping[str, int]) -> Graph:
        """The phase with numbers for some extents."""
        with recording_guards():  # Those of the capture stay.
            return specialize(self.phase.graph, extents) if extents else self.phase.graph

    def close(self) -> None:
        """Give memory back that is kept between runs."""
        for runner in list(self._made.values()):
            runner.close()


def _stages_at(regime: Regime, instance: ProgramInstance) -> Stages:
    return regime.stages(instance.at)


def _misfit(phase: Phase, guard: Relation, extents: Mapping[str, int]) -> TreadleError:
    """The error of the op that does not take the extents that data have decided."""
    for node in specialize(phase.graph, extents).nodes:
        try:
            node.op.infer(*[v.type for v in node.inputs])
        except TreadleError as error:
            error.locate(node.loc)
            return error
    named = ", ".join(f"{s.name} = {extents[s.name]}" for s in symbols_in(guard.expr))
    return ShapeError(
        phase.graph.name.rpartition(".")[0],
        f"data decide an extent that the program does not take: {guard} does not hold",
        saw=named,
        hint="an extent of 1 that data decide does not stretch: use broadcast_to",
    )


__all__ = ["PhasePrograms"]
