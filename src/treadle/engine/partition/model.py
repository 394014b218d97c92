"""Costs of an op on an engine and of a value on its way, in seconds, as far as they compare.

An op costs what it takes alone, all its operands read and results written. Within an engine values
need not go through memory, since ops are fused; what passes from an engine to one that compiles
apart from it does, even where both see the same memory. So such a value costs a `handover`: once
more through memory, and its share of the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from treadle.backends.api import Engine
from treadle.backends.segments import CostingEngine, Rates, SegmentEngine
from treadle.base.types import TensorType
from treadle.engine.cost import CARD, LINK, RATES, MemoryLink
from treadle.graph.flop_count import flops, nbytes
from treadle.graph.ir import Node
from treadle.ops.constant import Constant
from treadle.ops.movement import Reshape

HANDOVER = MemoryLink(2e-6, 8e9)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Rates by engine name and for an engine that is not listed; ways between engines.

    Attributes:
        rates: what is listed precedes what a segment engine says of itself.
        usual: of an engine that nobody knows.
        link: between two memory spaces.
        links: the same for pairs of device kinds, from the first one to the second.
        handover: between two engines that compile apart from one another in one memory.
    """

    rates: Mapping[str, Rates] = field(default_factory=lambda: RATES)
    usual: Rates = CARD
    link: MemoryLink = LINK
    handover: MemoryLink = HANDOVER
    links: Mapping[tuple[str, str], MemoryLink] = field(default_factory=dict)

    def of(self, engine: Engine) -> Rates:
        """The rates of an engine."""
        found = self.rates.get(engine.name)
        if found is None:
            found = engine.rates if isinstance(engine, SegmentEngine) else self.usual
        return found

    def seconds(self, node: Node, engine: Engine) -> float:
        """Modelled time of a node on an engine."""
        if isinstance(node.op, (Constant, Reshape)):
            return 0.0
        if isinstance(engine, PricingEngine):
            return engine.price(node)
        if _is_costing(engine):
            types = [TensorType(v.type.dtype, v.type.shape) for v in node.inputs]
            return engine.cost(node.op, types)
        rates = self.of(engine)
        moved = sum(map(nbytes, (*node.inputs, *node.outputs)))
        return rates.seconds(flops(node), moved)

    def way(self, engine: Engine, other: Engine) -> MemoryLink | None:
        """Return the way of a value from one engine to another one; None where it is
        there already.
        """
        if not compile_apart(engine, other):
            return None
        if shares_memory(engine, other):
            return self.handover
        known = (self.links.get((a, b)) for a in engine.serves for b in other.serves)
        return next((link for link in known if link is not None), self.link)


class PricingEngine(ABC):
    """An engine for which the framework itself says what a node takes."""

    @abstractmethod
    def price(self, node: Node, /) -> float:
        """Seconds of a node."""
        ...


_COSTING: dict[type, bool] = {}


def _is_costing(engine: Engine) -> TypeGuard[CostingEngine]:
    """Return whether an engine knows its costs; asked once per class, as protocols are slow to
    check.
    """
    kind = type(engine)
    if kind not in _COSTING:
        _COSTING[kind] = isinstance(engine, CostingEngine)
    return _COSTING[kind]


def shares_memory(engine: Engine, other: Engine) -> bool:
    """Return whether what one engine makes the other can read where it lies."""
    return bool(set(engine.serves) & set(other.serves))


def compile_apart(engine: Engine, other: Engine) -> bool:
    """Return whether a value that passes from one engine to the other leaves one program for
    another.
    """
    if engine is other:
        return False
    segments = isinstance(engine, SegmentEngine) or isinstance(other, SegmentEngine)
    return segments or not shares_memory(engine, other)
