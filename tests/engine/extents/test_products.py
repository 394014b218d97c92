"""Products of matrices along axes whose extents change: one plan for a range of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.engine.extents import plans
from treadle.jit.family import Family

Function = Callable[[mge.Tensor], mge.Tensor]
WIDTH = 64
LENGTHS = (2, 3, 7, 16, 30, 8, 5, 40, 64, 200, 1000, 130)
"""In three cells; some of them before others of their cell that are smaller."""


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def rows(n: int) -> mge.Tensor:
    data = np.random.default_rng(n).standard_normal((n, WIDTH), "float32") / 4
    return mge.tensor(data)


def weight(*shape: int) -> mge.Parameter:
    return mge.Parameter(np.random.default_rng(0).standard_normal(shape).astype("float32") / 4)


def heads(x: mge.Tensor) -> mge.Tensor:
    n = x.shape[0]
    q = F.transpose(F.reshape(x, (n, 4, 16)), (1, 0, 2))
    scores = F.matmul(q, F.transpose(q * 2, (0, 2, 1))) / 4
    return F.reshape(F.transpose(F.matmul(F.softmax(scores, axis=-1), q), (1, 0, 2)), (n, WIDTH))


WEIGHT, TURNED, BIAS = weight(WIDTH, 48), weight(40, WIDTH), weight(48)
TABLE = mge.tensor(weight(1000, 8).numpy())
PRODUCTS: dict[str, tuple[Function, int]] = {
    "rows": (lambda x: F.matmul(x, WEIGHT), 3),
    "rows, bias, relu": (lambda x: F.relu(F.matmul(x, WEIGHT) + BIAS), 3),
    "columns of weights": (lambda x: F.gelu(F.matmul(x, TURNED, transpose_b=True)), 4),
    "all three": (lambda x: F.relu(F.matmul(x, x.T)), 4),
    "terms": (lambda x: F.matmul(x.T, x) / x.shape[0], 3),
    "batch": (lambda x: F.matmul(*[F.reshape(x, (x.shape[0], 8, 8))] * 2), 3),
    "rows in batches": (lambda x: F.matmul(F.reshape(x, (x.shape[0], 2, 32)), WEIGHT[:32]), 3),
    "a vector": (lambda x: F.matmul(x, WEIGHT[:, 0]), 3),
    "a vector of terms": (lambda x: F.matmul(x[:, 0], x), 3),
    "heads": (heads, 4),
    "slices": (lambda x: F.matmul(x[1:], x[:-1].T), 5),
    "a half": (lambda x: F.matmul(x[: x.shape[0] // 2], WEIGHT), 5),
    "backwards": (lambda x: F.matmul(x[::-1], WEIGHT), 3),
    "a part of what never changes": (lambda x: F.matmul(x.T, TABLE[: x.shape[0]]), 3),
    "integers": (lambda x: F.matmul(x.astype("int32"), WEIGHT.astype("int32")), 3),
    "half precision": (lambda x: F.matmul(x.astype("float16"), WEIGHT.astype("float16")), 3),
    "doubles": (lambda x: F.matmul(x.astype("float64"), WEIGHT.astype("float64")), 3),
}


def families_of(compiled: Any) -> list[Family]:
    return [f for found in compiled._captures.families.values() for f in found]


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_share_plans(name: str) -> None:
    function, most = PRODUCTS[name]
    compiled = jit.compile(dynamic={0: {0: "n"}}, options=jit.Options(check=True))(function)
    for n in LENGTHS:
        want = function(rows(n)).numpy()
        bound = 2e-2 if want.dtype == np.float16 else 2e-5 * max(n, WIDTH) ** 0.5
        np.testing.assert_allclose(compiled(rows(n)).numpy(), want, rtol=bound, atol=bound)
    (family,) = families_of(compiled)
    assert not family.alone and 3 <= len(family.regimes) <= most


def test_sums_of_any_length_find_room() -> None:
    """From some length on sums are built in steps; a plan is one for lengths on both sides."""
    compiled = jit.compile(dynamic={0: {0: "n"}})(lambda x: F.matmul(x.T, x))
    for n in (70_000, 8_200, 60_000, 30_000):
        x = mge.tensor(np.random.default_rng(n).standard_normal((n, 7)).astype("float32"))
        want = x.numpy().astype("float64").T @ x.numpy()
        np.testing.assert_allclose(compiled(x).numpy(), want, rtol=1e-3, atol=2e-4 * n**0.5)
    (family,) = families_of(compiled)
    assert not family.alone and len(family.regimes) == 2


def test_bits_of_products_do_not_depend_on_the_order_of_extents() -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        return F.concat([F.matmul(heads(x), TURNED, transpose_b=True), F.matmul(x, x.T)], axis=1)

    found: dict[int, set[bytes]] = {}
    for order in list(permutations((3, 6, 7, 15)))[::5]:
        compiled = jit.compile(dynamic={0: {0: "n"}})(function)
        for n in order:
            found.setdefault(n, set()).add(compiled(rows(n)).numpy().tobytes())
    assert {n: len(bits) for n, bits in found.items()} == {3: 1, 6: 1, 7: 1, 15: 1}


def test_weights_are_packed_once_for_all_extents() -> None:
    frozen = mge.tensor(WEIGHT.numpy())
    compiled = jit.compile(dynamic={0: {0: "n"}})(lambda x: F.matmul(x, frozen))
    compiled(rows(20))
    (regime,) = [r for f in families_of(compiled) for r in f.regimes]
    packed = regime._packs.current
    assert packed is not None and packed.buffer.nbytes >= WEIGHT.numpy().nbytes
    for n in (90, 33):
        compiled(rows(n))
        assert regime._packs.current is packed


def test_a_layer_is_trained_at_many_lengths_with_few_plans() -> None:
    layer = M.Linear(WIDTH, 40)
    gm = mge.autodiff.GradManager().attach(layer.parameters())

    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (F.relu(layer(x)) ** 2).mean()
            gm.backward(loss)
        return loss

    compiled = jit.compile(dynamic={0: {0: "n"}})(step)
    for n in LENGTHS:
        grads = []
        for run in (compiled, step):
            for p in layer.parameters():
                p.grad = None
            loss = run(rows(n))
            grads.append([loss.numpy(), *(p.grad.numpy() for p in layer.parameters())])
        for got, want in zip(*grads, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
    assert [f.alone for f in families_of(compiled)] == [""] * len(families_of(compiled))
    assert sum(len(f.regimes) for f in families_of(compiled)) <= 5
