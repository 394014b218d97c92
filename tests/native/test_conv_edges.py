"""Convolutions and pools at the edges of what they take: the same eagerly and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.errors import OutOfMemory, ShapeError

RNG = np.random.default_rng(17)
Function = Callable[[mge.Tensor, mge.Tensor], mge.Tensor]


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def conv(**options: Any) -> Function:
    return lambda x, w: F.relu(F.conv2d(x, w, **options) * 0.5)


WORKS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    # what, x, weight
    "1x1 map": (conv(), (2, 3, 1, 1), (4, 3, 1, 1)),
    "1x1 map, 3x3 kernel": (conv(padding=1), (2, 3, 1, 1), (4, 3, 3, 3)),
    "no images": (conv(padding=1), (0, 3, 5, 5), (4, 3, 3, 3)),
    "no channels": (conv(padding=1), (2, 0, 5, 5), (4, 0, 3, 3)),
    "no output channels": (conv(padding=1), (2, 3, 5, 5), (0, 3, 3, 3)),
    "kernel as large as the map": (conv(), (2, 3, 5, 4), (6, 3, 5, 4)),
    "kernel as large as the padded map": (conv(padding=2), (1, 2, 3, 3), (6, 2, 7, 7)),
    "stride past the edge": (conv(stride=9), (2, 3, 5, 5), (4, 3, 3, 3)),
    "padding wider than the kernel": (conv(padding=11), (1, 2, 4, 3), (3, 2, 2, 2)),
    "one row": (conv(padding=(0, 1)), (2, 3, 1, 37), (5, 3, 1, 3)),
    "one column": (conv(padding=(1, 0)), (2, 3, 37, 1), (5, 3, 3, 1)),
    "depthwise 1x1 map": (conv(padding=1, groups=5), (2, 5, 1, 1), (5, 1, 1, 3, 3)),
    "groups of one output": (conv(groups=3), (2, 6, 4, 4), (3, 1, 2, 3, 3)),
    "channels of no vector": (conv(padding=1), (3, 17, 6, 5), (19, 17, 3, 3)),
    "dilation over the edge": (conv(padding=6, dilation=6), (1, 4, 5, 5), (8, 4, 3, 3)),
}


def gradients(function: Function, x: Any, w: Any, *, compiled: bool) -> list[Any]:
    """The result and the gradients in both operands."""
    tensors = [mge.tensor(x), mge.tensor(w)]
    gm = GradManager().attach(tensors)

    def run() -> mge.Tensor:
        with gm:
            y = function(*tensors)
            gm.backward((y * y).sum())
        return y

    y = mge.jit.compile(run)() if compiled else run()
    found = [y.numpy()]
    for tensor in tensors:
        assert tensor.grad is not None
        found.append(tensor.grad.numpy())
    return found


@pytest.mark.parametrize("name", WORKS)
def test_edges_work_and_agree(name: str) -> None:
    function, x, w = WORKS[name]
    a, b = normal(*x), normal(*w)
    eager, compiled = (gradients(function, a, b, compiled=c) for c in (False, True))
    for one, other in zip(eager, compiled, strict=True):
        assert one.shape == other.shape
        scale = float(np.abs(one).max(initial=0))
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5 * scale)


BAD: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...], str]] = {
    "kernel over the padded map": (conv(padding=1), (1, 2, 3, 3), (2, 2, 6, 6), "reaches over"),
    "empty map": (conv(), (1, 2, 0, 3), (2, 2, 1, 1), "reaches over"),
    "groups that do not divide": (conv(groups=2), (1, 3, 4, 4), (2, 2, 1, 3, 3), "channels"),
    "too few channels": (conv(), (1, 3, 4, 4), (2, 2, 3, 3), "x has 3 channels"),
    "no stride": (conv(stride=0), (1, 2, 4, 4), (2, 2, 3, 3), "strides must be"),
    "negative padding": (conv(padding=-1), (1, 2, 4, 4), (2, 2, 3, 3), "not be negative"),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_edges_that_are_errors(name: str, compiled: bool) -> None:
    function, x, w, message = BAD[name]
    run = mge.jit.compile(function) if compiled else function
    with pytest.raises(ShapeError, match=message):
        run(F.zeros(x), F.zeros(w))


@pytest.mark.parametrize("compiled", [False, True])
def test_enormous_padding_is_an_error_of_memory(compiled: bool) -> None:
    function = conv(padding=10_000_000)
    run = mge.jit.compile(function) if compiled else function
    with pytest.raises(OutOfMemory):
        run(F.zeros((1, 1, 4, 4)), F.zeros((1, 1, 3, 3)))


POOLS: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max of 2": lambda x: F.max_pool2d(x, 2, 2),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 2)),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (2, 3)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("between", [False, True])
def test_special_values_through_pools(name: str, between: bool) -> None:
    """NaN wins every maximum; infinities stay. Between convolutions, where layouts change."""
    x = normal(2, 4, 9, 8)
    x[0, 0, 3, 3], x[0, 1, 4, 4], x[1, 2, 0, 0] = np.nan, np.inf, -np.inf
    mix = mge.tensor(np.eye(4, dtype=np.float32)[:, :, None, None])
    pool = POOLS[name]

    def function(x: mge.Tensor) -> mge.Tensor:
        return F.conv2d(pool(F.conv2d(x, mix)), mix) if between else pool(x)

    with np.errstate(invalid="ignore"):
        eager = function(mge.tensor(x)).numpy()
    compiled = mge.jit.compile(function)(mge.tensor(x)).numpy()
    np.testing.assert_allclose(compiled, eager, rtol=1e-5, atol=1e-6)
    if name == "max":
        windows = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
        first = windows[:, :, 2:5, 2:5].max((2, 3)), windows[:, :, 4:7, 4:7].max((2, 3))
        plain = F.max_pool2d(mge.tensor(x), 3, 2, 1).numpy()
        np.testing.assert_array_equal(plain[:, :, 1, 1], first[0])
        np.testing.assert_array_equal(plain[:, :, 2, 2], first[1])


def test_windows_that_skip_cells() -> None:
    """Strides wider than the kernel leave cells out, and no gradient reaches those."""
    x = mge.tensor(normal(1, 1, 5, 5))
    gm = GradManager().attach([x])
    for run in (F.avg_pool2d, mge.jit.compile(F.avg_pool2d)):
        with gm:
            gm.backward(run(x, 1, 3).sum())
        assert x.grad is not None
        expected = np.zeros((5, 5), np.float32)
        expected[::3, ::3] = 1
        np.testing.assert_array_equal(x.grad.numpy()[0, 0], expected)
        x.grad = None
