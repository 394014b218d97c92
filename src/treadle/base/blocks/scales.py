"""Scales whose levels lie nearest to numbers.

Some scales are tried for each run of numbers, larger numbers counting for more. Source of what is
tried and of the weights: llama.cpp, ggml-quants.c, quantization without a matrix of importance.
"""

from __future__ import annotations

import numpy as np

from treadle.base.blocks.layout import Bytes, Floats

# Values of the 16 codes of IQ4, spaced as normally distributed weights are.
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


def inverse(scale: Floats) -> Floats:
    """`1 / scale`, and 0 where that is not a number: a block of zeros has no scale."""
    found = np.float32(1) / scale
    return np.where(np.isfinite(found), found, np.float32(0))


def halves(x: Floats) -> Floats:
    """Numbers as they are read again from float16."""
    return x.astype(np.float16).astype(np.float32)


def whole(x: Floats, low: int, high: int) -> Floats:
    """The nearest integers from low to high, as floats."""
    found: Floats = np.rint(x).clip(low, high)
    return found


def extreme(x: Floats) -> Floats:
    """The element of largest magnitude, of the last axis, which stays."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1, keepdims=True), axis=-1)


class _Best:
    """The scale of each run whose levels lie nearest to its numbers, of those that are tried.

    Of levels l and weights w the best scale is Σ w x l / Σ w l². The larger (Σ w x l)² / Σ w l² is,
    the smaller the error.
    """

    def __init__(self, x: Floats) -> None:
        self.x, self.weights = x, x * x
        shape = (*x.shape[:-1], 1)
        self.scale = np.zeros(shape, np.float32)
        self._merit = np.zeros(shape, np.float32)

    def offer(self, levels: Floats) -> None:
        """Take the scale that these levels have where it is better."""
        weighted = self.weights * levels
        product = (weighted * self.x).sum(axis=-1, keepdims=True)
        square = (weighted * levels).sum(axis=-1, keepdims=True)
        scale = product * inverse(square)
        better = product * scale > self._merit
        self.scale = np.where(better, scale, self.scale)
        self._merit = np.where(better, product * scale, self._merit)


def scale_of_levels(x: Floats, levels: int) -> Floats:
    """A scale for each run [..., n], for levels from -levels/2 to levels/2 - 1: [..., 1]."""
    low, best, largest = -levels // 2, _Best(x), extreme(x)
    for step in range(-9, 10):
        best.offer(whole(x * ((low - np.float32(0.1) * step) * inverse(largest)), low, -low - 1))
    return best.scale


def scale_and_minimum(x: Floats, levels: int, steps: int) -> tuple[Floats, Floats]:
    """A scale and a minimum, subtracted, for each run [..., n]: both [..., 1] and not negative."""
    weights = np.sqrt((x * x).mean(axis=-1, keepdims=True)) + np.abs(x)
    low = np.minimum(x.min(axis=-1, keepdims=True), np.float32(0))
    reach = x.max(axis=-1, keepdims=True) - low
    total, mean = (v.sum(axis=-1, keepdims=True) for v in (weights, weights * x))
    scale, minimum = reach / np.float32(levels - 1), low
    near = whole((x - low) * inverse(scale), 0, levels - 1)
    least = (weights * (scale * near + low - x) ** 2).sum(axis=-1, keepdims=True)
    for step in range(steps):
        wide = np.float32(levels - 1.5 + 0.1 * step)
        q = whole((x - low) * (wide * inverse(reach)), 0, levels - 1)
        weighted = weights * q
        first, second = weighted.sum(-1, keepdims=True), (weighted * q).sum(-1, keepdims=True)
        product = (weighted * x).sum(-1, keepdims=True)
        over = inverse(total * second - first * first)
        tried = (total * product - mean * first) * over
        base = (second * mean - first * product) * over
        without = base > 0  # A minimum above 0 cannot be written.
        tried = np.where(without, product * inverse(second), tried)
        base = np.where(without, np.float32(0), base)
        error = (weights * (tried * q + base - x) ** 2).sum(-1, keepdims=True)
        better = (error < least) & (tried >= 0)
        scale, minimum = np.where(better, tried, scale), np.where(better, base, minimum)
        least = np.where(better, error, least)
    return scale, -minimum


_BETWEEN = (IQ4_VALUES[1:].astype(np.float32) + IQ4_VALUES[:-1]) / 2
# Codes by twice a number, rounded up: what lies between two values is a multiple of a half.
_CODES = np.searchsorted(_BETWEEN, np.arange(-256, 257) / 2).astype(np.uint8)


def codes(x: Floats) -> Bytes:
    """The codes of IQ4 whose values are nearest."""
    found: Bytes = _CODES[np.ceil(x + x).clip(-256, 256).astype(np.int16) + np.int16(256)]
    return found


def scale_of_values(x: Floats) -> Floats:
    """A scale for each run [..., n], for the values of IQ4: [..., 1]."""
    best, largest = _Best(x), extreme(x)
    for step in range(-7, 8):
        numbers = x * ((IQ4_VALUES[0] + np.float32(step)) * inverse(largest))
        best.offer(IQ4_VALUES[codes(numbers)].astype(np.float32))
    return best.scale
