"""Training steps as graphs, of the size of the benchmarks or small: what fusion is judged by."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.gradient import value_and_gradient
from treadle.graph.ir import Graph
from treadle.ops.activation import Gelu
from treadle.ops.attention import Attention
from treadle.ops.gather import Take
from treadle.ops.loss import SoftmaxCrossEntropy
from treadle.ops.matmul import Matmul
from treadle.ops.norm import LayerNorm
from treadle.ops.op import Op
from treadle.ops.reduce import Mean
from treadle.ops.slicing import along
from treadle.ops.unary import Relu
from treadle.ops.update import AdamWUpdate, SgdUpdate

Types = list[TensorType]


def f32(*shape: int) -> TensorType:
    return TensorType(dt.float32, shape)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    return Matmul(False, True)(x, weight) + bias


def mlp_loss(sizes: tuple[int, ...]) -> Callable[..., Any]:
    def loss(x: Any, labels: Any, *params: Any) -> Any:
        last = len(sizes) - 2
        for i in range(len(sizes) - 1):
            x = linear(x, params[2 * i], params[2 * i + 1])
            x = Relu()(x) if i < last else x
        return Mean((0,))(SoftmaxCrossEntropy()(x, labels))

    return loss


def mlp_types(batch: int, sizes: tuple[int, ...]) -> Types:
    types = [f32(batch, sizes[0]), TensorType(dt.int32, (batch,))]
    for inside, outside in pairwise(sizes):
        types += [f32(outside, inside), f32(outside)]
    return types


def mlp_step(batch: int = 128, sizes: tuple[int, ...] = (784, 512, 512, 10)) -> Graph:
    """Forward, loss, backward and an SGD step of a multi-layer perceptron."""
    forward = trace_body(mlp_loss(sizes), mlp_types(batch, sizes), "mlp")
    return training_step(forward, 2, lambda: SgdUpdate(), 0)


def _heads(x: Any, part: int, batch: int, length: int, heads: int) -> Any:
    width = x.shape[-1] // 3
    chunk = along(x, 2, part * width, (part + 1) * width)
    return chunk.reshape((batch, length, heads, width // heads)).transpose((0, 2, 1, 3))


def gpt_block(x: Any, params: Any, heads: int) -> Any:
    g1, b1, wqkv, bqkv, wo, bo, g2, b2, wup, bup, wdn, bdn = params
    batch, length, width = x.shape
    qkv = linear(LayerNorm()(x, g1, b1), wqkv, bqkv)
    q, k, v = (_heads(qkv, i, batch, length, heads) for i in range(3))
    mixed = Attention(True)(q, k, v).transpose((0, 2, 1, 3)).reshape((batch, length, width))
    x = x + linear(mixed, wo, bo)
    return x + linear(Gelu("tanh")(linear(LayerNorm()(x, g2, b2), wup, bup)), wdn, bdn)


def gpt_loss(layers: int, heads: int) -> Callable[..., Any]:
    def loss(codes: Any, labels: Any, letters: Any, places: Any, *params: Any) -> Any:
        x = Take(0)(letters, codes) + places
        for i in range(layers):
            x = gpt_block(x, params[12 * i : 12 * i + 12], heads)
        g, b, head = params[-3:]
        scores = Matmul(False, True)(LayerNorm()(x, g, b), head)
        scores = scores.reshape((x.shape[0] * x.shape[1], head.shape[0]))
        return Mean((0,))(SoftmaxCrossEntropy()(scores, labels))

    return loss


def gpt_types(batch: int, length: int, width: int, layers: int, letters: int) -> Types:
    d = width
    block = [
        f32(d), f32(d), f32(3 * d, d), f32(3 * d), f32(d, d), f32(d),
        f32(d), f32(d), f32(4 * d, d), f32(4 * d), f32(d, 4 * d), f32(d),
    ]  # fmt: skip
    return [
        TensorType(dt.int32, (batch, length)),
        TensorType(dt.int32, (batch * length,)),
        f32(letters, d),
        f32(length, d),
        *block * layers,
        f32(d),
        f32(d),
        f32(letters, d),
    ]


def gpt_step(
    batch: int = 8,
    length: int = 128,
    width: int = 256,
    layers: int = 6,
    heads: int = 8,
    letters: int = 256,
) -> Graph:
    """Forward, loss, backward and an AdamW step of a small GPT."""
    types = gpt_types(batch, length, width, layers, letters)
    forward = trace_body(gpt_loss(layers, heads), types, "gpt")
    return training_step(forward, 2, lambda: AdamWUpdate(), 2)


def training_step(forward: Graph, data: int, update: Callable[[], Op], states: int) -> Graph:
    """The loss, then parameters and state after an update; `data` inputs are no parameters."""
    graph = value_and_gradient(forward, range(data, len(forward.inputs)))
    builder = GraphBuilder(forward.name)
    inside = {v: builder.input(v.type) for v in graph.inputs}
    params = [inside[v] for v in graph.inputs[data:]]
    scalars = [builder.input(f32()) for _ in range(3 if states == 2 else 2)]
    for node in graph.nodes:
        made = builder.copy(node, tuple(inside[v].value for v in node.inputs))
        inside.update(
            (v, builder.operand(o)) for v, o in zip(node.outputs, made.outputs, strict=True)
        )
    loss, *grads = (inside[v] for v in graph.outputs)
    builder.output(loss)
    for param, grad in zip(params, grads, strict=True):
        state = [builder.input(param.type) for _ in range(states)]
        builder.output(*update().outputs(param, grad, *state, *scalars))
    return builder.build()


def arrays(graph: Graph, seed: int = 0, high: int = 3) -> list[np.ndarray]:
    """Small random inputs; integers below `high`."""
    rng = np.random.default_rng(seed)
    made = []
    for t in graph.input_types:
        if t.dtype.is_integer:
            made.append(rng.integers(0, high, t.shape).astype(t.dtype.numpy))
        else:
            made.append(np.asarray(rng.uniform(0.1, 0.9, t.shape)).astype(t.dtype.numpy))
    return made
