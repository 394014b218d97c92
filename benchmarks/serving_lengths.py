"""Throughput of `treadle serve` for texts of many lengths, by what is done about their lengths.

An encoder with a mask is compiled into a file for 1 to 8 rows and 1 to `--most` tokens, so that no
server compiles anything, and three servers of that file take turns:

- *padded to the longest*: clients pad each text to `--most` tokens, as for a server of one shape;
- *equal lengths joined*: texts as they are, `--max-batch 8`;
- *lengths joined*: the same with `--pad mask`.

Clients send the same texts to each. Lengths are uniform, or as those of sentences: log-normal.

    python benchmarks/serving_lengths.py [--layers 4] [--width 256] [--most 128] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from serving import Clients, request, server

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.deploy import compile_offline
from treadle.engine.package.models import read_models, write_models

WORDS = 1000
ROWS = 8
TEXTS = 64
"""Texts of each client, again and again."""


class Layer(M.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.packed, self.out = M.Linear(width, 3 * width), M.Linear(width, width)
        self.up, self.down = M.Linear(width, 4 * width), M.Linear(4 * width, width)
        self.first, self.second = M.LayerNorm(width), M.LayerNorm(width)

    def forward(self, x: mge.Tensor, bias: mge.Tensor) -> mge.Tensor:
        n, t = x.shape[0], x.shape[1]
        parts = F.split(self.packed(x), 3, axis=2)
        q, k, v = (F.transpose(F.reshape(p, (n, t, self.heads, 64)), (0, 2, 1, 3)) for p in parts)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.first(x + self.out(F.reshape(F.transpose(seen, (0, 2, 1, 3)), (n, t, -1))))
        return self.second(x + self.down(F.gelu(self.up(x))))


class Encoder(M.Module):
    """Tokens and their mask to the mean of the last states."""

    def __init__(self, layers: int, width: int, most: int) -> None:
        super().__init__()
        self.words, self.places = M.Embedding(WORDS, width), M.Embedding(most, width)
        self.layers = [Layer(width) for _ in range(layers)]

    def forward(self, tokens: mge.Tensor, mask: mge.Tensor) -> mge.Tensor:
        kept = mask.astype("float32")
        bias = F.expand_dims((1 - kept) * -1e9, (1, 2))
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, bias)
        wide = F.expand_dims(kept, 2)
        return (x * wide).sum(axis=1) / wide.sum(axis=1)


def compiled(options: argparse.Namespace, folder: Path) -> Path:
    """A file with programs for all rows and lengths."""
    mge.random.seed(0)
    encoder = Encoder(options.layers, options.width, options.most)
    encoder.eval()
    traced = jit.trace(symbolic=True, capture_as_const=True)(lambda t, m: encoder(t, m))
    example = np.ones((2, 7), np.int32)
    traced(mge.tensor(example), mge.tensor(example))
    path = folder / "encoder.tm"
    traced.dump(str(path), arg_names=["tokens", "mask"], output_names=["mean"])
    span = [(1, ROWS), (1, options.most)]
    made = compile_offline(read_models(path)[0], ranges={"tokens": span, "mask": span})
    write_models(path, [made], "serving_lengths")
    return path


def text(length: int, to: int, seed: int) -> bytes:
    """A whole request with a text of some length, padded to another."""
    tokens, mask = np.zeros((2, 1, to), np.int32)
    tokens[:, :length] = np.random.default_rng(seed).integers(1, WORDS, length)
    mask[:, :length] = 1
    return request("INT32", tokens=tokens, mask=mask)


def lengths(kind: str, most: int, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    if kind == "uniform":
        return random.integers(1, most + 1, TEXTS).tolist()
    drawn = random.lognormal(np.log(most / 5), 0.7, TEXTS)
    return np.clip(drawn.round(), 1, most).astype(int).tolist()


def texts(kind: str, options: argparse.Namespace, padded: bool) -> Iterator[list[bytes]]:
    """The requests of each client."""
    for client in range(options.clients):
        known = lengths(kind, options.most, client)
        yield [
            text(n, options.most if padded else n, 1000 * client + i) for i, n in enumerate(known)
        ]


def measure(options: argparse.Namespace, kind: str, path: Path) -> dict[str, list[float]]:
    """Requests per second by round."""
    ways: dict[str, tuple[bool, Sequence[str]]] = {
        "padded to the longest": (True, ()),
        "equal lengths joined": (False, ()),
        "lengths joined": (False, ("--pad", "mask")),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        clients = {}
        for way, (padded, more) in ways.items():
            port = stack.enter_context(server(path, ROWS, *more))
            sent = list(texts(kind, options, padded))
            clients[way] = Clients(stack, port, sent)
            clients[way].block(0.5)
        for _ in range(options.rounds):
            for way, asking in clients.items():
                found[way].append(asking.block(options.seconds)[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--most", type=int, default=128, help="tokens of the longest text")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = compiled(options, Path(folder))
        size = f"{options.layers} layers of {options.width}, 1 to {options.most} tokens"
        print(f"{size}, {options.clients} clients, {os.cpu_count()} cores\n")
        print("| lengths | way | 1/s | over padded to the longest |")
        print("|---|---|---:|---:|")
        for kind in ("uniform", "sentences"):
            found = measure(options, kind, path)
            base = found["padded to the longest"]
            for way, rates in found.items():
                ratio = statistics.median(a / b for a, b in zip(rates, base, strict=True))
                print(f"| {kind} | {way} | {statistics.median(rates):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
