"""Attention over sequences of any length: one plan for a range of them, with gradients."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.engine.extents import plans
from treadle.jit.family import Family

WIDTH, HEADS = 32, 4
LENGTHS = (2, 5, 3, 16, 40, 127, 30, 600, 128, 1000)
"""In three cells; up to 4 queries, and more keys than 512, have plans of their own."""
PLANS = 5


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def sequence(n: int, batch: int = 2) -> mge.Tensor:
    data = np.random.default_rng(n).standard_normal((batch, n, WIDTH), "float32") / 2
    return mge.tensor(data)


def families_of(compiled: Any) -> list[Family]:
    return [f for found in compiled._captures.families.values() for f in found]


def heads(x: mge.Tensor) -> mge.Tensor:
    split = F.reshape(x, (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS))
    return F.transpose(split, (0, 2, 1, 3))


PACKED = mge.Parameter(
    np.random.default_rng(0).standard_normal((WIDTH, 3 * WIDTH)).astype("float32") / 6
)


def attend(x: mge.Tensor, **options: Any) -> mge.Tensor:
    q, k, v = F.split(F.matmul(x, PACKED), 3, axis=-1)
    y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), **options)
    return F.reshape(F.transpose(y, (0, 2, 1, 3)), x.shape)


def window(x: mge.Tensor) -> mge.Tensor:
    """A mask of truth values: each query sees keys near by."""
    at = F.arange(x.shape[1])
    return F.abs(F.expand_dims(at, 0) - F.expand_dims(at, 1)) < 3


def penalty(x: mge.Tensor) -> mge.Tensor:
    at = F.arange(x.shape[1])
    return -F.abs(F.expand_dims(at, 0) - F.expand_dims(at, 1)) / x.shape[1]


FORMS: dict[str, Callable[[mge.Tensor], mge.Tensor]] = {
    "plain": attend,
    "causal": lambda x: attend(x, is_causal=True),
    "a window": lambda x: attend(x, attn_mask=window(x)),
    "a penalty": lambda x: attend(x, attn_mask=penalty(x)),
}


@pytest.mark.parametrize("name", FORMS)
def test_attention_shares_plans(name: str) -> None:
    function = FORMS[name]
    made = jit.compile(dynamic={0: {0: "batch", 1: "n"}}, options=jit.Options(check=True))
    compiled = made(function)
    for n in LENGTHS:
        x = sequence(n, 2 + n % 3)
        want = function(x).numpy()
        np.testing.assert_allclose(compiled(x).numpy(), want, rtol=1e-3, atol=1e-5)
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) <= PLANS + 1


def test_queries_and_keys_of_different_lengths() -> None:
    def function(x: mge.Tensor, seen: mge.Tensor) -> mge.Tensor:
        return F.scaled_dot_product_attention(heads(x), heads(seen), heads(seen) * 2)

    compiled = jit.compile(dynamic={0: {1: "n"}, 1: {1: "m"}})(function)
    for n, m in ((3, 20), (2, 90), (9, 17), (4, 120), (12, 40)):
        want = function(sequence(n), sequence(m)).numpy()
        got = compiled(sequence(n), sequence(m)).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) == 2, "up to 4 queries, and more"


@pytest.mark.parametrize("name", ["plain", "causal"])
def test_gradients_of_attention_share_plans(name: str) -> None:
    gm = mge.autodiff.GradManager().attach([PACKED])

    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (FORMS[name](x) ** 2).mean()
            gm.backward(loss)
        return loss

    compiled = jit.compile(dynamic={0: {0: "batch", 1: "n"}})(step)
    for n in (*LENGTHS[:8], 2500, 1100):
        found = []
        for run in (compiled, step):
            PACKED.grad = None
            loss = run(sequence(n, 2 + n % 2))
            found.append((loss.numpy(), PACKED.grad.numpy()))
        for got, want in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6)
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) <= PLANS + 3


class Block(M.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = M.LayerNorm(WIDTH), M.LayerNorm(WIDTH)
        self.up, self.down = M.Linear(WIDTH, 2 * WIDTH), M.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = x + attend(self.first(x), is_causal=True)
        return x + self.down(F.gelu(self.up(self.second(x))))


@pytest.mark.long
def test_a_transformer_is_trained_on_sentences_of_any_length() -> None:
    mge.random.seed(1)
    table = mge.Parameter(np.random.default_rng(1).standard_normal((50, WIDTH)).astype("float32"))
    blocks = M.Sequential(Block(), Block())
    parameters = [table, PACKED, *blocks.parameters()]
    gm = mge.autodiff.GradManager().attach(parameters)

    def step(words: mge.Tensor) -> mge.Tensor:
        with gm:
            x = blocks(F.nn.embedding(words, table))
            scores = F.matmul(x, F.transpose(table, (1, 0)))
            loss = F.nn.cross_entropy(F.reshape(scores[:, :-1], (-1, 50)), F.flatten(words[:, 1:]))
            gm.backward(loss)
        return loss

    compiled = jit.compile(dynamic={0: {0: "batch", 1: "n"}})(step)
    for n in (5, 9, 14, 33, 100, 70):
        words = np.random.default_rng(n).integers(0, 50, (2 + n % 3, n), "int32")
        found = []
        for run in (compiled, step):
            for p in parameters:
                p.grad = None
            loss = run(mge.tensor(words))
            found.append([loss.numpy(), *(p.grad.numpy() for p in parameters)])
        for got, want in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=5e-3, atol=1e-5)
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) <= 4


def test_threads_run_a_layer_at_lengths_of_their_own() -> None:
    block = Block()
    compiled, wrong = jit.compile(dynamic={0: {1: "n"}})(block), []
    lengths = [3, 60, 9, 200, 14, 33]
    wanted = {n: block(sequence(n)).numpy() for n in lengths}

    def work(order: list[int]) -> None:
        for n in order * 2:
            if not np.allclose(compiled(sequence(n)).numpy(), wanted[n], rtol=1e-3, atol=1e-5):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(lengths[i:] + lengths[:i],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(len(f.regimes) for f in families_of(compiled)) <= 4


LAYER = """
import sys, numpy as np, treadle as mge, treadle.functional as F
rng = np.random.default_rng(0)
w = mge.tensor(rng.standard_normal((32, 96)).astype("float32") / 6)

def layer(x):
    q, k, v = F.split(F.matmul(x, w), 3, axis=-1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.softmax(y, axis=-1) + F.sort(x, descending=True)[0] + F.var(x, axis=1, keepdims=True)

f = mge.jit.compile(dynamic={0: {1: "n"}})(layer)
for n in map(int, sys.argv[1:]):
    x = np.random.default_rng(n).standard_normal((2, n, 32)).astype("float32")
    print(n, f(mge.tensor(x)).numpy().tobytes().hex())
every = [g for found in f._captures.families.values() for g in found]
print([sum(not r.is_recalled for r in g.regimes) for g in every], file=sys.stderr)
"""


@pytest.mark.long
def test_another_process_gets_the_same_bits_in_any_order(tmp_path: Path) -> None:
    def run(cache: str, *lengths: int) -> tuple[dict[str, str], str]:
        done = subprocess.run(
            [sys.executable, "-c", LAYER, *map(str, lengths)],
            env={**os.environ, "TREADLE_CACHE_DIR": str(tmp_path / cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = dict(line.split() for line in done.stdout.splitlines())
        return lines, done.stderr.splitlines()[-1]

    first, made = run("one", 40, 9, 100)
    assert made == "[2]"
    again, made = run("one", 100, 40, 9)
    assert again == first and made == "[0]", "all of them were kept on disk"
    other, made = run("two", 9, 100, 40)
    assert other == first and made == "[2]", "bits do not depend on which extent came first"
