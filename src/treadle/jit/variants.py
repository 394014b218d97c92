"""Programs of one signature, whether it has one of its own or shares a plan with others."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from treadle.base import tree
from treadle.engine.execute import Runner
from treadle.engine.options import Options
from treadle.engine.phases import finds_extents, stages_of
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.jit.binding import Binding
from treadle.jit.captured import Argument, CapturedCall, Output, State
from treadle.jit.recorded import GraphRule


class Variant(ABC):
    """One captured signature, and its program once it is needed."""

    @property
    @abstractmethod
    def captured(self) -> CapturedCall:
        """The capture."""

    @property
    @abstractmethod
    def graph(self) -> Graph:
        """The captured graph; with symbols, if it serves other extents."""

    @property
    @abstractmethod
    def interface(self) -> Interface:
        """Handles that are written in place, and those that keep their arrays."""

    @property
    @abstractmethod
    def stages(self) -> Stages:
        """The program, for those who look."""

    @cached_property
    def inspected(self) -> Inspected:
        """The same, with what can be asked of it."""
        return Inspected(self.stages)

    @property
    @abstractmethod
    def runner(self) -> Runner | None:
        """The runner of the program; None before it is compiled."""

    @abstractmethod
    def holds(self, leaves: Sequence[Any]) -> bool:
        """Return whether the world is as at the capture, but for shapes and types of state."""

    @abstractmethod
    def valid(self, leaves: Sequence[Any]) -> bool:
        """Return whether the program is right for these arguments, state included."""

    @abstractmethod
    def binding(self) -> Binding:
        """The program with its handles; compiled when first asked for."""

    @cached_property
    def rule(self) -> GraphRule:
        """The rule by which a tape differentiates the function."""
        return GraphRule(self.captured, self.stages.source.options)

    @property
    def extents(self) -> Mapping[str, int]:
        """Extents by symbol, if the capture serves others, too."""
        return {}


class Single(Variant):
    """A signature with a program of its own.

    Args:
        captured: what the capture found.
        options: of the compilation.
        graph: what was captured, if that serves other extents, too.
        stages: the program, if others share its parts.
    """

    def __init__(
        self,
        captured: CapturedCall,
        options: Options,
        graph: Graph | None = None,
        stages: Stages | None = None,
    ) -> None:
        self._captured = captured
        self._graph = captured.graph if graph is None else graph
        home, places = captured.home, captured.spread
        self._stages = stages or stages_of(
            captured.graph, interface_of(captured), options, home, places
        )
        self._binding: Binding | None = None
        self._making = threading.Lock()

    @property
    def captured(self) -> CapturedCall:
        """The capture at the signature's extents."""
        return self._captured

    @property
    def graph(self) -> Graph:
        """The captured graph; with symbols, if it serves other extents."""
        return self._graph

    @property
    def interface(self) -> Interface:
        """Return which handles are written in place, and which keep their arrays."""
        return self._stages.source.interface

    @property
    def stages(self) -> Stages:
        """The program, for those who look."""
        return self._stages

    @property
    def runner(self) -> Runner | None:
        """The runner of the program."""
        return self._stages.made.get("running")

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Return whether the world is as it was at the capture."""
        return self._captured.holds(leaves)

    def valid(self, leaves: Sequence[Any]) -> bool:
        """Return whether the program is right for these arguments, state included."""
        return self._captured.holds(leaves) and self._captured.fits(leaves)

    def binding(self) -> Binding:
        """The program with its handles."""
        if self._binding is None:
            with self._making:
                if self._binding is None:
                    executor = self._stages.compile()
                    self._binding = Binding(self._captured, self.interface.updates, executor)
        return self._binding


def interface_of(captured: CapturedCall, is_open: bool | None = None) -> Interface:
    """Return which handles are written in place, and which keep their arrays from call to call.

    `is_open`: whether data decide extents, where that is known.
    """
    graph = captured.graph
    updates: dict[int, int] = {}
    is_open = finds_extents(graph) if is_open is None else is_open
    writes = captured.updates if captured.on_host and not is_open else ()
    shared = _shared(captured)
    for output, i in writes:
        new, old = graph.outputs[output].type, graph.inputs[i].type
        same = (new.dtype, new.shape) == (old.dtype, old.shape)
        held = isinstance(captured.sources[i], (State, Argument))
        if same and held and output not in updates and output not in shared:
            updates[output] = i
    changed = {i for _, i in captured.updates}
    frozen = tuple(
        isinstance(s, State) and i not in changed for i, s in enumerate(captured.sources)
    )
    return Interface(frozen, tuple(updates.items()))


def _shared(captured: CapturedCall) -> set[int]:
    """Outputs that somebody besides one handle receives."""
    found = {o for o, _ in (*captured.gradients, *captured.escaped)}
    found |= {x.index for x in tree.flatten(captured.results)[0] if isinstance(x, Output)}
    rebound = Counter(o for o, _ in captured.updates)
    return found | {o for o, count in rebound.items() if count > 1}
