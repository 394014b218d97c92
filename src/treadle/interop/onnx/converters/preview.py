"""Optimizers as operators."""

from __future__ import annotations

from collections.abc import Callable

from treadle.interop.onnx.nodes import OnnxNode, Value, concrete
from treadle.interop.onnx.registry import converts
from treadle.ops import elementwise as ew
from treadle.ops import unary
from treadle.ops.select import Where

DOMAIN = "ai.onnx.preview.training"
Update = Callable[[OnnxNode, Value, Value, Value, list[Value]], list[Value]]


def _each(
    node: OnnxNode, n_states: int, inputs: tuple[Value, ...], update: Update
) -> tuple[Value, ...]:
    """Apply an update to every parameter: results are all parameters, then all states by kind."""
    rate, step, *rest = inputs
    count = len(rest) // (2 + n_states)
    columns = [rest[i * count : (i + 1) * count] for i in range(2 + n_states)]
    rows = [update(node, rate, step, x, list(more)) for x, *more in zip(*columns, strict=True)]
    return tuple(v for column in zip(*rows, strict=True) for v in column)


@converts("Adagrad", domain=DOMAIN)
def _adagrad(node: OnnxNode, *inputs: Value) -> tuple[Value, ...]:
    def update(
        node: OnnxNode, rate: Value, step: Value, x: Value, rest: list[Value]
    ) -> list[Value]:
        g, h = rest
        slowed = rate / (step.astype(rate.type.dtype) * node.attr("decay_factor", 0.0) + 1)
        g = g + x * node.attr("norm_coefficient", 0.0)
        h = h + g * g
        return [x - g * slowed / (unary.Sqrt()(h) + node.attr("epsilon", 0.0)), h]

    return _each(node, 1, inputs, update)


@converts("Momentum", domain=DOMAIN)
def _momentum(node: OnnxNode, *inputs: Value) -> tuple[Value, ...]:
    alpha, beta = node.attributes["alpha"], node.attributes["beta"]

    def update(
        node: OnnxNode, rate: Value, step: Value, x: Value, rest: list[Value]
    ) -> list[Value]:
        g, v = rest
        g = g + x * node.attr("norm_coefficient", 0.0)
        share = beta if int(concrete(step, node, "the step")) > 0 else 1.0
        v = v * alpha + g * share
        moved = g + v * alpha if node.attr("mode", "standard") == "nesterov" else v
        return [x - rate * moved, v]

    return _each(node, 1, inputs, update)


@converts("Adam", domain=DOMAIN)
def _adam(node: OnnxNode, *inputs: Value) -> tuple[Value, ...]:
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)

    def update(
        node: OnnxNode, rate: Value, step: Value, x: Value, rest: list[Value]
    ) -> list[Value]:
        g, v, h = rest
        g = g + x * node.attr("norm_coefficient", 0.0)
        v = v * alpha + g * (1 - alpha)
        h = h * beta + g * g * (1 - beta)
        wide = rate.type.dtype
        t = step.astype(wide)
        power = ew.Pow()
        later = t > 0
        safe = Where()(later, t, t.constant(1))
        corrected = unary.Sqrt()(1 - power(t.constant(beta), safe)) / (
            1 - power(t.constant(alpha), safe)
        )
        factor = rate * Where()(later, corrected, corrected.constant(1))
        new = x - factor * v / (unary.Sqrt()(h) + node.attr("epsilon", 0.0))
        return [new * (1 - node.attr("norm_coefficient_post", 0.0)), v, h]

    return _each(node, 2, inputs, update)
