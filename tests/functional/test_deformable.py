"""Deformable convolution: values from loops, gradients, compiled runs, errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.errors import ShapeError

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def sample(plane: Any, y: float, x: float) -> float:
    """A plane between its cells; 0 outside."""
    top, left, total = int(np.floor(y)), int(np.floor(x)), 0.0
    for i, j in itertools.product((top, top + 1), (left, left + 1)):
        if 0 <= i < plane.shape[0] and 0 <= j < plane.shape[1]:
            total += (1 - abs(y - i)) * (1 - abs(x - j)) * plane[i, j]
    return total


def naive(
    x: Any, w: Any, offset: Any, mask: Any, stride: int, pad: int, apart: int, groups: int
) -> Any:
    """w (O, C/groups, KH, KW), one loop per index."""
    outputs, depth, rows, columns = w.shape
    n, parts, (height, width) = x.shape[0], mask.shape[1] // (rows * columns), mask.shape[2:]
    out = np.zeros((n, outputs, height, width))
    places = itertools.product(range(n), range(outputs), range(height), range(width))
    for b, o, i, j in places:
        for c, u, v in itertools.product(range(depth), range(rows), range(columns)):
            channel = o // (outputs // groups) * depth + c
            k = channel // (x.shape[1] // parts) * rows * columns + u * columns + v
            y = i * stride + u * apart - pad + offset[b, 2 * k, i, j]
            z = j * stride + v * apart - pad + offset[b, 2 * k + 1, i, j]
            out[b, o, i, j] += w[o, c, u, v] * mask[b, k, i, j] * sample(x[b, channel], y, z)
    return out


CASES = [
    # stride, padding, dilation, groups, groups of offsets
    (1, 0, 1, 1, 1),
    (2, 1, 1, 2, 1),
    (1, 2, 2, 1, 2),
]


def case(stride: int, pad: int, apart: int, groups: int, parts: int) -> tuple[Any, ...]:
    x, w = normal(2, 4, 6, 5), normal(6, 4 // groups, 2, 3)
    height, width = ((n + 2 * pad - apart * (k - 1) - 1) // stride + 1 for n, k in ((6, 2), (5, 3)))
    offset = normal(2, 2 * parts * 6, height, width) * 2
    return x, w, offset, normal(2, parts * 6, height, width)


@pytest.mark.parametrize("arguments", CASES)
def test_values(arguments: tuple[int, ...]) -> None:
    stride, pad, apart, groups, _ = arguments
    x, w, offset, mask = case(*arguments)
    weight = w if groups == 1 else w.reshape(groups, -1, *w.shape[1:])
    tensors = [mge.tensor(t) for t in (x, weight, offset, mask)]

    def run(x: mge.Tensor, w: mge.Tensor, offset: mge.Tensor, mask: mge.Tensor) -> mge.Tensor:
        return F.deformable_conv2d(x, w, offset, mask, None, stride, pad, apart, groups)

    expected = naive(x, w, offset, mask, stride, pad, apart, groups)
    np.testing.assert_allclose(run(*tensors).numpy(), expected, 1e-4, 1e-4)
    np.testing.assert_allclose(mge.jit.compile(run)(*tensors).numpy(), expected, 1e-4, 1e-4)


def test_zero_offsets_and_a_mask_of_ones_are_conv2d() -> None:
    x, w, b = (mge.tensor(normal(*s)) for s in ((2, 3, 7, 6), (4, 3, 3, 3), (1, 4, 1, 1)))
    plain = F.conv2d(x, w, b, 2, 1)
    offset, mask = F.zeros((2, 18, *plain.shape[2:])), F.ones((2, 9, *plain.shape[2:]))
    made = F.deformable_conv2d(x, w, offset, mask, b, 2, 1)
    np.testing.assert_allclose(made.numpy(), plain.numpy(), 1e-5, 1e-5)


def test_gradients_are_those_of_differences() -> None:
    arrays = [t.astype(np.float64) for t in case(2, 1, 1, 1, 1)]
    tensors = [mge.tensor(t, dtype="float64") for t in arrays]
    gm = GradManager().attach(tensors)
    scale = mge.tensor(RNG.standard_normal((2, 6, 4, 3)), dtype="float64")
    x, w, offset, mask = tensors
    with gm:
        made = F.deformable_conv2d(x, w, offset, mask, stride=2, padding=1)
        gm.backward((made * scale).sum())

    def value(k: int, moved: Any) -> float:
        x, w, offset, mask = (
            mge.tensor(t + moved if i == k else t, dtype="float64") for i, t in enumerate(arrays)
        )
        made = F.deformable_conv2d(x, w, offset, mask, stride=2, padding=1)
        return float((made * scale).sum().item())

    for k, tensor in enumerate(tensors):
        way = RNG.standard_normal(arrays[k].shape)
        ends = [value(k, way * step) for step in (1e-6, -1e-6)]
        assert tensor.grad is not None
        found = float((tensor.grad.numpy() * way).sum())
        assert found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-4)


def test_places_far_outside_and_not_numbers_read_nothing() -> None:
    far = np.array([np.nan, 0.0, 1e30, -np.inf, 0.0, 0.0], np.float32)
    offset = mge.tensor(np.stack([far[0::2], far[1::2]]).reshape(1, 2, 1, 3))
    x, w = F.ones((1, 1, 1, 3)), F.ones((1, 1, 1, 1))
    made = F.deformable_conv2d(x, w, offset, F.ones((1, 1, 1, 3)))
    assert made.tolist() == [[[[0.0, 0.0, 1.0]]]]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 3, 4, 4), (2, 2, 3, 3), (1, 18, 2, 2), (1, 9, 2, 2)), "x has 3 channels"),
        (((1, 3, 4, 4), (2, 3, 3, 3), (1, 18, 2, 2), (1, 9, 3, 2)), "the mask must be"),
        (((1, 3, 4, 4), (2, 3, 3, 3), (1, 9, 2, 2), (1, 9, 2, 2)), "the offset must be"),
        (((3, 4, 4), (2, 3, 3, 3), (1, 18, 2, 2), (1, 9, 2, 2)), "4 axes"),
    ],
)
def test_misfits(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    x, w, offset, mask = (F.ones(s) for s in shapes)
    with pytest.raises(ShapeError, match=message):
        F.deformable_conv2d(x, w, offset, mask)
