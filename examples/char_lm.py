"""A small transformer that learns to write Python, character by character.

The text is the source of Python's own standard library, so nothing is downloaded.

    python examples/char_lm.py [--steps 600] [--layers 2] [--dim 128]
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from pathlib import Path

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.optimizer import AdamW, clip_grad_norm

LETTERS = "\n" + "".join(chr(c) for c in range(32, 127))
UNKNOWN = LETTERS.index("?")


def read_text(limit: int = 2_000_000) -> np.ndarray:
    """Codes of the standard library's first `limit` characters, in order of file name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = ""
    for path in sorted(folder.glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace")
        if len(text) >= limit:
            break
    table = np.full(256, UNKNOWN, np.int32)
    for code, letter in enumerate(LETTERS):
        table[ord(letter)] = code
    raw = np.frombuffer(text[:limit].encode("latin-1", "replace"), np.uint8)
    return table[raw]


class Attention(M.Module):
    """Causal self-attention with several heads; (batch, time, dim) to the same."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = M.Linear(dim, 3 * dim)
        self.out = M.Linear(dim, dim)

    def forward(self, x: mge.Tensor, mask: mge.Tensor) -> mge.Tensor:
        batch, time_, dim = x.shape
        size = dim // self.heads
        split = self.qkv(x).reshape(batch, time_, 3, self.heads, size)
        q, k, v = (F.transpose(split[:, :, i], (0, 2, 1, 3)) for i in range(3))
        scores = F.matmul(q, k, transpose_b=True) * (1 / math.sqrt(size)) + mask
        mixed = F.matmul(F.softmax(scores, axis=-1), v)
        return self.out(F.transpose(mixed, (0, 2, 1, 3)).reshape(batch, time_, dim))


class Block(M.Module):
    """Attention and a two-layer network, each behind a norm and beside a residual path."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = M.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = M.LayerNorm(dim)
        self.up = M.Linear(dim, 4 * dim)
        self.down = M.Linear(4 * dim, dim)

    def forward(self, x: mge.Tensor, mask: mge.Tensor) -> mge.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharTransformer(M.Module):
    """Scores of the next character: (batch, time) codes to (batch, time, letters)."""

    def __init__(self, dim: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.letters = M.Embedding(len(LETTERS), dim)
        self.places = M.Embedding(length, dim)
        self.blocks = [Block(dim, heads) for _ in range(layers)]
        self.norm = M.LayerNorm(dim)
        self.head = M.Linear(dim, len(LETTERS))
        for table in (self.letters, self.places):
            M.init.normal_(table.weight, 0.0, 0.02)

    def forward(self, codes: mge.Tensor) -> mge.Tensor:
        time_ = codes.shape[1]
        mask = mge.Tensor(np.triu(np.full((time_, time_), -1e9, "float32"), 1))
        x = self.letters(codes) + self.places(mge.Tensor(np.arange(time_)))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def loss_of(net: CharTransformer, batch: mge.Tensor) -> mge.Tensor:
    """Mean cross entropy of the next character, in nats."""
    scores = net(batch[:, :-1])
    labels = batch[:, 1:].reshape(-1)
    return F.loss.cross_entropy(scores.reshape(-1, len(LETTERS)), labels)


def write(net: CharTransformer, start: str, count: int, length: int, seed: int = 0) -> str:
    """Continue a text by sampling one character at a time."""
    rng = np.random.default_rng(seed)
    codes = [LETTERS.index(c) for c in start]
    for _ in range(count):
        scores = net(mge.Tensor(np.array([codes[-length:]], np.int32))).numpy()[0, -1]
        chances = np.exp((scores - scores.max()) / 0.7)
        codes.append(int(rng.choice(len(LETTERS), p=chances / chances.sum())))
    return "".join(LETTERS[c] for c in codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--eager", action="store_true", help="run op by op, uncompiled")
    parser.add_argument("--sample", type=int, default=200, help="characters to write at the end")
    options = parser.parse_args()

    mge.set_default_device("cpux")
    mge.random.seed(1)
    text = read_text()
    rng = np.random.default_rng(1)
    net = CharTransformer(options.dim, options.layers, options.heads, options.length)
    manager = GradManager().attach(net.parameters())
    optimizer = AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    print(f"{len(text):,} characters, {sum(p.size for p in net.parameters()):,} parameters")

    def train(batch: mge.Tensor) -> mge.Tensor:
        with manager:
            loss = loss_of(net, batch)
            manager.backward(loss)
        clip_grad_norm(net.parameters(), 1.0)
        optimizer.step().clear_grad()
        return loss

    # Forward, backward, clipping and update become one native program.
    run = train if options.eager else mge.jit.compile(train)
    smooth, started = 0.0, time.perf_counter()
    for step in range(1, options.steps + 1):
        starts = rng.integers(0, len(text) - options.length - 1, options.batch)
        batch = np.stack([text[s : s + options.length + 1] for s in starts])
        loss = run(mge.Tensor(batch)).item()
        smooth = loss if step == 1 else 0.95 * smooth + 0.05 * loss
        if step % 50 == 0 or step in (1, options.steps):
            seconds = time.perf_counter() - started
            print(f"step {step:4d}   loss {smooth:.3f} nats per character   {seconds:.0f} s")
    if options.sample:
        print("\n" + write(net, "def ", options.sample, options.length))


if __name__ == "__main__":
    main()
