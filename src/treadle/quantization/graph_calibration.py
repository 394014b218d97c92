"""8-bit integers in a graph whose ranges are found on data, with no module that it came from.

What goes into a product is rounded to a grid, as weights are, and stays a real number in the graph:
`quantize` and `dequantize` say where it is rounded. The engine then computes on the integers
(`engine.prepare.integers`), as it does for models that were quantized elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from treadle.autodiff import no_grad
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import GraphError
from treadle.base.quantized import QuantDtypeMeta
from treadle.base.shape import Shape
from treadle.engine.package.models import Runner
from treadle.engine.package.open_graph import fixed_graph
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.cleanup import DeadCode
from treadle.graph.ir import Graph, Node, Value, constant_of
from treadle.ops.batch_norm import BatchNormInfer
from treadle.ops.conv import Conv
from treadle.ops.elementwise import Add, Mul, Sub
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Concat, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.pool import MaxPool
from treadle.ops.quant import Dequantize, Quantize
from treadle.ops.unary import Relu
from treadle.quantization.observer import ChannelMinMaxObserver, MinMaxObserver
from treadle.quantization.qconfig import QConfig, per_channel_calibration_qconfig
from treadle.tensor import Tensor

PRODUCTS: tuple[type[Op], ...] = (Conv, Matmul)
BESIDE: tuple[type[Op], ...] = (*PRODUCTS, Add, Concat, MaxPool, Relu, Reshape, Transpose)
"""Ops that read a value rounded where one of them is a product; others read it as it was."""
AFTER: tuple[type[Op], ...] = (Add, Sub, Mul, BatchNormInfer, Relu)
"""Ops that may stand between a convolution and the sum that its result is an addend of."""


def with_integers(
    graph: Graph,
    batches: Sequence[Sequence[Array]],
    kept: Collection[Node],
    notes: Counter[tuple[str, str]],
    qconfig: QConfig = per_channel_calibration_qconfig,
) -> Graph:
    """The graph with rounded operands around its products, for the engine to compute on integers.

    Args:
        graph: for inference, weights inside as constants.
        batches: calibration data, one array per input each; where the graph has symbols, of any
            sizes that it takes.
        kept: nodes that stay as they are.
        notes: receives what stays in float32, and why.
        qconfig: whose observers choose the scales.

    Raises:
        GraphError: there is no calibration data, or a batch does not have one array per input.
        ShapeError: the graph does not take the shapes of a batch.
    """
    if not batches or any(len(batch) != len(graph.inputs) for batch in batches):
        raise GraphError(
            "precision",
            "int8 needs calibration data",
            saw=f"{len(batches)} batches for {len(graph.inputs)} inputs",
            hint="pass calibration=[[array for every input], ...], some tens of examples in all; "
            "or quantize the module (docs/quantization.md), or bring a quantized ONNX model",
        )
    weights = _Weights(graph)
    products = [n for n in graph.nodes if n not in kept and _fits(n, weights, notes)]
    watched = dict.fromkeys(n.inputs[0] for n in products)
    watched.update(dict.fromkeys(_addends(graph, weights, watched, kept)))
    steps = _steps(graph, list(watched), batches, qconfig)
    made = _Rounded(graph, weights, set(products), steps, kept, qconfig).run()
    return DeadCode()(made)


def _fits(node: Node, weights: _Weights, notes: Counter[tuple[str, str]]) -> bool:
    if not isinstance(node.op, PRODUCTS):
        return False
    x, w = node.inputs
    if w not in weights or x in weights:
        notes[node.op.name, "stays as it is: it has no constant weight"] += 1
        return False
    if node.output.type.dtype is not dt.float32:
        notes[node.op.name, f"stays as it is: it is {node.output.type.dtype.name}"] += 1
        return False
    return True


class _Weights:
    """Values that follow from constants alone."""

    def __init__(self, graph: Graph) -> None:
        self._values: set[Value] = set()
        for node in graph.nodes:
            if all(v in self._values for v in node.inputs):
                self._values.update(node.outputs)

    def __contains__(self, value: Value) -> bool:
        return value in self._values

    def array(self, value: Value) -> Array:
        """Return the elements of a value that follows from constants."""
        data, node = constant_of(value), value.producer
        if data is not None:
            return data.array
        if node is None:
            raise GraphError("precision", f"{value!r} does not follow from constants")
        found = node.op.reference(*(self.array(v) for v in node.inputs))
        made: Array = found[value.index] if isinstance(found, tuple) else np.asarray(found)
        return made


def _addends(
    graph: Graph, weights: _Weights, watched: Collection[Value], kept: Collection[Node]
) -> list[Value]:
    """Results of convolutions that are stored until they are added to another one.

    The other addend is in registers by then, and stays a real number.
    """
    place = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
    found: list[Value] = []
    for node in graph.nodes:
        if not isinstance(node.op, Add) or node in kept:
            continue
        x, y = node.inputs
        alike = x.type == y.type and x is not y and not {x, y} & set(watched)
        if alike and _is_of_conv(x, weights) and _is_of_conv(y, weights):
            found.append(min(x, y, key=lambda v: place.get(v, -1)))
    return found


def _is_of_conv(value: Value, weights: _Weights) -> bool:
    """Return whether a value is a convolution's result, normed or shifted as it may be."""
    node = value.producer
    while node is not None and not isinstance(node.op, Conv):
        moving = [v for v in node.inputs if v not in weights]
        node = moving[0].producer if isinstance(node.op, AFTER) and len(moving) == 1 else None
    return node is not None


def _steps(
    graph: Graph, watched: list[Value], batches: Sequence[Sequence[Array]], qconfig: QConfig
) -> dict[Value, _ChosenScale]:
    """Scales for values, found by running the graph on the batches."""
    observers = [qconfig.act_observer() for _ in watched]
    watching = graph.with_nodes(graph.nodes, watched)
    runs: dict[tuple[Shape, ...], Runner] = {}
    with no_grad():
        for batch in batches:
            shapes = tuple(np.shape(array) for array in batch)
            if shapes not in runs:
                is_static = all(v.type.is_static for v in graph.inputs)
                runs[shapes] = Runner(watching if is_static else fixed_graph(watching, shapes))
            for observer, array in zip(observers, runs[shapes](batch), strict=True):
                observer(_tensor(array))
        return {v: _ChosenScale(o) for v, o in zip(watched, observers, strict=True)}


def _tensor(array: Array) -> Tensor:
    return Tensor(np.ascontiguousarray(array), device="cpux")


class _ChosenScale:
    """Scale and zero point that an observer chose."""

    def __init__(self, observer: MinMaxObserver) -> None:
        chosen = observer.get_qparams()
        self.scale: Array = np.asarray(chosen.scale.numpy(), np.float32).reshape(-1)
        self.meta: QuantDtypeMeta = observer.dtype

    def rounded(self, x: GraphOperand, axis: int | None) -> GraphOperand:
        """The nearest numbers on the grid."""
        scale = self.scale if axis is not None else self.scale.reshape(())
        by = x.constant(scale, dt.float32)
        zero = x.constant(np.zeros(scale.shape, np.int32), dt.int32)
        q = Quantize(dt.int8, self.meta.qmin, self.meta.qmax, axis)(x, by, zero)
        return Dequantize(axis)(q, by, zero)


class _Rounded:
    """Rebuilds a graph with rounded values for products and what stands beside them."""

    def __init__(
        self,
        graph: Graph,
        weights: _Weights,
        products: Collection[Node],
        steps: dict[Value, _ChosenScale],
        kept: Collection[Node],
        qconfig: QConfig,
    ) -> None:
        self._graph, self._weights, self._products = graph, weights, products
        self._steps, self._kept, self._qconfig = steps, kept, qconfig
        self._builder = GraphBuilder(graph.name)
        self._builder.adopt(graph.inputs, as_inputs=True)
        self._now: dict[Value, Value] = {v: v for v in graph.inputs}
        self._rounded: dict[object, Value] = {}

    def run(self) -> Graph:
        """The graph that rounds."""
        for node in self._graph.nodes:
            with self._builder.at(node.loc, node.group):
                inputs = [self._operand(node, i) for i in range(len(node.inputs))]
            copy = self._builder.copy(node, tuple(inputs))
            self._now.update(zip(node.outputs, copy.outputs, strict=True))
        outputs = (self._now[v] for v in self._graph.outputs)
        return self._graph.with_nodes(self._builder.build().nodes, outputs)

    def _operand(self, node: Node, index: int) -> Value:
        value = node.inputs[index]
        if node in self._products and index == 1:
            return self._once((value, _channels(node)), lambda: self._weight(value, node))
        reads = node in self._products or (isinstance(node.op, BESIDE) and node not in self._kept)
        if value not in self._steps or not reads:
            return self._now[value]
        x = self._builder.operand(self._now[value])
        return self._once(value, lambda: self._steps[value].rounded(x, None))

    def _once(self, key: object, make: Callable[[], GraphOperand]) -> Value:
        if key not in self._rounded:
            self._rounded[key] = make().value
        return self._rounded[key]

    def _weight(self, value: Value, node: Node) -> GraphOperand:
        """A weight as integers, which are constants, and the numbers that they stand for."""
        observer, axis, array = (
            self._qconfig.weight_observer(),
            _channels(node),
            self._weights.array(value),
        )
        if isinstance(observer, ChannelMinMaxObserver):
            observer.channel_axes = (axis,)
        with no_grad():
            observer(_tensor(array))
            step = _ChosenScale(observer)
        whole = step.scale.size == 1 and array.shape[axis] != 1
        scale = step.scale.reshape(()) if whole else step.scale
        op = Quantize(dt.int8, step.meta.qmin, step.meta.qmax, None if whole else axis)
        zero = np.zeros(scale.shape, np.int32)
        q = self._builder.constant(op.reference(array, scale, zero))
        by = self._builder.constant(scale)
        return Dequantize(op.axis)(q, by, self._builder.constant(zero))


def _channels(node: Node) -> int:
    """The axis of a weight that counts outputs."""
    if isinstance(node.op, Conv):
        return 0
    op: Any = node.op
    return node.inputs[1].type.ndim - (2 if op.transpose_y else 1)
