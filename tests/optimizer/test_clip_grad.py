"""Clipping by joint norm and by value."""

import math

import numpy as np
import pytest

import treadle.jit as jit
from treadle.amp import GradScaler
from treadle.autodiff import GradManager
from treadle.optimizer import clip_grad_norm, clip_grad_value
from treadle.tensor import Parameter, Tensor


def _params() -> list[Parameter]:
    params = [Parameter([0.0, 0.0]), Parameter(0.0), Parameter([1.0])]
    params[0].grad = Tensor([3.0, -4.0])
    params[1].grad = Tensor(12.0)
    return params


@pytest.mark.parametrize(
    ("order", "norm"),
    [(2.0, 13.0), (1.0, 19.0), (3.0, (27 + 64 + 1728) ** (1 / 3)), (math.inf, 12.0)],
)
def test_gradients_are_scaled_together(order: float, norm: float) -> None:
    params = _params()
    handle = params[0].grad
    found = clip_grad_norm(params, max_norm=1.0, ord=order)
    assert isinstance(found, Tensor)
    assert found.shape == ()
    np.testing.assert_allclose(found.item(), norm, rtol=1e-6)
    assert params[0].grad is handle
    np.testing.assert_allclose(handle.numpy(), np.array([3.0, -4.0]) / norm, rtol=1e-5)
    np.testing.assert_allclose(params[1].grad.item(), 12.0 / norm, rtol=1e-5)
    assert params[2].grad is None


def test_small_gradients_stay_as_they_are() -> None:
    params = _params()
    clip_grad_norm(params, max_norm=100.0)
    np.testing.assert_equal(params[0].grad.numpy(), [3.0, -4.0])


def test_half_precision_norms_do_not_overflow() -> None:
    param = Parameter(np.zeros(4), dtype="float16")
    param.grad = Tensor(np.full(4, 300.0), dtype="float16")
    found = clip_grad_norm(param, max_norm=1.0)
    assert found.item() == 600.0
    assert param.grad.dtype == np.float16
    np.testing.assert_allclose(param.grad.numpy(), np.full(4, 0.5), rtol=1e-3)


def test_no_gradients_give_zero() -> None:
    assert clip_grad_norm([Parameter([1.0])], 1.0).item() == 0.0
    assert clip_grad_norm(iter([]), 1.0).item() == 0.0


def test_orders_that_are_no_norm() -> None:
    with pytest.raises(ValueError, match="ord must be positive"):
        clip_grad_norm(_params(), 1.0, ord=0)


def test_values_are_clamped() -> None:
    params = _params()
    handle = params[0].grad
    clip_grad_value(params, lower=-1.0, upper=2.0)
    assert params[0].grad is handle
    np.testing.assert_equal(handle.numpy(), [2.0, -1.0])
    assert params[1].grad.item() == 2.0
    assert params[2].grad is None
    single = _params()[1]
    clip_grad_value(single, 0.0, 1.0)
    assert single.grad.item() == 1.0


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_that_are_equal_are_changed_once_each(compiled: bool) -> None:
    # Addition passes one cotangent on to both operands: one tensor, until each gets its handle.
    x, y, z = Parameter([1.0, 2.0]), Parameter([3.0, 4.0]), Parameter([5.0, 6.0])
    manager, seed = GradManager().attach([x, y, z]), Tensor([3.0, 3.0])

    def backward(seed: Tensor) -> None:
        with manager:
            manager.backward(x + y + z, seed)

    def clip(seed: Tensor) -> None:
        backward(seed)
        clip_grad_norm([x, y, z], math.sqrt(6.0))

    def unscale(seed: Tensor) -> None:
        backward(seed)
        GradScaler(init_scale=4.0, growth_interval=0).unscale(manager.attached_tensors())

    for step, wanted in ((clip, 1.0), (unscale, 0.75)):
        run = jit.compile(step) if compiled else step
        for _ in range(2):
            for tensor in (x, y, z):
                tensor.grad = None
            run(seed)
            for tensor in (x, y, z):
                np.testing.assert_allclose(tensor.grad.numpy(), [wanted, wanted], rtol=1e-5)
            np.testing.assert_equal(seed.numpy(), [3.0, 3.0])
