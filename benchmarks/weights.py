"""Parameters of the benchmarks' networks: equal names, shapes and values in every framework.

Shapes are PyTorch's; other frameworks reshape or transpose them. Values depend on names and shapes
only.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import numpy as np

Shapes = dict[str, tuple[int, ...]]
GPT = (6, 256, 8, 128, 256)
"""Layers, dim, heads, tokens, vocabulary."""
BERT = (12, 768, 12, 3072, 128, 30522)
"""Layers, dim, heads, hidden, tokens, vocabulary."""
RESNET18 = ((2, 2, 2, 2), False, 10, True)
RESNET50 = ((3, 4, 6, 3), True, 1000, False)
"""Blocks per stage, whether blocks have three convolutions, classes, whether images are small."""
INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""MobileNetV2: times as wide, outputs, blocks, stride of the first."""


def weights_of(model: str) -> dict[str, np.ndarray]:
    """Name to value.

    Convolutions are scaled by their number of terms, so that activations neither vanish nor grow
    in deep networks; scales and variances are near one, everything else is small.
    """
    found = {}
    for name, shape in sorted(SHAPES[model]().items()):
        array = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, "float32")
        if len(shape) == 4:
            found[name] = array * np.float32(math.sqrt(2 / math.prod(shape[1:])))
        else:
            near_one = len(shape) == 1 and name.endswith(("weight", "running_var"))
            found[name] = array * np.float32(0.02) + np.float32(near_one)
    return found


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, size: int, *, running: bool = False) -> Shapes:
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{part}": (size,) for part in parts[: 4 if running else 2]}


def conv(name: str, inputs: int, outputs: int, size: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, size, size)}


def conv_norm(first: str, second: str, inputs: int, outputs: int, size: int) -> Shapes:
    return conv(first, inputs, outputs, size) | norm(second, outputs, running=True)


def mlp() -> Shapes:
    return linear("fc1", 784, 512) | linear("fc2", 512, 512) | linear("fc3", 512, 10)


def lenet() -> Shapes:
    found = conv("c1", 1, 6, 5) | {"c1.bias": (6,)} | conv("c2", 6, 16, 5) | {"c2.bias": (16,)}
    return found | linear("fc1", 400, 120) | linear("fc2", 120, 84) | linear("fc3", 84, 10)


def resnet(layers: tuple[int, ...], deep: bool, classes: int, small: bool) -> Shapes:
    found = conv_norm("stem", "bn", 3, 64, 3 if small else 7)
    inputs, number = 64, 0
    for stage, count in enumerate(layers):
        width = 64 << stage
        outputs = width * 4 if deep else width
        for block in range(count):
            at = f"blocks.{number}"
            found |= conv_norm(f"{at}.c1", f"{at}.b1", inputs, width, 1 if deep else 3)
            found |= conv_norm(f"{at}.c2", f"{at}.b2", width, width, 3)
            if deep:
                found |= conv_norm(f"{at}.c3", f"{at}.b3", width, outputs, 1)
            if inputs != outputs or (stage and not block):
                found |= conv_norm(f"{at}.down.0", f"{at}.down.1", inputs, outputs, 1)
            inputs, number = outputs, number + 1
    return found | linear("fc", inputs, classes)


def mobilenetv2() -> Shapes:
    found = conv_norm("seq.0", "seq.1", 3, 32, 3)
    inputs, number = 32, 3
    for expand, outputs, count, _ in INVERTED:
        for _ in range(count):
            at, wide, i = f"seq.{number}.seq", inputs * expand, 0
            if expand != 1:
                found |= conv_norm(f"{at}.0", f"{at}.1", inputs, wide, 1)
                i = 3
            found |= conv_norm(f"{at}.{i}", f"{at}.{i + 1}", 1, wide, 3)
            found |= conv_norm(f"{at}.{i + 3}", f"{at}.{i + 4}", wide, outputs, 1)
            inputs, number = outputs, number + 1
    found |= conv_norm(f"seq.{number}", f"seq.{number + 1}", inputs, 1280, 1)
    return found | linear("fc", 1280, 1000)


def gpt(layers: int, dim: int, heads: int, tokens: int, vocabulary: int) -> Shapes:
    found: Shapes = {"tok.weight": (vocabulary, dim), "pos.weight": (tokens, dim)}
    for i in range(layers):
        at = f"blocks.{i}"
        found |= norm(f"{at}.ln1", dim) | norm(f"{at}.ln2", dim)
        found |= linear(f"{at}.qkv", dim, 3 * dim) | linear(f"{at}.proj", dim, dim)
        found |= linear(f"{at}.up", dim, 4 * dim) | linear(f"{at}.dn", 4 * dim, dim)
    return found | norm("ln", dim) | linear("head", dim, vocabulary, bias=False)


def bert(layers: int, dim: int, heads: int, hidden: int, tokens: int, vocabulary: int) -> Shapes:
    found: Shapes = {"tok.weight": (vocabulary, dim), "pos.weight": (tokens, dim)}
    for i in range(layers):
        at = f"layers.{i}"
        for part in "qkvo":
            found |= linear(f"{at}.{part}", dim, dim)
        found |= linear(f"{at}.up", dim, hidden) | linear(f"{at}.dn", hidden, dim)
        found |= norm(f"{at}.ln1", dim) | norm(f"{at}.ln2", dim)
    return found | norm("ln", dim)


SHAPES: dict[str, Callable[[], Shapes]] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": lambda: resnet(*RESNET18),
    "resnet50": lambda: resnet(*RESNET50),
    "mobilenetv2": mobilenetv2,
    "gpt": lambda: gpt(*GPT),
    "bert": lambda: bert(*BERT),
}
