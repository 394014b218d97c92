"""Batch normalization: which statistics are used, and how the running ones move."""

from typing import Any

import numpy as np
import pytest

from treadle.autodiff import GradManager
from treadle.base.errors import ShapeError
from treadle.module import BatchNorm1d, BatchNorm2d
from treadle.tensor import Tensor

RNG = np.random.default_rng(0)
DATA = RNG.normal(2.0, 3.0, (4, 3, 5, 5)).astype("float32")
AXES = (0, 2, 3)
ROW = (1, 3, 1, 1)


def _normalized(x: Any, mean: Any, var: Any, eps: float = 1e-5) -> Any:
    return (x - mean.reshape(ROW)) / np.sqrt(var.reshape(ROW) + eps)


def test_training_uses_the_batch_and_moves_the_running_values() -> None:
    norm = BatchNorm2d(3, momentum=0.9)
    handle = norm.running_mean
    out = norm(Tensor(DATA))
    mean, var = DATA.mean(AXES), DATA.var(AXES)
    np.testing.assert_allclose(out.numpy(), _normalized(DATA, mean, var), rtol=1e-4, atol=1e-5)
    # Momentum is the share of the old value; the running variance is the unbiased one.
    assert norm.running_mean is handle
    np.testing.assert_allclose(handle.numpy().reshape(-1), 0.1 * mean, rtol=1e-4)
    unbiased = DATA.var(AXES, ddof=1)
    expected = 0.9 + 0.1 * unbiased
    np.testing.assert_allclose(norm.running_var.numpy().reshape(-1), expected, rtol=1e-4)
    assert handle.shape == ROW


def test_evaluation_uses_the_running_values_and_leaves_them() -> None:
    norm = BatchNorm2d(3)
    mean, var = np.array([1.0, 2.0, 3.0], np.float32), np.array([4.0, 1.0, 0.5], np.float32)
    state = {**norm.state_dict(), "running_mean": mean, "running_var": var}
    norm.load_state_dict(state)
    norm.eval()
    out = norm(Tensor(DATA))
    np.testing.assert_allclose(out.numpy(), _normalized(DATA, mean, var), rtol=1e-4, atol=1e-5)
    np.testing.assert_equal(norm.running_mean.numpy().reshape(-1), mean)


def test_frozen_uses_the_running_values_in_training_and_learns_nothing() -> None:
    norm = BatchNorm2d(3, freeze=True)
    x = Tensor(DATA)
    manager = GradManager().attach([*norm.parameters(), x])
    with manager:
        out = norm(x)
        manager.backward(out.sum())
    np.testing.assert_allclose(out.numpy(), DATA / np.sqrt(1 + 1e-5), rtol=1e-5)
    assert norm.weight.grad is None
    assert norm.bias.grad is None
    np.testing.assert_allclose(x.grad.numpy(), 1 / np.sqrt(1 + 1e-5), rtol=1e-5)
    np.testing.assert_equal(norm.running_mean.numpy(), np.zeros(ROW))


def test_never_tracked_uses_the_batch_in_evaluation_too() -> None:
    norm = BatchNorm2d(3, track_running_stats=False)
    norm.track_running_stats = True
    with pytest.raises(ValueError, match="without running statistics"):
        norm(Tensor(np.ones((2, 3, 2, 2), np.float32)))
    norm.track_running_stats = False
    assert list(norm.buffers()) == []
    for _ in range(2):
        out = norm(Tensor(DATA)).numpy()
        np.testing.assert_allclose(out.mean(AXES), np.zeros(3), atol=1e-5)
        norm.eval()


def test_tracking_switched_off_leaves_the_running_values() -> None:
    norm = BatchNorm2d(3)
    norm.track_running_stats = False
    out = norm(Tensor(DATA)).numpy()
    np.testing.assert_allclose(out.mean(AXES), np.zeros(3), atol=1e-5)
    np.testing.assert_equal(norm.running_mean.numpy(), np.zeros(ROW))


def test_without_affine_there_are_no_parameters() -> None:
    norm = BatchNorm2d(3, affine=False)
    assert list(norm.parameters()) == []
    assert sorted(norm.state_dict()) == ["running_mean", "running_var"]
    np.testing.assert_allclose(norm(Tensor(DATA)).numpy().std(AXES), np.ones(3), rtol=1e-4)


@pytest.mark.parametrize("shape", [(8, 3), (8, 3, 4)])
def test_one_dimensional_inputs_keep_their_shape(shape: tuple[int, ...]) -> None:
    norm = BatchNorm1d(3)
    x = RNG.normal(size=shape).astype("float32")
    out = norm(Tensor(x)).numpy()
    assert out.shape == shape
    axes = (0,) if len(shape) == 2 else (0, 2)
    np.testing.assert_allclose(out.mean(axes), np.zeros(3), atol=1e-5)
    np.testing.assert_allclose(out.std(axes), np.ones(3), rtol=1e-3)


def test_other_ranks_are_refused() -> None:
    with pytest.raises(ShapeError, match="BatchNorm1d: expects 2 or 3 axes, got 4"):
        BatchNorm1d(3)(Tensor(DATA))
    with pytest.raises(ShapeError, match="BatchNorm2d: expects 4 axes, got 2"):
        BatchNorm2d(3)(Tensor(DATA[..., 0, 0]))


def test_reset() -> None:
    norm = BatchNorm2d(3)
    norm(Tensor(DATA))
    norm.weight += 1.0
    norm.reset_parameters()
    for name, value in norm.state_dict().items():
        wanted = 0 if name in ("bias", "running_mean") else 1
        np.testing.assert_equal(value, np.full(3, wanted, np.float32))


def test_statistics_keep_nothing_of_the_recording_alive() -> None:
    norm = BatchNorm2d(3)
    manager = GradManager().attach(norm.parameters())
    for _ in range(2):
        with manager:
            manager.backward(norm(Tensor(DATA)).sum())
    trace = norm.running_mean._trace
    assert trace is None or not trace[0].alive
