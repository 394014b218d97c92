"""What an op costs on an engine and a value on its way, in seconds, as far as they compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.backends.api import Engine
from treadle.base.shape import size_of
from treadle.engine.cost import RATES, Rates
from treadle.graph.ir import Node, Value
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, IntConv
from treadle.ops.matmul import MatrixProduct
from treadle.ops.movement import Reshape

UNKNOWN = 1 << 20
"""Elements that a symbolic shape is taken to have."""


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


def elements(value: Value) -> int:
    """Number of elements, a guess where it is symbolic."""
    return size_of(value.type.shape) if value.type.is_static else UNKNOWN


def nbytes(value: Value) -> int:
    """Bytes of a value, a guess where its shape is symbolic."""
    return elements(value) * value.type.dtype.itemsize


def flops(node: Node) -> int:
    """Arithmetic operations of a node, roughly: what dominates is exact."""
    op, results = node.op, sum(map(elements, node.outputs))
    if isinstance(op, MatrixProduct):
        inner = node.inputs[0].type.shape[-2 if op.transpose_x else -1]
        return 2 * results * (inner if isinstance(inner, int) else 256)
    if isinstance(op, (Conv, ConvGradInput, ConvGradWeight, IntConv)):
        return 2 * _products(node)
    if isinstance(op, (Attention, AttentionGrad)):
        keys = node.inputs[1].type.shape[-2]
        return 4 * results * (keys if isinstance(keys, int) else 256)
    if isinstance(op, ControlFlow):
        return 100 * results
    return max(results, sum(map(elements, node.inputs)))


def _products(node: Node) -> int:
    """Products of a convolution: its kernel at every position of its result, from any side."""
    values: Sequence[Value] = (*node.inputs, *node.outputs)
    sizes = sorted(elements(v) for v in values[:3])
    # Kernel O C k, input N C s and result N O s: the root of their product is N O C s sqrt(k),
    # and the root of k is 3 for the usual window.
    return int((sizes[0] * sizes[1] * sizes[2]) ** 0.5) * 3
