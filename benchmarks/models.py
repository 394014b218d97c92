"""The networks that the benchmarks train and run, written as a user would write them."""

from __future__ import annotations

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M


class MLP(M.Module):
    """784 pixels to 10 classes through two hidden layers of 512."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = M.Linear(784, 512), M.Linear(512, 512), M.Linear(512, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class LeNet(M.Module):
    """LeNet-5 for 28x28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = M.Conv2d(1, 6, 5, padding=2), M.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = M.Linear(400, 120), M.Linear(120, 84), M.Linear(84, 10)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.flatten(F.max_pool2d(F.relu(self.c2(x)), 2), 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def split_heads(x: mge.Tensor, heads: int) -> mge.Tensor:
    """(batch, time, dim) to (batch, heads, time, dim / heads)."""
    batch, time, dim = x.shape
    return F.transpose(x.reshape(batch, time, heads, dim // heads), (0, 2, 1, 3))


def join_heads(x: mge.Tensor) -> mge.Tensor:
    """(batch, heads, time, size) to (batch, time, heads * size)."""
    batch, heads, time, size = x.shape
    return F.transpose(x, (0, 2, 1, 3)).reshape(batch, time, heads * size)


class GPTBlock(M.Module):
    """Causal attention and a two-layer network, each behind a norm and beside a residual path."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = M.LayerNorm(dim), M.LayerNorm(dim)
        self.qkv, self.proj = M.Linear(dim, 3 * dim), M.Linear(dim, dim)
        self.up, self.dn = M.Linear(dim, 4 * dim), M.Linear(4 * dim, dim)

    def _qkv(self, x: mge.Tensor) -> list[mge.Tensor]:
        return [split_heads(t, self.heads) for t in F.split(self.qkv(self.ln1(x)), 3, axis=-1)]

    def _mlp(self, x: mge.Tensor) -> mge.Tensor:
        return x + self.dn(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        q, k, v = self._qkv(x)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._mlp(x + self.proj(join_heads(mixed)))

    def step(
        self, x: mge.Tensor, keys: mge.Tensor, values: mge.Tensor, at: mge.Tensor, seen: mge.Tensor
    ) -> mge.Tensor:
        """One token at position `at`; keys and values of the earlier ones are cached."""
        q, k, v = self._qkv(x)
        keys[:, :, at] = k
        values[:, :, at] = v
        mixed = F.scaled_dot_product_attention(q, keys, values, seen)
        return self._mlp(x + self.proj(join_heads(mixed)))


class GPTMini(M.Module):
    """A small GPT: scores of the next token at every position."""

    def __init__(
        self, layers: int = 6, dim: int = 256, heads: int = 8, seq: int = 128, vocab: int = 256
    ) -> None:
        super().__init__()
        self.tok, self.pos = M.Embedding(vocab, dim), M.Embedding(seq, dim)
        self.blocks = [GPTBlock(dim, heads) for _ in range(layers)]
        self.ln, self.head = M.LayerNorm(dim), M.Linear(dim, vocab, bias=False)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln(h))


class Decoder:
    """Greedy decoding with cached keys and values, one token at a time."""

    def __init__(self, model: GPTMini, seq: int, heads: int, dim: int) -> None:
        self.model = model
        self.positions = mge.tensor(np.arange(seq, dtype="int32"))
        shape = (1, heads, seq, dim // heads)
        zeros = np.zeros(shape, "float32")
        self.caches = [(mge.tensor(zeros), mge.tensor(zeros)) for _ in model.blocks]

    def step(self, token: mge.Tensor, at: mge.Tensor) -> mge.Tensor:
        """The token after `token` (1, 1), which stands at position `at` (1,)."""
        model = self.model
        h = model.tok(token) + model.pos(at)
        seen = self.positions <= at
        for block, (keys, values) in zip(model.blocks, self.caches, strict=True):
            h = block.step(h, keys, values, at, seen)
        return F.argmax(model.head(model.ln(h)), axis=-1)


class BertLayer(M.Module):
    """Attention and a two-layer network, each followed by a norm."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (M.Linear(dim, dim) for _ in range(4))
        self.up, self.dn = M.Linear(dim, hidden), M.Linear(hidden, dim)
        self.ln1, self.ln2 = M.LayerNorm(dim), M.LayerNorm(dim)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        q, k, v = (split_heads(m(x), self.heads) for m in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = self.ln1(x + self.o(join_heads(mixed)))
        return self.ln2(x + self.dn(F.gelu(self.up(x))))


class Bert(M.Module):
    """A BERT encoder: tokens to hidden states."""

    def __init__(
        self, layers: int, dim: int, heads: int, hidden: int, seq: int, vocab: int
    ) -> None:
        super().__init__()
        self.tok, self.pos, self.ln = (
            M.Embedding(vocab, dim),
            M.Embedding(seq, dim),
            M.LayerNorm(dim),
        )
        self.layers = [BertLayer(dim, heads, hidden) for _ in range(layers)]

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        h = self.ln(self.tok(x) + self.pos.weight[: x.shape[1]])
        for layer in self.layers:
            h = layer(h)
        return h
