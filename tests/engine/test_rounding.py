"""Groups of 16-bit floats round where the program does: compiled equals eager to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import same
from tests.backends.targets import HERE, compiling_for

import treadle as mge
import treadle.functional as F
from treadle.base import dtype as dt

SHORT = {"float16": dt.float16.numpy, "bfloat16": dt.bfloat16.numpy}
SHAPES = ((37, 19), (37, 1), (1, 19), (19,), ())


def values(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> mge.Tensor:
    """Numbers of several orders of magnitude; sometimes a zero, an infinity, a NaN."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
    odd = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8, -65504.0, 0.5, -2.5], shape)
    x = np.where(rng.random(shape) < 0.05, odd, x)
    with np.errstate(all="ignore"):
        return mge.tensor(np.asarray(x).astype(SHORT[kind]))


class RandomProgram:
    """Elementwise ops, moves and maxima drawn from a seed, the same in every run."""

    unary = (
        lambda x: -x,
        F.abs,
        F.floor,
        F.ceil,
        F.round,
        F.relu,
        F.relu6,
        F.sqrt,
        F.square,
        F.sign,
        F.hswish,
        lambda x: F.clip(x, -0.3, 0.7),
        lambda x: F.leaky_relu(x, 0.1),
        lambda x: x + 0.7,
        lambda x: 0.1 * x,
        lambda x: 1.0 / x,
        lambda x: x**3,
        lambda x: x.astype("float32") * 1.1,
        lambda x: F.max(F.abs(x), axis=-1, keepdims=True) if x.ndim else x,
    )
    binary = (
        lambda x, y: x + y,
        lambda x, y: x - y,
        lambda x, y: x * y,
        lambda x, y: x / y,
        F.maximum,
        F.minimum,
        lambda x, y: F.where(x < y, x, y * 2),
        lambda x, y: F.where(F.floor(x) == F.floor(y), x, y),
    )

    def __init__(self, seed: int, kind: str) -> None:
        self.seed = seed
        self.kind = kind

    def __call__(self, *inputs: mge.Tensor) -> list[mge.Tensor]:
        rng = np.random.default_rng(self.seed)
        known = list(inputs)
        for _ in range(14):
            x, y = (known[i] for i in rng.integers(len(known), size=2))
            if rng.random() < 0.5:
                made = self.unary[rng.integers(len(self.unary))](x)
            else:
                made = self.binary[rng.integers(len(self.binary))](x, y)
            if made.dtype != SHORT[self.kind]:
                made = made.astype(self.kind)
            known.append(made)
        return known[-4:]


def differences(function: Any, *inputs: mge.Tensor) -> list[int]:
    """Elements of each result in which compiled and eager differ."""
    with np.errstate(all="ignore"):
        got, wanted = mge.jit.compile(function)(*inputs), function(*inputs)
    if not isinstance(got, (list, tuple)):
        got, wanted = [got], [wanted]
    pairs = [
        (np.asarray(x.numpy()), np.asarray(y.numpy())) for x, y in zip(got, wanted, strict=True)
    ]
    assert all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)
    return [int((~same(x, y)).sum()) for x, y in pairs]


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("target", HERE)
def test_random_programs(target: str, kind: str) -> None:
    # Each program on the host's target, and on one of the others.
    share = range(15) if target == HERE[-1] else range(HERE.index(target), 15, len(HERE) - 1)
    with compiling_for(target):
        for seed in share:
            rng = np.random.default_rng(seed)
            inputs = [values(rng, shape, kind) for shape in SHAPES]
            assert not any(differences(RandomProgram(seed, kind), *inputs)), seed


def whole(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> mge.Tensor:
    """Small multiples of 1/8, whose products have exact sums in any order."""
    return mge.tensor((rng.integers(-24, 25, shape) / 8).astype(SHORT[kind]))


def dense(x: mge.Tensor, w: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
    return F.relu(F.matmul(x, w) + b) * 0.3 - b


def convolved(x: mge.Tensor, w: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
    return F.relu(F.conv2d(x, w, b, padding=1)) * 0.3 - 1.7


def by_channel(x: mge.Tensor, w: mge.Tensor, b: mge.Tensor) -> mge.Tensor:
    return F.relu(F.conv2d(x, w, b, padding=1, groups=16)) * 0.3 - 1.7


def summed(x: mge.Tensor) -> list[mge.Tensor]:
    total, mean = F.sum(x, axis=1, keepdims=True), F.mean(x, axis=0)
    return [x * total + 0.1, (x - mean) * (x - mean), F.floor(total * 0.3)]


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("target", HERE)
def test_sums_round_before_what_follows(target: str, kind: str) -> None:
    rng = np.random.default_rng(7)
    calls = [
        (dense, (64, 70), (70, 96), (96,)),
        (convolved, (1, 16, 9, 9), (32, 16, 3, 3), (1, 32, 1, 1)),
        (by_channel, (1, 16, 9, 9), (16, 1, 1, 3, 3), (1, 16, 1, 1)),
        (summed, (48, 80)),
    ]
    with compiling_for(target):
        for function, *shapes in calls:
            inputs = [whole(rng, shape, kind) for shape in shapes]
            assert not any(differences(function, *inputs)), function
