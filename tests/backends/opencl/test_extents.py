"""Open extents on the OpenCL device: kernels of one plan serve them."""

from __future__ import annotations

from itertools import chain
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import jit
from treadle.autodiff import GradManager
from treadle.backends.rendered.library import KernelBinaries

LENGTHS = (5, 9, 6, 15, 7)
W = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")


def attended(x: Any, w: Any) -> Any:
    q = F.matmul(x, w)
    return F.matmul(F.softmax(F.matmul(q, x.transpose(1, 0)), axis=1), x).mean(axis=0) * x.shape[0]


def slope(x: Any, w: Any) -> Any:
    w = w * 1
    manager = GradManager().attach([w])
    with manager:
        manager.backward(F.sin(attended(x, w)).sum())
    return w.grad


@pytest.mark.parametrize("function", [attended, slope], ids=["forward", "gradient"])
def test_new_extents_take_the_kernels_of_one_plan(function: Any) -> None:
    compiled = jit.compile(dynamic={0: {0: "n"}}, options=jit.Options(check=True))(function)
    made: list[str] = []
    real = KernelBinaries.add

    def adding(library: Any, kernels: Any) -> None:
        made.extend(kernels)
        real(library, kernels)

    seen: list[set[str]] = []
    with patch.object(KernelBinaries, "add", adding):
        for n in LENGTHS:
            x = np.random.default_rng(n).standard_normal((n, 4)).astype("float32")
            made.clear()
            found = compiled(mge.tensor(x, device="opencl0"), mge.tensor(W, device="opencl0"))
            seen.append(set(made))
            wanted = function(mge.tensor(x), mge.tensor(W))
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)
            assert str(found.device).startswith("opencl0")
    (family,) = chain.from_iterable(compiled._captures.families.values())
    assert not family.alone and len(family.regimes) <= 2
    assert len(set.union(*seen)) <= 2 * len(seen[0]), "no kernels of one length"
