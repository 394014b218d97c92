"""Layers give PyTorch's value and gradients when they hold PyTorch's parameters."""

from typing import Any

import numpy as np
import pytest

import treadle.module as M
from treadle.autodiff import GradManager
from treadle.tensor import Tensor

pytestmark = pytest.mark.oracle

IMAGE = (2, 4, 6, 7)
# Name: our layer, PyTorch's as an expression over torch.nn, input shape.
CASES: dict[str, tuple[M.Module, str, tuple[int, ...]]] = {
    "linear": (M.Linear(4, 3), "Linear(4, 3)", (2, 5, 4)),
    "conv1d": (M.Conv1d(4, 6, 3, 2, 1), "Conv1d(4, 6, 3, 2, 1)", (2, 4, 9)),
    "conv1d_groups": (
        M.Conv1d(4, 6, 3, groups=2, dilation=2),
        "Conv1d(4, 6, 3, groups=2, dilation=2)",
        (2, 4, 9),
    ),
    "conv2d": (
        M.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2)),
        "Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2))",
        IMAGE,
    ),
    "conv2d_groups": (
        M.Conv2d(4, 6, 3, padding=1, groups=2),
        "Conv2d(4, 6, 3, padding=1, groups=2)",
        IMAGE,
    ),
    "conv2d_reflect": (
        M.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        "Conv2d(4, 6, 3, padding=1, padding_mode='reflect')",
        IMAGE,
    ),
    "conv3d": (M.Conv3d(2, 3, 2, padding=1), "Conv3d(2, 3, 2, padding=1)", (1, 2, 3, 4, 5)),
    "conv_transpose2d": (
        M.ConvTranspose2d(4, 6, 3, 2, 1, 1),
        "ConvTranspose2d(4, 6, 3, 2, 1, 1)",
        IMAGE,
    ),
    "conv_transpose2d_groups": (
        M.ConvTranspose2d(4, 6, 3, 2, groups=2),
        "ConvTranspose2d(4, 6, 3, 2, groups=2)",
        IMAGE,
    ),
    "conv_transpose3d": (
        M.ConvTranspose3d(2, 3, 2, 2),
        "ConvTranspose3d(2, 3, 2, 2)",
        (1, 2, 3, 2, 2),
    ),
    "max_pool2d": (M.MaxPool2d(3, 2, 1), "MaxPool2d(3, 2, 1)", IMAGE),
    "avg_pool2d": (
        M.AvgPool2d(3, 2, 1),
        "AvgPool2d(3, 2, 1, count_include_pad=False)",
        IMAGE,
    ),
    "adaptive_avg_pool2d": (M.AdaptiveAvgPool2d((3, 2)), "AdaptiveAvgPool2d((3, 2))", IMAGE),
    "adaptive_max_pool2d": (M.AdaptiveMaxPool2d((3, 2)), "AdaptiveMaxPool2d((3, 2))", IMAGE),
    "batch_norm1d": (M.BatchNorm1d(4), "BatchNorm1d(4)", (5, 4, 3)),
    "batch_norm2d": (M.BatchNorm2d(4), "BatchNorm2d(4)", IMAGE),
    "layer_norm": (M.LayerNorm((6, 7)), "LayerNorm((6, 7))", IMAGE),
    "group_norm": (M.GroupNorm(2, 4), "GroupNorm(2, 4)", IMAGE),
    "instance_norm": (M.InstanceNorm(4), "InstanceNorm2d(4, affine=True)", IMAGE),
    "local_response_norm": (
        M.LocalResponseNorm(3, 2.0, 0.1, 0.75),
        # PyTorch divides alpha by the window.
        "LocalResponseNorm(3, 0.3, 0.75, 2.0)",
        IMAGE,
    ),
    "softmax": (M.Softmax(1), "Softmax(1)", IMAGE),
    "sigmoid": (M.Sigmoid(), "Sigmoid()", IMAGE),
    "silu": (M.SiLU(), "SiLU()", IMAGE),
    "gelu": (M.GELU(), "GELU()", IMAGE),
    "relu": (M.ReLU(), "ReLU()", IMAGE),
    "leaky_relu": (M.LeakyReLU(0.3), "LeakyReLU(0.3)", IMAGE),
    "prelu": (M.PReLU(4), "PReLU(4)", IMAGE),
    "elu": (M.ELU(0.7), "ELU(0.7)", IMAGE),
    "tanh": (M.Tanh(), "Tanh()", IMAGE),
    "relu6": (M.ReLU6(), "ReLU6()", IMAGE),
    "softplus": (M.Softplus(), "Softplus()", IMAGE),
    "hswish": (M.HSwish(), "Hardswish()", IMAGE),
    "hsigmoid": (M.HSigmoid(), "Hardsigmoid()", IMAGE),
    "log_softmax": (M.LogSoftmax(1), "LogSoftmax(1)", IMAGE),
    "flatten": (M.Flatten(1, 2), "Flatten(1, 2)", IMAGE),
    "batch_norm3d": (M.BatchNorm3d(4), "BatchNorm3d(4)", (2, 4, 3, 2, 3)),
    "pixel_shuffle": (M.PixelShuffle(2), "PixelShuffle(2)", IMAGE),
}


def _copy_parameters(ours: M.Module, theirs: Any) -> None:
    """Random values into both; only the shapes differ."""
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    rng = np.random.default_rng(7)
    held = dict(theirs.named_parameters())
    for name, mine in ours.named_parameters():
        values = rng.normal(size=mine.shape).astype("float32")
        mine._reset(Tensor(values))
        held[name].data = torch.from_numpy(values.reshape(held[name].shape).copy())


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name: str) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    ours, expression, shape = CASES[name]
    theirs = eval(f"torch.nn.{expression}", {"torch": torch})
    _copy_parameters(ours, theirs)
    rng = np.random.default_rng(3)
    data = rng.normal(size=shape).astype("float32")
    x, y = Tensor(data), torch.from_numpy(data.copy()).requires_grad_()
    expected = theirs(y)
    dy = rng.normal(size=tuple(expected.shape)).astype("float32")
    expected.backward(torch.from_numpy(dy))
    manager = GradManager().attach([x, *ours.parameters()])
    with manager:
        found = ours(x)
        manager.backward(found, Tensor(dy))
    close = {"rtol": 2e-4, "atol": 2e-5}
    np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), **close)
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), **close)
    held = dict(theirs.named_parameters())
    for key, mine in ours.named_parameters():
        reference = held[key].grad.numpy().reshape(mine.shape)
        np.testing.assert_allclose(mine.grad.numpy(), reference, rtol=2e-4, atol=1e-4)


# Name: our loss, PyTorch's, whether labels are class numbers or lie between 0 and 1.
LOSSES: dict[str, tuple[Any, str, str]] = {
    "cross entropy": (M.CrossEntropyLoss, "CrossEntropyLoss({})", "classes"),
    "mse": (M.MSELoss, "MSELoss({})", "numbers"),
    "l1": (M.L1Loss, "L1Loss({})", "numbers"),
    "huber": (lambda r: M.HuberLoss(r, 0.7), "HuberLoss({}, delta=0.7)", "numbers"),
    "smooth l1": (lambda r: M.SmoothL1Loss(r, 0.7), "SmoothL1Loss({}, beta=0.7)", "numbers"),
    "bce with logits": (M.BCEWithLogitsLoss, "BCEWithLogitsLoss({})", "shares"),
    "bce": (M.BCELoss, "BCELoss({})", "shares of shares"),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, reduction: str) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    make, expression, kind = LOSSES[name]
    theirs = eval(f"torch.nn.{expression.format(f'reduction={reduction!r}')}", {"torch": torch})
    rng = np.random.default_rng(3)
    data = rng.normal(size=(4, 3, 2)).astype("float32")
    label = rng.normal(size=data.shape).astype("float32")
    if "shares" in kind:
        label = 1 / (1 + np.exp(-label))
        data = 1 / (1 + np.exp(-data)) if kind == "shares of shares" else data
    if kind == "classes":
        label = rng.integers(3, size=(4, 2))
    x, y = Tensor(data), torch.from_numpy(data.copy()).requires_grad_()
    expected = theirs(y, torch.from_numpy(label))
    expected.sum().backward()
    manager = GradManager().attach(x)
    with manager:
        found = make(reduction)(x, Tensor(label))
        manager.backward(found.sum())
    np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_running_statistics(momentum: float) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    ours = M.BatchNorm2d(4, momentum=momentum)
    theirs = torch.nn.BatchNorm2d(4, momentum=1 - momentum)
    rng = np.random.default_rng(3)
    for _ in range(3):
        data = rng.normal(size=IMAGE).astype("float32")
        ours(Tensor(data))
        theirs(torch.from_numpy(data))
    state = ours.state_dict()
    np.testing.assert_allclose(state["running_mean"], theirs.running_mean.numpy(), rtol=1e-4)
    np.testing.assert_allclose(state["running_var"], theirs.running_var.numpy(), rtol=1e-4)
    ours.eval()
    theirs.eval()
    np.testing.assert_allclose(
        ours(Tensor(data)).numpy(), theirs(torch.from_numpy(data)).detach().numpy(), atol=1e-5
    )
