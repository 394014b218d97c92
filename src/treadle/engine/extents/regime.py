"""A program for all extents that answer alike what its compilation asked.

The stages run once, at the extents of some call: what they compute from symbolic extents stays an
expression, and what they ask becomes a guard (`base.guards`). Extents of which all guards hold get
the numbers of that plan; kernels, constants and packed weights are shared by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from treadle.backends.measuring import MEASURING
from treadle.backends.program import OpenCompiler, Program, runs_of
from treadle.base.guards import deciding
from treadle.base.log import get_logger
from treadle.base.symbol import Expr, Relation
from treadle.engine.artifacts import Planned
from treadle.engine.compile.memory import Buffer, check_memory, plan_memory
from treadle.engine.compile.stage import check
from treadle.engine.devices.names import CompNode
from treadle.engine.execute.executor import Executor, Packs
from treadle.engine.extents.cells import Cell, cell_of
from treadle.engine.extents.numbers import Numbers
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface, Loaded, MemoryPlan, Plan
from treadle.engine.targets.compiled import Compiled, results_of
from treadle.graph.evaluate import specialize
from treadle.graph.index_findings import index_error
from treadle.graph.ir import Graph
from treadle.ops.collective import Collective
from treadle.ops.control import ControlFlow
from treadle.ops.fused import Fused

MOST_KEPT = 16
"""Instances of a plan that are kept on disk, for processes that meet their extents again."""


class Regime:
    """A plan whose numbers are expressions, in memory once.

    Attributes:
        stages: the program with symbols, as far as compile.
        cell: the box of extents that it was compiled for.
        guards: extents in it of which all hold have this plan.
    """

    def __init__(self, stages: Stages, cell: Cell, guards: tuple[Relation, ...]) -> None:
        self.stages = stages
        self.cell = cell
        self.guards = guards
        self._planned = stages.planned
        self._first: Loaded[Any] | None = None
        self._packs = Packs()
        self._left = MOST_KEPT

    def serves(self, extents: Mapping[str, int]) -> bool:
        """Return whether extents have this plan."""
        return self.cell.holds(extents) and all(g.holds(extents) for g in self.guards)

    def instance(self, graph: Graph, extents: Mapping[str, int]) -> Stages:
        """The program at extents that the regime serves, ready to run.

        Args:
            graph: what was captured, at these extents.
            extents: by symbol.
        """
        source = self.stages.source
        plan = self._plan(extents)
        lowered = specialize(self._planned.graph, extents)
        made = Stages(graph, source.interface, source.options, self.stages.home)
        planned = Planned(made.source, lowered, plan)
        loaded = self._loaded(plan, made)
        results = results_of(made.source, lowered)
        frozen = [i for i, yes in enumerate(source.interface.frozen) if yes]
        failure = partial(index_error, graph)
        running = Executor(loaded, results, frozen, None, failure, self._packs)
        made.planned, made.loaded, made.running = planned, loaded, running
        if self._left > 0 and isinstance(made.target, Compiled):
            self._left -= 1
            made.target.keep(planned, loaded, str(self.cell))
        return made

    def _plan(self, extents: Mapping[str, int]) -> Plan:
        symbolic, options = self._planned.plan, self.stages.source.options
        numbers = Numbers(extents)
        open_ = symbolic.memory.open
        if not open_:
            return self._with(numbers, symbolic.memory)
        buffers = [Buffer(numbers.of(b.size), b.start, b.end) for b in open_]
        found = plan_memory(buffers, reuse=options.reuse_memory)
        if options.check:
            check_memory(buffers, found)
        offsets = {b.name: int(at) for b, at in zip(open_, found.offsets, strict=True)}
        numbers = Numbers({**extents, **offsets})
        return self._with(numbers, replace(found, peak=max(found.peak, symbolic.memory.least)))

    def _with(self, numbers: Numbers, memory: MemoryPlan) -> Plan:
        symbolic = self._planned.plan
        plan = replace(
            symbolic,
            steps=numbers.steps(symbolic.steps),
            host=tuple([numbers.task(t) for t in symbolic.host]),
            memory=memory,
            facts=tuple([numbers.facts(f) for f in symbolic.facts]),
        )
        if self.stages.source.options.check:
            check(plan)
        return plan

    def _loaded(self, plan: Plan, stages: Stages) -> Loaded[Any]:
        """The plan in memory; constants, packed weights and kernels are those of the first one."""
        first = self._first
        if first is None:
            first = self._first = stages.target.load(
                replace(self._planned, plan=plan), stages.report
            )
            return first
        once = tuple(dict.fromkeys(run.kernel for run in runs_of(plan.prelude)))
        main = stages.target.compiler().build(Program(plan.steps, plan.bases, once))
        return replace(first, plan=plan, main=main)


def compile_regime(
    graph: Graph,
    interface: Interface,
    options: Options,
    home: CompNode | None,
    extents: Mapping[str, int],
) -> Regime | str:
    """A program for these extents, and for all that answer alike; or why there is none.

    Args:
        graph: with symbols in its types.
        interface: which inputs are frozen or updated.
        options: of the compilation.
        home: where it runs.
        extents: of the call that it is compiled for, by symbol.
    """
    reason = _refusal(graph, options, home)
    if reason:
        return reason
    try:
        cell = cell_of(extents)
        with deciding(extents, cell.hints) as decisions:
            stages = Stages(cell.of(graph), interface, options, home)
            compiler = stages.target.compiler()
            if not isinstance(compiler, OpenCompiler) or not compiler.is_open:
                return "its compiler takes numbers for extents"
            plan = stages.planned.plan
    except Exception as error:  # What takes no expressions yet: extents get own programs.
        get_logger("jit").debug("%s: no program for many extents", graph.name, exc_info=True)
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    reason = _leaves(plan)
    return reason or Regime(stages, cell, tuple(decisions.guards))


def _refusal(graph: Graph, options: Options, home: CompNode | None) -> str:
    if home is not None and not home.on_host:
        return "the program is on a device"
    if options.memory_budget or options.streams > 1:
        return "a memory budget, or several streams, are decided by numbers"
    if any(isinstance(n.op, ControlFlow) for n in graph.nodes):
        return "it has loops or branches"
    if any(isinstance(n.op, Collective) for n in graph.nodes):
        return "ranks agree on every program"
    if MEASURING.on:
        return "kernels are measured at numbers"
    return ""


def _leaves(plan: Plan) -> str:
    """Return the part of a plan that cannot be shared, in words."""
    for run in runs_of(plan.prelude):
        if any(isinstance(getattr(a, "offset", a), Expr) for a in run.arguments):
            return "what is packed depends on extents"
    if any(isinstance(t.op, Fused) for t in plan.host):
        return "another engine runs a part of it"
    return ""
