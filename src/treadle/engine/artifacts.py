"""The artifacts that stages hand on. They are frozen: a stage keeps nothing but what it returns.

    Captured -> Prepared -> Partitioned -> Optimized -> Planned -> Loaded

Each has the graph as its stage left it, prints as text, and equals another where that has the same
graph and the same capture. `Loaded` (`plan.py`) is a program in memory, whose executor runs it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from treadle.engine.options import Options
from treadle.engine.plan import Interface, Plan
from treadle.graph.ir import Graph, Value
from treadle.graph.printer import to_text


@dataclass(frozen=True, slots=True)
class Captured:
    """A program as it was given.

    Attributes:
        graph: with every op that the user's code ran.
        interface: which inputs are frozen or updated.
        options: of the compilation.
    """

    graph: Graph
    interface: Interface = field(default_factory=Interface)
    options: Options = field(default_factory=Options)

    def __str__(self) -> str:
        return to_text(self.graph)


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A program after some stage: what was captured, and its graph now."""

    captured: Captured
    graph: Graph

    @property
    def frozen(self) -> Set[Value]:
        """The inputs of the graph that keep their contents from run to run."""
        flags = self.captured.interface.frozen
        return {v for v, yes in zip(self.graph.inputs, flags, strict=False) if yes}

    def __str__(self) -> str:
        return to_text(self.graph)


@dataclass(frozen=True, slots=True)
class Prepared(_Lowered):
    """The graph of what must be computed: folded, simplified, composites taken apart.

    Attributes:
        whole: names of the composites that are still whole, as another engine may take them.
    """

    whole: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitioned(_Lowered):
    """The graph with the engine of each part: nodes that another engine runs are in groups of their
    own.
    """


@dataclass(frozen=True, slots=True)
class Optimized(_Lowered):
    """The graph of what runs as one: layouts are chosen, and every group becomes a kernel
    or a few.
    """


@dataclass(frozen=True, slots=True)
class Planned(Optimized):
    """The steps of the program.

    Attributes:
        plan: steps, memory and streams. The graph is the one that it was made from: a memory
            budget may have changed it once more.
    """

    plan: Plan
