"""Compiled training steps follow PyTorch's for 50 steps from the same weights and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.optimizer import SGD, Adam, AdamW

torch = pytest.importorskip("torch", reason="compares with PyTorch")
pytestmark = pytest.mark.oracle
STEPS = 50
VOCAB, DIM, HEADS, TIME = 19, 32, 4, 12


class OwnMLP(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = M.Linear(20, 33), M.Linear(33, 17), M.Linear(17, 5)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


class TorchMLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.a, self.b, self.c = linear(20, 33), linear(33, 17), linear(17, 5)

    def forward(self, x: Any) -> Any:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


class OwnLeNet(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = M.Conv2d(1, 6, 5, padding=2), M.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = M.Linear(16 * 5 * 5, 40), M.Linear(40, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.flatten(F.max_pool2d(F.relu(self.c2(x)), 2), 1)
        return self.fc2(F.relu(self.fc1(x)))


class TorchLeNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(16 * 5 * 5, 40), nn.Linear(40, 10)

    def forward(self, x: Any) -> Any:
        pool = torch.nn.functional.max_pool2d
        x = pool(torch.relu(self.c1(x)), 2)
        x = pool(torch.relu(self.c2(x)), 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


class OwnGPT(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = M.Embedding(VOCAB, DIM), M.Embedding(TIME, DIM)
        self.ln1, self.ln2, self.ln = M.LayerNorm(DIM), M.LayerNorm(DIM), M.LayerNorm(DIM)
        self.qkv, self.proj = M.Linear(DIM, 3 * DIM), M.Linear(DIM, DIM)
        self.up, self.dn = M.Linear(DIM, 4 * DIM), M.Linear(4 * DIM, DIM)
        self.head = M.Linear(DIM, VOCAB, bias=False)

    def _heads(self, t: mge.Tensor) -> mge.Tensor:
        return F.transpose(t.reshape(t.shape[0], TIME, HEADS, DIM // HEADS), (0, 2, 1, 3))

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        h = self.tok(x) + self.pos.weight[:TIME]
        q, k, v = (self._heads(t) for t in F.split(self.qkv(self.ln1(h)), 3, axis=-1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.proj(F.transpose(a, (0, 2, 1, 3)).reshape(h.shape))
        h = h + self.dn(F.gelu(self.up(self.ln2(h)), approximate="tanh"))
        return self.head(self.ln(h)).reshape(-1, VOCAB)


class TorchGPT(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(TIME, DIM)
        self.ln1, self.ln2, self.ln = nn.LayerNorm(DIM), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.dn = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def _heads(self, t: Any) -> Any:
        return t.view(t.shape[0], TIME, HEADS, -1).transpose(1, 2)

    def forward(self, x: Any) -> Any:
        fn = torch.nn.functional
        h = self.tok(x) + self.pos.weight[:TIME]
        q, k, v = (self._heads(t) for t in self.qkv(self.ln1(h)).chunk(3, -1))
        a = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.proj(a.transpose(1, 2).flatten(2))
        h = h + self.dn(fn.gelu(self.up(self.ln2(h)), approximate="tanh"))
        return self.head(self.ln(h)).flatten(0, 1)


Batch = tuple[np.ndarray, np.ndarray]


def rows(rng: np.random.Generator) -> Batch:
    return rng.standard_normal((13, 20), "float32"), rng.integers(0, 5, 13)


def images(rng: np.random.Generator) -> Batch:
    return rng.standard_normal((6, 1, 28, 28), "float32"), rng.integers(0, 10, 6)


def tokens(rng: np.random.Generator) -> Batch:
    text = rng.integers(0, VOCAB, (4, TIME + 1))
    return text[:, :-1], text[:, 1:].reshape(-1)


CASES: dict[str, tuple[Any, Any, Callable[[np.random.Generator], Batch], Any, Any]] = {
    "mlp": (
        OwnMLP,
        TorchMLP,
        rows,
        lambda p: Adam(p, 1e-2),
        lambda p: torch.optim.Adam(p, 1e-2),
    ),
    "lenet": (
        OwnLeNet,
        TorchLeNet,
        images,
        lambda p: SGD(p, 0.02, momentum=0.9),
        lambda p: torch.optim.SGD(p, 0.02, momentum=0.9),
    ),
    "gpt": (
        OwnGPT,
        TorchGPT,
        tokens,
        lambda p: AdamW(p, 3e-3, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 3e-3, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_compiled_training_follows_pytorch(name: str) -> None:
    own, theirs, draw, own_optimizer, torch_optimizer = CASES[name]
    torch.manual_seed(1)
    reference, model = theirs(), own()
    shapes = {k: v.shape for k, v in model.state_dict().items()}
    model.load_state_dict(
        {k: v.numpy().reshape(shapes[k]) for k, v in reference.state_dict().items()}
    )
    optimizer = own_optimizer(model.parameters())
    their_optimizer = torch_optimizer(reference.parameters())
    gm = GradManager().attach(model.parameters())

    @mge.jit.compile
    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(model(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    rng = np.random.default_rng(0)
    batches = [draw(rng) for _ in range(5)]
    own_losses, their_losses = [], []
    for i in range(STEPS):
        x, y = batches[i % 5]
        kind = "int32" if x.dtype.kind == "i" else "float32"
        own_losses.append(step(mge.tensor(x.astype(kind)), mge.tensor(y.astype("int32"))).item())
        their_optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(reference(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        their_optimizer.step()
        their_losses.append(loss.item())
    assert len(step.variants) == 1
    assert own_losses[-1] < own_losses[0]
    np.testing.assert_allclose(own_losses, their_losses, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(own_losses[:10], their_losses[:10], rtol=2e-5, atol=2e-6)
