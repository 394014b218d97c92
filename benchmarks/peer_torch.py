"""The benchmark workloads in PyTorch: the same networks, weights, data and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

Weights = dict[str, np.ndarray]


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class GPTBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.dn = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dn(F.gelu(self.up(self.ln2(x)), approximate="tanh"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._mlp(x + self.proj(mixed.transpose(1, 2).flatten(2)))

    def step(self, x: torch.Tensor, cache: tuple[torch.Tensor, ...], at: int) -> torch.Tensor:
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        keys, values = cache
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = k, v
        seen_keys, seen_values = keys[:, :, : at + 1], values[:, :, : at + 1]
        mixed = F.scaled_dot_product_attention(q, seen_keys, seen_values)
        return self._mlp(x + self.proj(mixed.transpose(1, 2).flatten(2)))


class GPTMini(nn.Module):
    def __init__(self, layers: int, dim: int, heads: int, seq: int, vocab: int) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(GPTBlock(dim, heads) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln(h))


class BertLayer(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.dn = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(m(x), self.heads) for m in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.ln1(x + self.o(mixed))
        return self.ln2(x + self.dn(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(
        self, layers: int, dim: int, heads: int, hidden: int, seq: int, vocab: int
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.ln = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(BertLayer(dim, heads, hidden) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.ln(self.tok(x) + self.pos.weight[: x.shape[1]])
        for layer in self.layers:
            h = layer(h)
        return h


MODELS = {"mlp": MLP, "gpt": GPTMini, "bert": Bert}


def _load(name: str, shape: tuple[int, ...], weights: Weights) -> nn.Module:
    model = MODELS[name](*shape)
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})
    return model


def shapes(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters, by name."""
    return {k: tuple(v.shape) for k, v in MODELS[name](*shape).state_dict().items()}


def train(
    name: str,
    shape: tuple[int, ...],
    weights: Weights,
    x: np.ndarray,
    y: np.ndarray,
    opt: str,
    mode: str,
) -> Callable[[], float]:
    """One optimizer step per call; returns the loss."""
    model = _load(name, shape, weights).train()
    cls = torch.optim.AdamW if opt == "adamw" else torch.optim.Adam
    rate, decay = (3e-4, 0.1) if opt == "adamw" else (1e-3, 0.0)
    optimizer = cls(model.parameters(), rate, weight_decay=decay, fused=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    forward: Any = torch.compile(loss_of) if mode == "compile" else loss_of
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(inputs, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def infer(
    name: str, shape: tuple[int, ...], weights: Weights, x: np.ndarray, mode: str
) -> Callable[[], np.ndarray]:
    """One forward pass per call."""
    model = _load(name, shape, weights).eval()
    call: Any = torch.compile(model) if mode == "compile" else model
    inputs = torch.from_numpy(x)

    def run() -> np.ndarray:
        with torch.inference_mode():
            return call(inputs).numpy()

    return run


def decode(
    shape: tuple[int, ...], weights: Weights, prompt: np.ndarray, start: int, mode: str
) -> Callable[[], list[int]]:
    """Greedy decoding of positions `start` and on; the tokens."""
    model: Any = _load("gpt", shape, weights).eval()
    _, dim, heads, seq, _ = shape
    caches = [tuple(torch.zeros(1, heads, seq, dim // heads) for _ in "kv") for _ in model.blocks]
    tokens = torch.from_numpy(prompt)

    def step(token: torch.Tensor, at: int) -> torch.Tensor:
        h = model.tok(token) + model.pos.weight[at : at + 1]
        for block, cache in zip(model.blocks, caches, strict=True):
            h = block.step(h, cache, at)
        return model.head(model.ln(h)).argmax(-1)

    with torch.inference_mode():
        for at in range(start):
            step(tokens[:, at : at + 1], at)

    def generate() -> list[int]:
        token, out = tokens[:, start : start + 1], []
        with torch.inference_mode():
            for at in range(start, seq):
                token = step(token, at)
                out.append(token.item())
        return out

    return generate


def chain(arrays: tuple[np.ndarray, ...], mode: str) -> Callable[[], np.ndarray]:
    """gelu(x * w + b) + r."""
    x, w, b, r = (torch.from_numpy(a) for a in arrays)

    def formula(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.gelu(x * w + b, approximate="tanh") + r

    call = torch.compile(formula) if mode == "compile" else formula

    def run() -> np.ndarray:
        with torch.inference_mode():
            return call(x, w, b, r).numpy()

    return run


def set_threads(n: int) -> None:
    """Use this many threads."""
    torch.set_num_threads(n)


def version() -> str:
    """Name and version."""
    return f"PyTorch {torch.__version__}"
