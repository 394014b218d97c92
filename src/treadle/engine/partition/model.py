"""What an op costs on an engine and a value on its way, in seconds, as far as they compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from treadle.backends.api import Engine
from treadle.engine.cost import RATES, Rates
from treadle.graph.flop_count import flops, nbytes
from treadle.graph.ir import Node, Value
from treadle.ops.constant import Constant
from treadle.ops.movement import Reshape


@dataclass(frozen=True, slots=True)
class Link:
    """The way between two memory spaces: seconds per value and bytes per second."""

    latency: float = 20e-6
    bandwidth: float = 8e9


USUAL = Rates(2e12, 200e9, 8e-6, 50e-6)
"""Of a card."""
LINK = Link()


@dataclass(frozen=True, slots=True)
class Model:
    """Rates by engine name, for an engine that is not listed, and of the way between memories."""

    rates: Mapping[str, Rates] = field(default_factory=lambda: RATES)
    usual: Rates = USUAL
    link: Link = LINK

    def of(self, engine: Engine) -> Rates:
        """The rates of an engine."""
        return self.rates.get(engine.name, self.usual)

    def seconds(self, node: Node, engine: Engine) -> float:
        """Modelled time of a node on an engine."""
        if isinstance(node.op, (Constant, Reshape)):
            return 0.0
        rates = self.of(engine)
        moved = sum(map(nbytes, (*node.inputs, *node.outputs)))
        return rates.seconds(flops(node), moved)

    def transfer(self, value: Value, engine: Engine, other: Engine) -> float:
        """Modelled time for a value made by one engine to reach another."""
        if shares_memory(engine, other) or isinstance(_op(value), Constant):
            return 0.0
        return self.link.latency + nbytes(value) / self.link.bandwidth


def _op(value: Value) -> object:
    return None if value.producer is None else value.producer.op


def shares_memory(engine: Engine, other: Engine) -> bool:
    """Whether what one engine makes the other can read where it lies."""
    return bool(set(engine.serves) & set(other.serves))
