"""Whole training steps on the OpenCL device: the CPU's curve, on kernels as fused as the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.optimizer import SGD, Adam

RNG = np.random.default_rng(3)
STEPS = 6


def weights(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [(RNG.standard_normal(s) / np.sqrt(max(s[-1], 1))).astype(np.float32) for s in shapes]


def mlp(x: Any, w: list[Any]) -> Any:
    x = F.relu(F.matmul(x, w[0]) + w[1])
    return F.matmul(x, w[2]) + w[3]


def cnn(x: Any, w: list[Any]) -> Any:
    x = F.max_pool2d(F.relu(F.conv2d(x, w[0], w[1], padding=1)), 2)
    x = F.flatten(F.relu(F.conv2d(x, w[2], stride=2)), 1)
    return F.matmul(x, w[3]) + w[4]


def norm(x: Any, scale: Any, shift: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), True, scale, shift)


def heads(x: Any) -> Any:
    batch, time, width = x.shape
    return F.transpose(x.reshape(batch, time, 2, width // 2), (0, 2, 1, 3))


def transformer(x: Any, w: list[Any]) -> Any:
    batch, time = x.shape
    h = F.embedding(x, w[0]) + w[1]
    q, k, v = (heads(t) for t in F.split(F.matmul(norm(h, w[2], w[3]), w[4]), 3, axis=-1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    h = h + F.matmul(F.transpose(mixed, (0, 2, 1, 3)).reshape(batch, time, -1), w[5])
    h = h + F.matmul(F.gelu(F.matmul(norm(h, w[6], w[7]), w[8]), approximate="tanh"), w[9])
    return F.matmul(h, w[10]).reshape(-1, w[10].shape[1])


TOKENS = RNG.integers(0, 12, (3, 9)).astype("int32")
MODELS: dict[str, tuple[Any, Any, Any, list[np.ndarray], Any]] = {
    "mlp": (
        mlp,
        RNG.standard_normal((16, 20)).astype("float32"),
        RNG.integers(0, 5, 16).astype("int32"),
        weights((20, 24), (24,), (24, 5), (5,)),
        lambda p: Adam(p, lr=1e-2),
    ),
    "cnn": (
        cnn,
        RNG.standard_normal((4, 3, 10, 10)).astype("float32"),
        RNG.integers(0, 5, 4).astype("int32"),
        weights((6, 3, 3, 3), (1, 6, 1, 1), (8, 6, 3, 3), (32, 5), (5,)),
        lambda p: SGD(p, lr=5e-2, momentum=0.9),
    ),
    "transformer": (
        transformer,
        TOKENS[:, :8],
        TOKENS[:, 1:].reshape(-1),
        weights(
            (12, 16), (8, 16), (16,), (16,), (16, 48), (16, 16), (16,), (16,), (16, 32), (32, 16),
            (16, 12),
        ),
        lambda p: SGD(p, lr=1e-1, momentum=0.9),
    ),
}  # fmt: skip


def trained(name: str, device: str) -> tuple[list[float], Any]:
    """Losses of a few steps, and what the program cost."""
    forward, x, y, arrays, optimize = MODELS[name]
    parameters = [mge.Parameter(a, device=device) for a in arrays]
    optimizer = optimize(parameters)
    manager = GradManager().attach(parameters)

    def update(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = F.loss.cross_entropy(forward(x, parameters), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    step: Callable[..., Any] = mge.jit.compile(update)
    given = mge.tensor(x, device=device), mge.tensor(y, device=device)
    return [float(step(*given).item()) for _ in range(STEPS)], step.counters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.long
def test_a_step_is_the_cpus(name: str) -> None:
    expected, on_host = trained(name, "cpu0")
    found, on_device = trained(name, "opencl0")
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert expected[-1] < expected[0]
    assert on_device.launches <= 1.5 * on_host.launches
    assert on_device.entries == STEPS, "some op was left to the host"
