"""Random networks of convolutions, pooling and what stands between them, as graphs."""

from __future__ import annotations

import random
from typing import Any

from tests.engine.workloads import f32

from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.gradient import value_and_gradient
from treadle.graph.ir import Graph
from treadle.ops.adaptive_pool import AdaptiveAvgPool, AdaptiveMaxPool
from treadle.ops.batch_norm import BatchNormTrain
from treadle.ops.conv import Conv
from treadle.ops.cumulative import CumSum
from treadle.ops.movement import Concat, Flip, Roll
from treadle.ops.pool import AvgPool, MaxPool
from treadle.ops.reduce import Argmax, Max, Mean, Sum
from treadle.ops.resample import Resize
from treadle.ops.select import Where
from treadle.ops.slicing import Pad, along
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Relu, Sigmoid, Tanh

CHANNELS = 4


def conv(x: Any, weight: Any, stride: int = 1, groups: int = 1) -> Any:
    """A convolution that keeps maps but for its stride."""
    n = x.type.ndim - 2
    size = int(weight.type.shape[-1])
    return Conv((stride,) * n, ((size // 2, size // 2),) * n, (1,) * n, groups)(x, weight)


def batch_norm(x: Any, gain: Any) -> Any:
    """Standardized over the batch; `gain` [C] serves as weight and as bias."""
    return BatchNormTrain().outputs(x, gain, gain)[0]


class Network:
    """A network of random layers that keep x [N, 4, *S], but for `S`."""

    def __init__(self, seed: int, layers: int, spatial: tuple[int, ...]) -> None:
        self.seed = seed
        self.layers = layers
        n = len(spatial)
        weight = f32(CHANNELS, CHANNELS, *(3,) * n)
        depthwise = f32(CHANNELS, 1, *(3,) * n)
        self.types: list[TensorType] = [f32(2, CHANNELS, *spatial), weight, weight]
        self.types += [depthwise, f32(CHANNELS), f32(*spatial[-1:])]

    def __call__(self, x: Any, *params: Any) -> Any:
        rng = random.Random(self.seed)
        seen = [x]
        for _ in range(self.layers):
            x = self._layer(rng, x, rng.choice(seen), *params)
            seen.append(x)
        return x

    def _layer(self, rng: random.Random, x: Any, other: Any, *params: Any) -> Any:
        first, second, depthwise, gain, row = params
        shape, n = x.type.shape, x.type.ndim - 2
        spatial = tuple(range(2, 2 + n))
        other = other if other.type.shape == shape else x
        pool = (3,) * n, (2,) * n, ((1, 1),) * n
        smallest = min(int(d) for d in shape[2:])
        choices: list[Any] = [
            lambda: conv(x, first),
            lambda: Relu()(batch_norm(conv(x, second), gain)),
            lambda: conv(x, depthwise, 1, CHANNELS),
            lambda: Relu()(x + conv(other, first)),
            lambda: x * Sigmoid()(Mean(spatial, True)(other)),
            lambda: x + gain.reshape((CHANNELS, *(1,) * n)),
            lambda: Where()(x < other, x * 0.5, Tanh()(other)),
            lambda: along(Concat(1)(x, other), 1, 2, 2 + CHANNELS),
            lambda: along(Pad(((0, 0), (1, 0), *((0, 0),) * n))(x), 1, 0, CHANNELS),
            lambda: Flip((1, 2))(x),
            lambda: Roll((1, 2), (1, 2))(x),
            lambda: x - Sum((0,), True)(other),
            lambda: Softmax(1)(x),
            lambda: CumSum(1)(x) * 0.3,
            lambda: x - Max((1,), True)(x).broadcast_to(shape),
            lambda: x * Max((1,), False)(other).reshape((shape[0], 1, *shape[2:])),
            lambda: x.transpose((0, *spatial, 1)).transpose((0, n + 1, *range(1, n + 1))) * 2.0,
            lambda: Tanh()(x.reshape((*shape[:2], size_of(shape[2:])))).reshape(shape),
        ]
        if smallest >= 4:
            choices += [
                lambda: conv(x, second, 2),
                lambda: MaxPool(*pool, (1,) * n, False)(x),
                lambda: AvgPool(*pool, False, False)(x),
                lambda: AdaptiveMaxPool((3,) * n)(x),
            ]
        elif smallest < 4:
            choices += [
                lambda: Resize("linear", "half_pixel", (6,) * n)(x),
                lambda: AdaptiveAvgPool((2,) * n)(x),
            ]
        if shape[-1] == row.type.shape[0]:
            choices.append(lambda: x * row)
        return rng.choice(choices)()


def forward(seed: int, layers: int = 8, spatial: tuple[int, ...] = (8, 7)) -> Graph:
    """A network with several results: its maps, means of channels, where channels are largest."""
    network = Network(seed, layers, spatial)

    def body(x: Any, *params: Any) -> Any:
        y = network(x, *params)
        axes = tuple(range(2, y.type.ndim))
        return y, Mean(axes)(y), Argmax(1)(y), Sum((0, *axes))(y)

    return trace_body(body, network.types, f"network{seed}")


def training(seed: int, layers: int = 6, spatial: tuple[int, ...] = (8, 7)) -> Graph:
    """A loss and its gradient in all parameters."""
    network = Network(seed, layers, spatial)

    def loss(x: Any, *params: Any) -> Any:
        y = network(x, *params)
        return Mean(tuple(range(y.type.ndim)))(y * y)

    graph = trace_body(loss, network.types, f"training{seed}")
    return value_and_gradient(graph, range(1, len(graph.inputs)))
