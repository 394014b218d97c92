"""Fusion as the machine sees it: launches that ran and bytes they moved, with it and without."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.inspect.profile import Profile
from treadle.optimizer import SGD, AdamW


class Attention(M.Module):
    """A causal transformer block and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = M.LayerNorm(32), M.Linear(32, 96), M.Linear(32, 32)
        self.up, self.down, self.head = M.Linear(32, 128), M.Linear(128, 32), M.Linear(32, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        parts = F.split(self.qkv(self.norm(x)), 3, axis=-1)
        q, k, v = (F.expand_dims(part, 1) for part in parts)
        x = x + self.proj(F.squeeze(F.scaled_dot_product_attention(q, k, v, is_causal=True), 1))
        x = x + self.down(F.gelu(self.up(x), approximate="tanh"))
        return self.head(F.mean(x, 1))


class Convolutions(M.Module):
    """Convolution, batch norm, rectifier, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = M.Conv2d(3, 16, 3, 1, 1), M.BatchNorm2d(16)
        self.fc = M.Linear(16 * 16, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(F.flatten(x, 1))


def profile_of(
    make: Callable[[], M.Module], shape: tuple[int, ...], *, fusion: bool
) -> tuple[Profile, float]:
    """A training step measured, and its loss."""
    mge.random.seed(1)
    model = make()
    gm = GradManager().attach(model.parameters())
    adam = isinstance(model, Attention)
    optimizer = AdamW(model.parameters(), 1e-3) if adam else SGD(model.parameters(), 0.1, 0.9)

    @mge.jit.compile(options=mge.jit.Options(fusion=fusion))
    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(model(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    rng = np.random.default_rng(0)
    x = mge.tensor(rng.standard_normal(shape, "float32"))
    y = mge.tensor(rng.integers(0, 10, shape[0]).astype("int32"))
    return step.profile(x, y, repeats=1), step(x, y).item()


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Attention, (8, 16, 32)), (Convolutions, (8, 3, 8, 8))],
    ids=lambda v: str(v),
)
def test_a_fused_step_launches_fewer_kernels_and_moves_fewer_bytes(
    make: Callable[[], M.Module], shape: tuple[int, ...]
) -> None:
    (fused, loss), (single, same) = (profile_of(make, shape, fusion=on) for on in (True, False))
    launches = [sum(k.calls for k in p.kernels) for p in (fused, single)]
    moved = [sum(k.nbytes for k in p.kernels) for p in (fused, single)]
    assert launches[0] < 0.75 * launches[1]
    assert moved[0] < 0.75 * moved[1]
    assert loss == pytest.approx(same, rel=1e-5)
