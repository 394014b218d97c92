"""Random branches and loops in one another over rows of any number: one program, as op by op."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.engine.extents import plans

Function = Callable[[mge.Tensor], Any]
WIDTH = 4
ROWS = (5, 9, 1, 16, 3, 33)
WEIGHT = mge.tensor(np.random.default_rng(0).standard_normal((WIDTH, WIDTH), "float32") * 0.4)
TABLE = mge.tensor(np.random.default_rng(1).standard_normal((7, WIDTH), "float32"))


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are made here, whatever earlier runs have left on disk."""
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


PLAIN: tuple[Function, ...] = (
    F.relu,
    lambda x: F.softmax(x, axis=0),
    lambda x: F.softmax(x, axis=-1),
    lambda x: F.tanh(F.matmul(x, WEIGHT)) + x,
    lambda x: x - F.mean(x, axis=-1, keepdims=True),
    lambda x: x * x.shape[0] * 0.1,
    lambda x: F.concat([x[1:], x[:1]]),
    lambda x: x[::-1] * 0.5,
    lambda x: F.cumsum(x, axis=0) * 0.1,
    lambda x: F.sigmoid(x) * x.sum(axis=0),
    lambda x: x + TABLE[(F.arange(x.shape[0]) % 7).astype("int32")],
)


def branch(drawn: random.Random, a: Function, b: Function) -> Function:
    limit = drawn.choice((0.0, 1.0, -1.0, 3.0))
    if drawn.random() < 0.5:
        return lambda x: jit.cond(x.sum() > limit, a, b, x)

    def outside(x: mge.Tensor) -> Any:
        half = x * 0.5
        return jit.cond(F.abs(x).sum() > limit, lambda: a(x) + half, lambda: half)

    return outside


def turns(drawn: random.Random, a: Function, b: Function) -> Function:
    most = drawn.randint(0, 4)

    def body(i: mge.Tensor, x: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
        return i + 1, a(x) * 0.5

    return lambda x: jit.while_loop(lambda i, x: i < most, body, (mge.tensor(0), x))[1]


def scan_of_all(drawn: random.Random, a: Function, b: Function) -> Function:
    length = drawn.randint(1, 4)

    def run(x: mge.Tensor) -> mge.Tensor:
        (s,), (sums,) = jit.scan(lambda s: (a(s) * 0.5, s.sum(axis=-1)), (x,), (), length)
        return s + sums.mean(axis=0).reshape(-1, 1)

    return run


def scan_of_rows(drawn: random.Random, a: Function, b: Function) -> Function:
    def run(x: mge.Tensor) -> mge.Tensor:
        start = x.sum(axis=0) * 0.1
        (s,), (rows,) = jit.scan(lambda s, e: (F.tanh(s + e), F.tanh(s * e) + e), (start,), (x,))
        return rows + s

    return run


def block(drawn: random.Random, depth: int) -> Function:
    steps = []
    for _ in range(drawn.randint(1, 3)):
        if depth and drawn.random() < 0.6:
            make = drawn.choice((branch, branch, turns, scan_of_all, scan_of_rows))
            steps.append(make(drawn, block(drawn, depth - 1), block(drawn, depth - 1)))
        else:
            steps.append(drawn.choice(PLAIN))

    def run(x: mge.Tensor) -> mge.Tensor:
        for step in steps:
            x = step(x)
        return x

    return run


@pytest.mark.parametrize("seed", range(16))
def test_one_program_gives_what_single_ops_give(seed: int) -> None:
    function = block(random.Random(seed), 2)
    compiled = jit.compile(dynamic={0: {0: "n"}}, options=jit.Options(check=True))(function)
    for n in ROWS:
        x = np.random.default_rng((seed, n)).standard_normal((n, WIDTH), "float32")
        first, second = (compiled(mge.tensor(x)).numpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, function(mge.tensor(x)).numpy(), rtol=1e-3, atol=1e-4)
    families = chain.from_iterable(compiled._captures.families.values())
    assert {f.alone for f in families} <= {"", "no extent is open"}
