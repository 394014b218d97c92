"""ResNet-50 on 8-bit integers: quantized after training, from the float network.

Weights are int8 with one scale per output channel, activations int8 with one scale each, found on
a few batches; batch norms are folded before. After every convolution the sums are scaled to steps
of the result, with the residual where there is one, and rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from models import ResBlock, ResNet

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base import dtype as dt
from treadle.ops.conv import IntConv
from treadle.ops.quant import Quantize

Array = np.ndarray
WEIGHTS = 127
"""Largest quantized weight; the smallest is its opposite."""
FIRST = 63
"""The same where activations have a sign: 7 bits, as quantizers for processors without VNNI do."""
ACTIVATIONS = 127


class Layer:
    """A convolution with its batch norm folded in, in float32, and the largest result seen."""

    def __init__(self, conv: M.Conv2d, norm: M.BatchNorm2d) -> None:
        factor = _array(norm.weight) / np.sqrt(_array(norm.running_var) + norm.eps)
        self.weight = conv.weight.numpy() * factor[:, None, None, None]
        self.bias = _array(norm.bias) - _array(norm.running_mean) * factor
        self.stride, self.padding = conv.stride, conv.padding
        self.largest = 0.0

    def __call__(self, x: mge.Tensor) -> mge.Tensor:
        bias = mge.tensor(self.bias.reshape(1, -1, 1, 1))
        return F.conv2d(x, mge.tensor(self.weight), bias, self.stride, self.padding)

    def seen(self, y: mge.Tensor) -> mge.Tensor:
        """A result; remembers its largest magnitude."""
        self.largest = max(self.largest, float(F.abs(y).max().item()))
        return y


class Folded:
    """A ResNet of `Layer`s: what is calibrated."""

    def __init__(self, model: ResNet) -> None:
        self.stem, self.fc, self.largest = Layer(model.stem, model.bn), model.fc, 0.0
        self.blocks = [self._block(block) for block in model.blocks]

    @staticmethod
    def _block(block: ResBlock) -> tuple[list[Layer], Layer | None]:
        layers = [Layer(block.c1, block.b1), Layer(block.c2, block.b2), Layer(block.c3, block.b3)]
        return layers, None if block.down is None else Layer(block.down[0], block.down[1])

    def __call__(self, x: mge.Tensor) -> mge.Tensor:
        self.largest = max(self.largest, float(F.abs(x).max().item()))
        y = F.max_pool2d(self.stem.seen(F.relu(self.stem(x))), 3, 2, 1)
        for (first, second, third), down in self.blocks:
            z = second.seen(F.relu(second(first.seen(F.relu(first(y))))))
            beside = y if down is None else down.seen(down(y))
            y = third.seen(F.relu(third(z) + beside))
        return self.fc(F.mean(y, (2, 3)))


class IntLayer(M.Module):
    """A convolution of int8 activations; `made` and `given` are the steps of both sides."""

    def __init__(self, layer: Layer, given: float, made: float, limit: int = WEIGHTS) -> None:
        super().__init__()
        scale = np.abs(layer.weight).max((1, 2, 3)) / limit
        levels = np.rint(layer.weight / scale[:, None, None, None])
        self.weight = mge.tensor(levels.astype("int8"))
        self.bias = _columns(np.rint(layer.bias / (scale * given)), "int32")
        self.factor = _columns(scale * given / made, "float32")
        pads = tuple((p, p) for p in layer.padding)
        self.op = IntConv(layer.stride, pads, (1, 1), 1)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """The result in steps, as float32."""
        return (self.op(x, self.weight) + self.bias).astype("float32") * self.factor


class IntBlock(M.Module):
    """Three convolutions beside a residual path."""

    def __init__(self, block: tuple[list[Layer], Layer | None], given: float) -> None:
        super().__init__()
        (first, second, third), down = block
        sizes = [step(layer.largest) for layer in (first, second, third)]
        self.c1 = IntLayer(first, given, sizes[0])
        self.c2 = IntLayer(second, sizes[0], sizes[1])
        self.c3 = IntLayer(third, sizes[1], sizes[2])
        self.down, self.made, beside = None, sizes[2], given
        if down is not None:
            beside = step(down.largest)
            self.down = IntLayer(down, given, beside)
        self.ratio = float(np.float32(beside / sizes[2]))

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        y = rounded(F.relu(self.c2(rounded(F.relu(self.c1(x))))))
        beside = x if self.down is None else rounded(self.down(x))
        return rounded(F.relu(self.c3(y) + beside.astype("float32") * self.ratio))


class IntResNet(M.Module):
    """The quantized network; float32 in, float32 scores out."""

    def __init__(self, model: Folded) -> None:
        super().__init__()
        self.given, at = step(model.largest), step(model.stem.largest)
        self.stem = IntLayer(model.stem, self.given, at, FIRST)
        self.blocks = []
        for block in model.blocks:
            self.blocks.append(IntBlock(block, at))
            at = self.blocks[-1].made
        self.fc, self.made = model.fc, at

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        y = rounded(F.relu(self.stem(rounded(x / self.given))))
        y = F.max_pool2d(y, 3, 2, 1)
        for block in self.blocks:
            y = block(y)
        return self.fc(F.mean(y.astype("float32"), (2, 3)) * self.made)


def step(largest: float) -> float:
    """The step of activations up to this size."""
    return largest / ACTIVATIONS


def rounded(x: mge.Tensor) -> mge.Tensor:
    """Numbers of steps as int8."""
    one, zero = x.constant(1.0, dt.float32), x.constant(0, dt.int32)
    return Quantize(dt.int8, -ACTIVATIONS, ACTIVATIONS)(x, one, zero)


def quantized(model: ResNet, images: Sequence[Array]) -> IntResNet:
    """The network quantized, with ranges found on these images."""
    folded = Folded(model)
    for image in images:
        folded(mge.tensor(image))
    return IntResNet(folded)


def _array(x: Any) -> Array:
    return np.asarray(x.numpy(), np.float32).ravel()


def _columns(x: Array, dtype: str) -> mge.Tensor:
    return mge.tensor(x.reshape(1, -1, 1, 1).astype(dtype))
