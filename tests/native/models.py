"""Small models of every common kind, with data: what people train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M

Loss = Callable[[M.Module, mge.Tensor, mge.Tensor], mge.Tensor]
Draw = Callable[[np.random.Generator], tuple[Any, Any]]


class MLP(M.Module):
    """Two hidden layers with dropout between them."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.a, self.b, self.c = M.Linear(12, 33), M.Linear(33, 17), M.Linear(17, 5)
        self.drop = M.Dropout(drop)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """Logits of rows."""
        return self.c(F.gelu(self.b(self.drop(F.relu(self.a(x))))))


class LeNet(M.Module):
    """Convolution, pooling, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = M.Conv2d(1, 4, 5, padding=2), M.Conv2d(4, 6, 3)
        self.f1, self.f2 = M.Linear(6 * 6, 20), M.Linear(20, 5)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """Logits of 12 x 12 images."""
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.flatten(F.avg_pool2d(F.relu(self.c2(x)), 2, 1, 0), 1)
        return self.f2(F.relu(self.f1(x[:, :36])))


class Residual(M.Module):
    """A block of a residual net, then global pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = M.Conv2d(3, 6, 3, 2, 1, bias=False), M.Conv2d(6, 6, 3, 1, 1, bias=False)
        self.short = M.Conv2d(3, 6, 1, 2, bias=False)
        self.n1, self.n2, self.n3 = M.BatchNorm2d(6), M.BatchNorm2d(6), M.BatchNorm2d(6)
        self.head = M.Linear(6, 5)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """Logits of images."""
        y = self.n2(self.c2(F.relu(self.n1(self.c1(x)))))
        y = F.relu(y + self.n3(self.short(x)))
        return self.head(y.mean(axis=(2, 3)))


class Recurrent(M.Module):
    """A recurrent layer as a scan over time."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = M.Linear(6 + 8, 32), M.Linear(8, 5)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """Logits of sequences (time, batch, 6), by an LSTM."""
        start = F.zeros((x.shape[1], 8))

        def turn(h: mge.Tensor, c: mge.Tensor, row: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
            i, f, g, o = F.split(self.gates(F.concat([row, h], 1)), 4, axis=1)
            c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
            return F.sigmoid(o) * F.tanh(c), c

        (h, _), _ = mge.jit.scan(turn, (start, start * 1), (x,))
        return self.head(h)


class Transformer(M.Module):
    """One block over tokens; causal with GELU, or bidirectional with a mask."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tok, self.pos = M.Embedding(11, 16), M.Embedding(8, 16)
        self.n1, self.n2 = M.LayerNorm(16), M.LayerNorm(16)
        self.qkv, self.out = M.Linear(16, 48), M.Linear(16, 16)
        self.up, self.down = M.Linear(16, 40), M.Linear(40, 16)
        self.head = M.Linear(16, 11, bias=False)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """Logits (batch x 8, 11) of tokens (batch, 8)."""
        n, t = x.shape
        h = self.tok(x) + self.pos.weight[:t]
        parts = F.split(self.qkv(self.n1(h)), 3, axis=-1)
        q, k, v = (F.transpose(p.reshape(n, t, 2, 8), (0, 2, 1, 3)) for p in parts)
        if self.causal:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = F.matmul(q, F.transpose(k, (0, 1, 3, 2))) / 8**0.5
            visible = F.expand_dims(F.not_equal(x, 0), (1, 2))
            a = F.matmul(F.softmax(F.where(visible, scores, scores * 0 - 1e4), -1), v)
        h = h + self.out(F.transpose(a, (0, 2, 1, 3)).reshape(n, t, 16))
        h = h + self.down(F.gelu(self.up(self.n2(h)), approximate="tanh"))
        return self.head(h).reshape(-1, 11)


class Autoencoder(M.Module):
    """Strided convolutions down, transposed ones up."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = M.Conv2d(2, 5, 3, 2, 1), M.GroupNorm(1, 5)
        self.up = M.ConvTranspose2d(5, 2, 4, 2, 1)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """Images again."""
        return F.sigmoid(self.up(F.leaky_relu(self.norm(self.down(x)), 0.1)))


class Detector(M.Module):
    """Scores of places; the best few are gathered and refined."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.refine = M.Linear(6, 1), M.Linear(6, 5)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        """Logits (batch, 5) of the four best of 9 places (batch, 9, 6)."""
        scores = self.score(x)[:, :, 0]
        best, where = F.topk(scores, 4, descending=True)
        index = F.broadcast_to(F.expand_dims(where, 2), (*where.shape, 6))
        rows = F.gather(x, 1, index)
        weight = F.where(best > 0, F.sigmoid(best), best * 0.1)
        return (self.refine(rows) * F.expand_dims(weight, 2)).sum(axis=1)


def cross_entropy(model: M.Module, x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
    """For classes."""
    return F.loss.cross_entropy(model(x), y)


def squares(model: M.Module, x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
    """For images."""
    return F.loss.square_loss(model(x), y)


def _classes(*shape: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[Any, Any]:
        return rng.standard_normal((6, *shape), "float32"), rng.integers(0, 5, 6).astype("int32")

    return draw


def _series(rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.standard_normal((4, 6, 6), "float32"), rng.integers(0, 5, 6).astype("int32")


def _tokens(rng: np.random.Generator) -> tuple[Any, Any]:
    x, y = rng.integers(0, 11, (3, 8)), rng.integers(0, 11, 24)
    return x.astype("int32"), y.astype("int32")


def _pictures(rng: np.random.Generator) -> tuple[Any, Any]:
    x = rng.random((3, 2, 8, 8), "float32")
    return x, x


@dataclass(frozen=True)
class Case:
    """A model, its loss, and batches for it."""

    model: Callable[[], M.Module]
    loss: Loss
    draw: Draw


CASES = {
    "mlp": Case(MLP, cross_entropy, _classes(12)),
    "lenet": Case(LeNet, cross_entropy, _classes(1, 12, 12)),
    "residual": Case(Residual, cross_entropy, _classes(3, 8, 8)),
    "lstm": Case(Recurrent, cross_entropy, _series),
    "gpt": Case(lambda: Transformer(True), cross_entropy, _tokens),
    "bert": Case(lambda: Transformer(False), cross_entropy, _tokens),
    "autoencoder": Case(Autoencoder, squares, _pictures),
    "detector": Case(Detector, cross_entropy, _classes(9, 6)),
}
