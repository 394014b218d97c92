"""Trajectories of ten steps equal PyTorch's."""

from typing import Any

import numpy as np
import pytest

from treadle.optimizer import SGD, Adadelta, Adagrad, Adam, AdamW, clip_grad_norm
from treadle.tensor import Parameter, Tensor

pytestmark = pytest.mark.oracle

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (SGD, {"lr": 0.1, "weight_decay": 0.03}),
    "SGD-momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.03}),
    "SGD-nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.03}),
    "Adam": (Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "Adam-betas": (Adam, {"lr": 0.01, "betas": (0.5, 0.8), "eps": 1e-4}),
    "AdamW": (AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    # PyTorch adds eps outside the root here, which only small values tell apart.
    "Adagrad": (Adagrad, {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.03}),
    "Adadelta": (Adadelta, {"lr": 0.5, "rho": 0.8, "weight_decay": 0.03}),
}


def _gradients(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape) + 0.5 for _ in range(10)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_trajectory(name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    make, hyper = CASES[name]
    start = np.random.default_rng(1).normal(size=(3, 4)).astype(dtype)
    ours = Parameter(start, dtype=dtype)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = make([ours], **hyper)
    reference = getattr(torch.optim, make.__name__)([theirs], **hyper)
    tolerance = 2e-5 if dtype == "float32" else 1e-9
    for grad in _gradients(start.shape):
        ours.grad = Tensor(grad.astype(dtype), dtype=dtype)
        theirs.grad = torch.from_numpy(grad.astype(dtype))
        optimizer.step()
        reference.step()
        np.testing.assert_allclose(
            ours.numpy(), theirs.detach().numpy(), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("order", [1.0, 2.0, 3.5, float("inf")])
def test_clipping(order: float) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    grads = [g.astype("float32") for g in _gradients((2, 3))]
    ours = [Parameter(np.zeros_like(g)) for g in grads]
    theirs = [torch.nn.Parameter(torch.zeros(2, 3)) for _ in grads]
    for p, q, g in zip(ours, theirs, grads, strict=True):
        p.grad, q.grad = Tensor(g), torch.from_numpy(g.copy())
    norm = clip_grad_norm(ours, 1.5, ord=order)
    reference = torch.nn.utils.clip_grad_norm_(theirs, 1.5, norm_type=order)
    np.testing.assert_allclose(norm.item(), reference.item(), rtol=1e-5)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4)
