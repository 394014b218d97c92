"""Sorting and choosing along and across axes whose extents change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.engine.extents import plans
from treadle.jit.family import Family

Function = Callable[[mge.Tensor], mge.Tensor]
LENGTHS = (2, 15, 3, 30, 127, 16, 1000, 128, 9000, 1100)
CELLS = 5


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def families_of(compiled: Any) -> list[Family]:
    return [f for found in compiled._captures.families.values() for f in found]


def rows(n: int) -> mge.Tensor:
    """Many elements are equal, and some are no numbers."""
    data = np.round(np.random.default_rng(n).standard_normal((3, n)), 1).astype("float32")
    data[1, :: max(n // 3, 2)] = np.nan
    return mge.tensor(data)


SORTED: dict[str, Function] = {
    "sort": lambda x: F.sort(x, descending=True)[0],
    "order": lambda x: F.argsort(x),
    "order of columns": lambda x: F.argsort(F.transpose(x, (1, 0)), descending=True),
    "doubles": lambda x: F.sort(x.astype("float64"))[1],
    "the first two": lambda x: F.topk(x, 2, descending=True)[0],
    "where the first two are": lambda x: F.topk(x, 2)[1],
    "the first of columns": lambda x: F.topk(F.transpose(x, (1, 0)), 1)[0],
    "sorted rows picked": lambda x: x[:, F.argsort(x[0])],
}


@pytest.mark.parametrize("name", SORTED)
def test_sorting_shares_plans(name: str) -> None:
    function = SORTED[name]
    compiled = jit.compile(dynamic={0: {1: "n"}}, options=jit.Options(check=True))(function)
    for n in LENGTHS:
        np.testing.assert_array_equal(compiled(rows(n)).numpy(), function(rows(n)).numpy())
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) == CELLS


@pytest.mark.parametrize("dynamic", [{0: {1: "n"}}, True, None])
def test_of_lines_with_fewer_than_k_all_are_taken(dynamic: Any) -> None:
    def most(x: mge.Tensor) -> tuple[mge.Tensor, ...]:
        return *F.topk(x, 5, descending=True), F.topk(x, -4)[1], F.topk(x, 6, kth_only=True)[0]

    compiled = jit.compile(dynamic=dynamic)(most)
    for n in (9, 7, 4, 5, 3, 2, 1, 30, 6):
        for got, want in zip(compiled(rows(n)), most(rows(n)), strict=True):
            np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_the_first_many_of_lines_that_are_hardly_longer() -> None:
    """The list and the bar are chosen where lines of a cell are a few hundred elements long."""
    compiled = jit.compile(dynamic={0: {1: "n"}})(lambda x: F.topk(x, 140, descending=True)[1])
    for n in (1000, 140, 141, 279, 300, 512):
        want = F.topk(rows(n), 140, descending=True)[1]
        np.testing.assert_array_equal(compiled(rows(n)).numpy(), want.numpy())
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) == 1


def test_gradients_of_what_is_chosen() -> None:
    def step(x: mge.Tensor) -> mge.Tensor:
        gm = mge.autodiff.GradManager().attach([x])
        with gm:
            gm.backward((F.topk(x, 2)[0] ** 2).sum() + F.sort(x)[0][:, 1].sum())
        return x.grad

    compiled = jit.compile(dynamic={0: {1: "n"}})(step)
    for n in (5, 12, 40, 9):
        x = np.random.default_rng(n).standard_normal((3, n)).astype("float32")
        np.testing.assert_allclose(compiled(mge.tensor(x)).numpy(), step(mge.tensor(x)).numpy())
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) <= 3
