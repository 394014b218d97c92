"""Initializers: statistics, fans, gains, and reproducibility from one seed."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle.module as M
from treadle import random
from treadle.module import init
from treadle.tensor import Parameter, Tensor


def _weight(*shape: int, dtype: str = "float32") -> Parameter:
    return Parameter(np.zeros(shape), dtype=dtype)


def test_constants_keep_shape_type_and_handle() -> None:
    for dtype in ("float16", "float64", "int32"):
        tensor = Tensor(np.arange(6).reshape(2, 3), dtype=dtype)
        init.fill_(tensor, 3)
        np.testing.assert_equal(tensor.numpy(), np.full((2, 3), 3))
        init.ones_(tensor)
        assert tensor.numpy().sum() == 6
        init.zeros_(tensor)
        assert tensor.numpy().sum() == 0
        assert str(tensor.dtype) == dtype


UNIFORM: dict[str, tuple[Callable[[Tensor], Any], float, float]] = {
    "uniform": (lambda t: init.uniform_(t, -1.0, 3.0), -1.0, 3.0),
    "xavier": (
        lambda t: init.xavier_uniform_(t, gain=2.0),
        -2 * math.sqrt(6 / 300),
        2 * math.sqrt(6 / 300),
    ),
    "msra": (
        lambda t: init.msra_uniform_(t, mode="fan_out", nonlinearity="relu"),
        -math.sqrt(6 / 200),
        math.sqrt(6 / 200),
    ),
}
NORMAL: dict[str, tuple[Callable[[Tensor], Any], float, float]] = {
    "normal": (lambda t: init.normal_(t, 1.0, 0.5), 1.0, 0.5),
    "xavier": (lambda t: init.xavier_normal_(t), 0.0, math.sqrt(2 / 300)),
    "msra": (lambda t: init.msra_normal_(t, a=1.0), 0.0, math.sqrt(1 / 100)),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform(name: str) -> None:
    fill, low, high = UNIFORM[name]
    random.seed(1)
    weight = _weight(200, 100)
    fill(weight)
    values = weight.numpy()
    assert low <= values.min()
    assert values.max() <= high
    width = high - low
    np.testing.assert_allclose(values.mean(), (low + high) / 2, atol=0.01 * width)
    np.testing.assert_allclose(values.std(), width / math.sqrt(12), rtol=0.02)


@pytest.mark.parametrize("name", NORMAL)
def test_normal(name: str) -> None:
    fill, mean, std = NORMAL[name]
    random.seed(1)
    weight = _weight(200, 100)
    fill(weight)
    np.testing.assert_allclose(weight.numpy().mean(), mean, atol=0.03 * std)
    np.testing.assert_allclose(weight.numpy().std(), std, rtol=0.03)


def test_random_ones_keep_shape_type_and_handle() -> None:
    for dtype in ("float16", "bfloat16", "float64"):
        for shape in ((2, 3), (), (1,), (0, 2)):
            weight = _weight(*shape, dtype=dtype)
            init.normal_(weight)
            assert (type(weight), weight.shape, str(weight.dtype)) == (Parameter, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "fans"),
    [
        ((8, 4), (4, 8)),
        ((8, 4, 3), (12, 24)),
        ((8, 4, 3, 2), (24, 48)),
        ((2, 4, 3, 5, 5), (75, 100)),
    ],
)
def test_fans(shape: tuple[int, ...], fans: tuple[int, int]) -> None:
    assert init.calculate_fan_in_and_fan_out(_weight(*shape)) == fans
    assert init.calculate_correct_fan(_weight(*shape), "FAN_OUT") == fans[1]


def test_fans_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        init.calculate_fan_in_and_fan_out(_weight(8))
    with pytest.raises(ValueError, match="Mode fan_up not supported"):
        init.calculate_correct_fan(_weight(8, 4), "fan_up")


def test_gains() -> None:
    gains = {
        "linear": 1.0,
        "conv2d": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
    }
    for name, gain in gains.items():
        assert math.isclose(init.calculate_gain(name), gain)
    assert init.calculate_gain("leaky_relu", 1.0) == 1.0
    with pytest.raises(ValueError, match="not a valid number"):
        init.calculate_gain("leaky_relu", True)
    with pytest.raises(ValueError, match="Unsupported nonlinearity"):
        init.calculate_gain("swish")


def test_one_seed_reproduces_a_model() -> None:
    def build() -> M.Module:
        return M.Sequential(M.Conv2d(3, 4, 3), M.Linear(4, 5), M.Embedding(6, 7))

    random.seed(42)
    one = build().state_dict()
    random.seed(42)
    two = build().state_dict()
    three = build().state_dict()
    for key, value in one.items():
        np.testing.assert_equal(two[key], value)
        if not key.endswith("bias"):
            assert not np.array_equal(three[key], value)


@pytest.mark.parametrize(
    ("layer", "std"),
    [
        (M.Linear(400, 100), math.sqrt(1 / 400)),
        (M.Conv2d(32, 64, 3), math.sqrt(1 / (32 * 9))),
        (M.Conv2d(32, 64, 3, groups=4), math.sqrt(1 / (32 * 9))),
        (M.Conv1d(64, 64, 5), math.sqrt(1 / (64 * 5))),
        (M.ConvTranspose2d(64, 32, 3), math.sqrt(1 / (32 * 9))),
        (M.Embedding(100, 100), 1.0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, M.Module) else "",
)
def test_first_weights_of_layers(layer: Any, std: float) -> None:
    np.testing.assert_allclose(layer.weight.numpy().std(), std, rtol=0.05)
    if not isinstance(layer, M.Embedding):
        assert not layer.bias.numpy().any()
