"""Training in mixed precision: loss curves beside float32's, and the kernels of programs."""

from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.jit as jit
import treadle.module as M
from treadle.amp import GradScaler, autocast
from treadle.autodiff import GradManager
from treadle.optimizer import SGD
from treadle.tensor import Tensor


class Images(M.Module):
    """A small network of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = M.Sequential(
            *(M.Conv2d(3, 8, 3, padding=1), M.BatchNorm2d(8), M.ReLU(), M.MaxPool2d(2)),
            *(M.Conv2d(8, 16, 3, padding=1), M.ReLU(), M.AdaptiveAvgPool2d(1)),
        )
        self.head = M.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.flatten(self.layers(x), 1))


def _dense() -> M.Module:
    return M.Sequential(M.Linear(192, 64), M.ReLU(), M.Linear(64, 4))


def _curve(model: str, low: str | None, *, compiled: bool) -> tuple[np.ndarray, Any]:
    mge.random.seed(3)
    net = Images() if model == "images" else _dense()
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = GradScaler(init_scale=256.0) if low == "float16" else None

    def step(x: Tensor, y: Tensor) -> Tensor:
        with autocast(low is not None, low or "float16"), manager:
            loss = F.nn.cross_entropy(net(x), y)
            if scaler is None:
                manager.backward(loss)
            else:
                scaler.backward(manager, loss)
        optimizer.step().clear_grad()
        return loss

    run: Any = jit.compile(step) if compiled else step
    rng = np.random.default_rng(0)
    shape = (3, 8, 8) if model == "images" else (192,)
    x = rng.normal(size=(4, 16, *shape)).astype("float32")
    y = (np.abs(x).reshape(4, 16, -1).sum(2)).astype(np.int32) % 4
    losses = [run(Tensor(x[i % 4]), Tensor(y[i % 4])).item() for i in range(20)]
    return np.array(losses), run


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("low", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", ["images", "dense"])
def test_loss_follows_that_of_float32(model: str, low: str, compiled: bool) -> None:
    wide, _ = _curve(model, None, compiled=False)
    narrow, run = _curve(model, low, compiled=compiled)
    assert wide[-4:].mean() < wide[:4].mean()
    np.testing.assert_allclose(narrow, wide, atol=0.03 if low == "bfloat16" else 0.005)
    if compiled:
        assert _contractions(run) == {low}


def _contractions(run: Any) -> set[str]:
    """Element types of what a program's contractions, forward and backward, give."""
    ops = run.explain(form="json")["ops"]
    found = {o["result"].split("[")[0] for o in ops if o["name"].startswith(("matmul", "conv"))}
    assert all(o["engine"] == "cpu" for o in ops if o["name"].startswith(("matmul", "conv")))
    return found


def test_products_of_a_step_run_on_kernels_of_the_low_type() -> None:
    _, run = _curve("dense", "bfloat16", compiled=True)
    groups = [g for g in run.explain(form="json")["groups"] if g["kind"] == "contraction"]
    assert len(groups) == 5  # Two forward, and of four gradients that of the input is not wanted.
    for group in groups:
        assert all("bfloat16" in kernel for kernel, _ in group["kernels"])
