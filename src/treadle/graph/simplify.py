"""The passes made of rewrite rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treadle.base.errors import GraphError
from treadle.graph.algebra import ARITHMETIC
from treadle.graph.ir import Graph
from treadle.graph.moves import AFTER_GRADIENTS, MOVEMENT
from treadle.graph.passes import register
from treadle.graph.regions import map_regions
from treadle.graph.rewrite import LEVELS, Rule, rewrite
from treadle.graph.rules_boxes import BOXES
from treadle.graph.rules_logic import CHOICES, LOGIC, NUMBERS_MEET, POWERS
from treadle.graph.rules_reduce import PRODUCTS, REDUCTIONS, REPETITION

RULES: tuple[Rule, ...] = (
    *ARITHMETIC,
    *MOVEMENT,
    *BOXES,
    *REPETITION,
    *REDUCTIONS,
    *PRODUCTS,
    *LOGIC,
    *CHOICES,
    *POWERS,
    *NUMBERS_MEET,
)
"""Rules that hold anywhere, in the order they are tried; each says how exact it is."""


@register
@dataclass(frozen=True, slots=True)
class Simplify:
    """Algebraic identities.

    Attributes:
        level: the weakest promise that is good enough: "exact", "safe" or "fast".
        fuel: rule firings per node before giving up.
        without: names of rules that are left out.
    """

    name: ClassVar[str] = "simplify"
    level: str = "exact"
    fuel: int = 50
    without: tuple[str, ...] = ()

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph with the rules applied until none fires, regions included."""
        if self.level not in LEVELS:
            raise GraphError("pass simplify", f"level {self.level!r} is none of {LEVELS}")
        allowed = LEVELS[: LEVELS.index(self.level) + 1]
        rules = [r for r in RULES if r.level in allowed and r.name not in self.without]
        return rewrite(map_regions(graph, self), rules, self.fuel)


@register
@dataclass(frozen=True, slots=True)
class DropMarkers:
    """Removes what only gradients look at; run it when no more gradients are taken."""

    name: ClassVar[str] = "drop_markers"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph without identity and stop_gradient."""
        return rewrite(map_regions(graph, self), AFTER_GRADIENTS)
