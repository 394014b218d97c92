"""Trajectories of ten steps equal PyTorch's."""

from typing import Any

import numpy as np
import pytest

from treadle.optimizer import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    OneCycleLR,
    ReduceLROnPlateau,
    RMSprop,
    clip_grad_norm,
)
from treadle.tensor import Parameter, Tensor

pytestmark = pytest.mark.oracle

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (SGD, {"lr": 0.1, "weight_decay": 0.03}),
    "SGD-momentum": (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.03}),
    "SGD-nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.03}),
    "Adam": (Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "Adam-betas": (Adam, {"lr": 0.01, "betas": (0.5, 0.8), "eps": 1e-4}),
    "Adam-without-momentum": (Adam, {"lr": 0.01, "betas": (0.0, 0.9)}),
    "AdamW": (AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "Adam-amsgrad": (Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "AdamW-amsgrad": (AdamW, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "RMSprop": (RMSprop, {"lr": 0.01, "weight_decay": 0.03}),
    "RMSprop-momentum": (RMSprop, {"lr": 0.01, "momentum": 0.9, "alpha": 0.9, "centered": True}),
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


@pytest.mark.parametrize("settings", [{}, {"pct_start": 0.5, "anneal_strategy": "linear"}])
def test_one_cycle(settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    ours = OneCycleLR(SGD([Parameter([1.0])], lr=1.0), 0.3, total_steps=20, **settings)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR
    theirs = cycle(optimizer, 0.3, total_steps=20, cycle_momentum=False, **settings)
    for _ in range(19):
        assert ours.optimizer.param_groups[0]["lr"] == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        ours.step()
        theirs.step()
    with pytest.raises(ValueError, match=r"make total_steps epochs \* len\(loader\)"):
        ours.step()


@pytest.mark.parametrize(
    "settings", [{"patience": 1}, {"mode": "max", "patience": 0, "cooldown": 2, "min_lr": 0.02}]
)
def test_plateaus(settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    ours = ReduceLROnPlateau(SGD([Parameter([1.0])], lr=1.0), factor=0.3, **settings)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, **settings)
    for value in (3.0, 2.0, 2.0, 2.0, 2.5, 1.0, 1.5, 1.5, 1.4, 1.3, 2.6, 2.7, 2.5, 2.5, 2.5, 2.5):
        ours.step(value)
        theirs.step(value)
        now = optimizer.param_groups[0]["lr"]
        assert ours.optimizer.param_groups[0]["lr"] == pytest.approx(now)
    with pytest.raises(TypeError, match="missing value"):
        ours.step()


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
