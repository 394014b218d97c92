"""Reductions that are divided along axes whose extents change."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.engine.extents import plans
from treadle.jit.family import Family

Function = Callable[[mge.Tensor], mge.Tensor]
LENGTHS = (9000, 60_000, 8192, 20_000, 65_535, 1500, 1024, 8000)
"""In two cells, in which sums are divided among threads."""


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def rows(n: int, width: int) -> mge.Tensor:
    data = np.random.default_rng(n).standard_normal((n, width), "float32") + 3
    return mge.tensor(data)


def families_of(compiled: Any) -> list[Family]:
    return [f for found in compiled._captures.families.values() for f in found]


REDUCTIONS: dict[str, Function] = {
    "all": lambda x: F.sum(x * x),
    "columns": lambda x: F.sum(F.abs(x), axis=0),
    "mean": lambda x: F.mean(x) + F.mean(x, axis=0),
    "variance of all": lambda x: F.var(x),
    "variance of columns": lambda x: F.var(x, axis=0) + F.mean(x, axis=0),
    "largest": lambda x: F.max(x, axis=0) - F.min(x),
    "product": lambda x: F.prod(x / 3.0 * 0 + 1.0001, axis=0),
    "where the largest is": lambda x: F.argmax(x, axis=0).astype("float32"),
    "normalized": lambda x: (x - F.mean(x, axis=0)) / F.sqrt(F.var(x, axis=0) + 1e-5),
    "softmax of columns": lambda x: F.softmax(x, axis=0) * x.shape[0],
    "log of sums": lambda x: F.logsumexp(x, axis=0),
    "norm": lambda x: x / F.norm(F.flatten(x)),
    "transposed": lambda x: F.sum(F.transpose(x, (1, 0)) * 2, axis=1),
}


@pytest.mark.parametrize("width", [3, 70])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_divided_reductions_share_plans(name: str, width: int) -> None:
    function = REDUCTIONS[name]
    compiled = jit.compile(dynamic={0: {0: "n"}}, options=jit.Options(check=True))(function)
    for n in LENGTHS:
        x = rows(n, width)
        want = function(x).numpy()
        np.testing.assert_allclose(compiled(x).numpy(), want, rtol=1e-4, atol=1e-4)
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) <= 4


def test_bits_of_divided_sums_do_not_depend_on_the_order_of_extents() -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        return F.sum(x, axis=0) + F.var(x) + F.mean(x, axis=0)

    found: dict[int, set[bytes]] = {}
    for order in list(permutations((8300, 20_000, 64_001)))[::2]:
        compiled = jit.compile(dynamic={0: {0: "n"}})(function)
        for n in order:
            found.setdefault(n, set()).add(compiled(rows(n, 5)).numpy().tobytes())
    assert {n: len(bits) for n, bits in found.items()} == {8300: 1, 20_000: 1, 64_001: 1}


def test_the_variance_of_numbers_far_from_zero_keeps_its_digits() -> None:
    compiled = jit.compile(dynamic={0: {0: "n"}})(lambda x: F.var(x, axis=0))
    for n in (9001, 40_000, 8193):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype("float32") + 1e4
        want = x.astype("float64").var(axis=0)
        np.testing.assert_allclose(compiled(mge.tensor(x)).numpy(), want, rtol=2e-4)
