"""Rounding to a grid, found in a graph and made one `FakeQuantize`.

x / s, rounded, cut to whole numbers from a to b, times s again: that is what fake quantization
becomes when it is simplified. `FakeQuantize` with b - a + 1 levels from a * s to b * s is the same
but for x / s in the middle between two levels, which goes to the even one there and away from zero
here. OpenVINO makes 8-bit kernels of products of such values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from openvino import opset15 as opset

from treadle.backends.openvino.table import Output
from treadle.graph.ir import Graph, Node, Value, constant_of
from treadle.ops.elementwise import Add, Div, Mul
from treadle.ops.op import as_tuple
from treadle.ops.select import Clip
from treadle.ops.unary import Round

MOST_LEVELS = 256


@dataclass(frozen=True, slots=True)
class Grid:
    """x on the grid of whole multiples of `step` from `low` to `high` of them."""

    x: Value
    step: Value
    low: float
    high: float

    def made(self, known: Mapping[Value, Output]) -> Output:
        """The one node that stands for the chain."""
        # OpenVINO looks for limits that are data before it computes anything.
        step = np.asarray(_computed(self.step), np.float32)
        low, high = (opset.constant(step * np.float32(n)) for n in (self.low, self.high))
        levels = int(self.high - self.low) + 1
        return opset.fake_quantize(known[self.x], low, high, low, high, levels).output(0)


def _computed(value: Value) -> Any:
    """A value that depends on constants alone."""
    node = value.producer
    if node is None:
        raise ValueError("an input is not a constant")
    results = as_tuple(node.op.reference(*map(_computed, node.inputs)))
    return results[value.index]


def fake_quantized(graph: Graph) -> dict[Node, Grid]:
    """The last nodes of chains that round to a grid whose step is a constant."""
    fixed: set[Value] = set()
    for node in graph.nodes:
        if all(v in fixed for v in node.inputs):  # Constants have no inputs.
            fixed.update(node.outputs)
    found = {}
    for node in graph.nodes:
        grid = _grid(node)
        if grid is None or grid.step not in fixed:
            continue
        found[node] = grid
    return found


def _grid(node: Node) -> Grid | None:
    """Return the grid that a product has if it ends such a chain."""
    if not isinstance(node.op, Mul):
        return None
    for level, step in (node.inputs, node.inputs[::-1]):
        clip = _made_by(level, Clip)
        rounded = None if clip is None else _made_by(_without_zero(clip.inputs[0]), Round)
        quotient = None if rounded is None else _made_by(rounded.inputs[0], Div)
        if clip is None or quotient is None or quotient.inputs[1] is not step:
            continue
        low, high = clip.op.attributes["low"], clip.op.attributes["high"]
        if low is not None and high is not None and high - low < MOST_LEVELS:
            return Grid(quotient.inputs[0], step, float(low), float(high))
    return None


def _without_zero(value: Value) -> Value:
    """x of x + 0: levels have one zero, so that a grid loses nothing with its sign."""
    node = _made_by(value, Add)
    for x, other in () if node is None else (node.inputs, node.inputs[::-1]):
        data = constant_of(other)
        if data is not None and x.type == value.type and not data.array.any():
            return x
    return value


def _made_by(value: Value, kind: type) -> Node | None:
    node = value.producer
    return node if node is not None and isinstance(node.op, kind) else None
