"""Functions captured once for many extents: named axes are symbols in the graph.

Extents that come along have a plan that serves many of them, or a program of their own, made from
the one captured graph; the body does not run again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from treadle.base import tree
from treadle.base.arithmetic import Questions
from treadle.engine.execute import ProgramInstance, Runner
from treadle.engine.extents.plans import Plans
from treadle.engine.extents.regime import OpenProgram, Regime
from treadle.engine.options import Options
from treadle.engine.phases import Phases, finds_extents
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.evaluate import broken_guard, specialize
from treadle.graph.ir import Graph
from treadle.jit.binding import Binding
from treadle.jit.captured import CapturedCall, GradOf, numbers_at, source_at
from treadle.jit.recaptures import MANY, tell_of_extents
from treadle.jit.recorded import GraphRule
from treadle.jit.variants import Single, Variant


class Family:
    """Programs made from one symbolic capture.

    Args:
        captured: with symbols in its types.
        options: of the compilation.
        interface: which inputs are frozen or updated.

    Attributes:
        captured, options, interface: the same.
    """

    def __init__(self, captured: CapturedCall, options: Options, interface: Interface) -> None:
        self.captured = captured
        self.options = options
        self.interface = interface
        alone = "it is on several devices" if captured.spread else ""
        self.plans = Plans(captured.graph, options, interface, captured.home, alone)
        self.phases: Phases | None = None
        if finds_extents(captured.graph) and not captured.spread:
            self.phases = Phases(captured.graph, options, interface, captured.home)
        self._binding: Binding | None = None
        self._questions: dict[tuple[str, ...], Questions] = {}
        self._singles = 0

    @cached_property
    def rule(self) -> GraphRule:
        """The rule by which a tape differentiates the function."""
        return GraphRule(self.captured, self.options)

    @property
    def regimes(self) -> list[OpenProgram]:
        """Plans for many extents, as far as there are."""
        return self.plans.regimes

    @property
    def alone(self) -> str:
        """Reason why each extents have a program of their own; "" where plans are shared."""
        return self.plans.alone

    def serves(
        self, leaves: Sequence[Any], extents: Mapping[str, int], *, runs: bool = False
    ) -> bool:
        """Return whether the capture's course is the one that these arguments and extents take.

        `runs`: a run follows, which sees for itself whether state is what it was.
        """
        return (
            self.captured.holds(leaves)
            and ((runs and self._is_bound_to_state) or self._fits(leaves, extents))
            and self._goes_this_way(extents)
        )

    @property
    def _is_bound_to_state(self) -> bool:
        """True if runs find changes of state, before anything else was done."""
        return self._binding is not None and self._reads_no_gradients

    @cached_property
    def _reads_no_gradients(self) -> bool:
        return not any(isinstance(s, GradOf) for s in self.captured.sources)

    def _fits(self, leaves: Sequence[Any], extents: Mapping[str, int]) -> bool:
        """Return whether state has the shapes and types it had; not looked at one by one where it
        is what the last run saw.
        """
        binding = self._binding
        if binding is not None and binding.sees_known_state:
            return True
        return self.captured.fits(leaves, extents)

    def _goes_this_way(self, extents: Mapping[str, int]) -> bool:
        """Return whether the capture's guards hold."""
        guards, symbols = self.captured.graph.guards, tuple(extents)
        if not guards:
            return True
        asked = self._questions.get(symbols)
        if asked is None:
            asked = self._questions[symbols] = Questions(guards, symbols)
        found = asked.answered(tuple(extents.values()))
        return broken_guard(guards, extents) is None if found is None else found

    def at(self, extents: Mapping[str, int]) -> CapturedCall:
        """Return the capture at extents that it serves."""
        captured = self.captured
        graph = specialize(captured.graph, extents)
        sources = tuple(source_at(source, extents) for source in captured.sources)
        leaves, shape = tree.flatten(captured.results)
        results = tree.unflatten(shape, numbers_at(leaves, extents))
        return dataclasses.replace(captured, graph=graph, sources=sources, results=results)

    def member(self, extents: Mapping[str, int]) -> Variant:
        """The program at extents that the capture serves."""
        if self.phases is not None:
            captured = self.at(extents)
            stages = self.phases.stages(captured.graph, self.interface, extents)
            return Single(captured, self.options, self.captured.graph, stages)
        found = self.plans.at(extents)
        if found is None:
            captured = self.at(extents)
            if self.captured.spread:
                return Single(captured, self.options, self.captured.graph)
            stages = self.plans.stages(extents)
            self._singles += bool(self.alone)
            if self._singles == MANY + 1:
                tell_of_extents(self.captured.graph.name, self.alone)
            return Single(captured, self.options, self.captured.graph, stages)
        return Member(self, extents, *found)

    def bound(self, extents: Mapping[str, int], runner: Runner) -> Binding:
        """A program at certain extents with the handles of all of them."""
        if self._binding is None:
            self._binding = Binding(self.captured, self.interface.updates, runner)
        return self._binding.at(extents, runner)


class Member(Variant):
    """A signature of a function that is captured for many extents, whose plan others share.

    Args:
        family: the capture and its plans.
        extents: by symbol.
        regime: the plan.
        instance: the same at these extents.

    Attributes:
        regime: the same.
    """

    def __init__(
        self, family: Family, extents: Mapping[str, int], regime: Regime, instance: ProgramInstance
    ) -> None:
        self._family = family
        self._extents = extents
        self.regime = regime
        self._instance = instance
        self._binding = family.bound(extents, instance)

    @property
    def rule(self) -> GraphRule:
        """The rule by which a tape differentiates the function at all extents."""
        return self._family.rule

    @property
    def extents(self) -> Mapping[str, int]:
        """Extents by symbol."""
        return self._extents

    @cached_property
    def captured(self) -> CapturedCall:
        """The capture at the signature's extents."""
        return self._family.at(self._extents)

    @property
    def arena(self) -> int:
        """Bytes of scratch memory at the signature's extents."""
        return self._instance.at.peak

    @property
    def graph(self) -> Graph:
        """The captured graph; with symbols, if it serves other extents."""
        return self._family.captured.graph

    @property
    def interface(self) -> Interface:
        """Return which handles are written in place, and which keep their arrays."""
        return self._family.interface

    @cached_property
    def stages(self) -> Stages:
        """The program, for those who look."""
        return self.regime.stages(self._instance.at)

    @property
    def runner(self) -> Runner:
        """The runner of the program."""
        return self._instance

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Return whether the world is as it was at the capture."""
        return self._family.captured.holds(leaves)

    def valid(self, leaves: Sequence[Any]) -> bool:
        """Return whether the program is right for these arguments, state included."""
        return self._family.serves(leaves, self._extents)

    def binding(self) -> Binding:
        """The program with its handles."""
        return self._binding
