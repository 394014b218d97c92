"""Fourier transforms and what is built on them, as products with matrices known beforehand."""

from __future__ import annotations

import numpy as np

from treadle.base.array import Array
from treadle.interop.onnx.converters.arithmetic import target_type
from treadle.interop.onnx.converters.shapes import extents, joined, part, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, dtype_of, known
from treadle.interop.onnx.registry import converts
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Transpose
from treadle.ops.slicing import Pad


@converts("DFT", since=17, host=(1,))
def _dft_17(node: OnnxNode, x: Value, length: Array | None = None) -> Value:
    return _dft(node, x, length, node.attr("axis", 1))


@converts("DFT", since=20, host=(1, 2))
def _dft_20(
    node: OnnxNode, x: Value, length: Array | None = None, axis: Array | None = None
) -> Value:
    return _dft(node, x, length, -2 if axis is None else int(axis.reshape(-1)[0]))


def _dft(node: OnnxNode, x: Value, length: Array | None, axis: int) -> Value:
    shape = extents(x)
    axis %= len(shape)
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if inverse and onesided:
        n = 2 * (shape[axis] - 1) if length is None else int(length.reshape(-1)[0])
        return _real_inverse(_fitted(x, axis, n // 2 + 1), axis, n)
    n = shape[axis] if length is None else int(length.reshape(-1)[0])
    return _transformed(_fitted(x, axis, n), axis, n, inverse, onesided)


def _fitted(x: Value, axis: int, n: int) -> Value:
    """Cut or filled with zeros to n entries."""
    extent = extents(x)[axis]
    if extent > n:
        return part(x, axis, 0, n)
    widths = [(0, 0)] * len(extents(x))
    widths[axis] = (0, n - extent)
    return x if extent == n else Pad(tuple(widths), "constant", 0.0)(x)


def _transformed(x: Value, axis: int, n: int, inverse: bool, onesided: bool) -> Value:
    """Real and imaginary part along the last axis, from one or both of them."""
    k = np.arange(n // 2 + 1 if onesided else n)
    angle = 2 * np.pi * np.outer(np.arange(n), k) / n * (1 if inverse else -1)
    scale = 1 / n if inverse else 1.0
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    real = _along(x, axis, cos, 0), _along(x, axis, sin, 0)
    if extents(x)[-1] == 1:
        return joined(real, len(extents(x)) - 1)
    imag = _along(x, axis, cos, 1), _along(x, axis, sin, 1)
    return joined([real[0] - imag[1], real[1] + imag[0]], len(extents(x)) - 1)


def _real_inverse(x: Value, axis: int, n: int) -> Value:
    """A real signal from half of its spectrum, the other half being its mirror image."""
    k = np.arange(n // 2 + 1)
    angle = 2 * np.pi * np.outer(k, np.arange(n)) / n
    share = np.where((k == 0) | ((n % 2 == 0) & (k == n // 2)), 1.0, 2.0)[:, None] / n
    return _along(x, axis, np.cos(angle) * share, 0) - _along(x, axis, np.sin(angle) * share, 1)


def _along(x: Value, axis: int, matrix: Array, which: int) -> Value:
    """One part (0 real, 1 imaginary) times a matrix along an axis; the last axis has extent 1."""
    one = part(x, len(extents(x)) - 1, which, which + 1)
    rank = len(extents(one))
    order = (*(i for i in range(rank) if i != axis), axis)
    back = tuple(int(i) for i in np.argsort(order))
    turned = Transpose(order)(one)
    shape = extents(turned)
    weights = one.constant(np.ascontiguousarray(matrix.astype(dtype_of(one).numpy)), dtype_of(one))
    flat = Matmul()(reshaped(turned, (-1, shape[-1])), weights)
    return Transpose(back)(reshaped(flat, (*shape[:-1], matrix.shape[1])))


@converts("STFT", host=(1, 3))
def _stft(
    node: OnnxNode, x: Value, step: Array, window: Value = None, length: Array | None = None
) -> Value:
    n = int(length) if length is not None else extents(window)[0]
    hop, total = int(step), extents(x)[1]
    frames = [part(x, 1, i * hop, i * hop + n) for i in range((total - n) // hop + 1)]
    stacked = joined([reshaped(f, (extents(f)[0], 1, *extents(f)[1:])) for f in frames], 1)
    if window is not None:
        stacked = stacked * reshaped(window, (1, 1, -1, 1))
    return _transformed(stacked, 2, n, False, bool(node.attr("onesided", 1)))


@converts("MelWeightMatrix", host=(-1,))
def _mel_weights(
    node: OnnxNode, bins: Array, length: Array, rate: Array, low: Array, high: Array
) -> Value:
    def mel(f: float) -> float:
        return float(2595 * np.log10(1 + f / 700))

    count, spectrum = int(bins), int(length) // 2 + 1
    step = (mel(float(high)) - mel(float(low))) / (count + 2)
    points = np.arange(count + 2) * step + mel(float(low))
    cells = np.floor((int(length) + 1) * (700 * (10 ** (points / 2595) - 1)) / int(rate)).astype(
        int
    )
    result = np.zeros((spectrum, count))
    for i in range(count):
        left, center, right = cells[i : i + 3]
        if center == left:
            result[center, i] = 1
        else:
            result[left : center + 1, i] = (np.arange(left, center + 1) - left) / (center - left)
        if right > center:
            result[center:right, i] = (right - np.arange(center, right)) / (right - center)
    return known(result.astype(target_type(node.attr("output_datatype", 1), node)))
