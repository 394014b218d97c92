"""Collectives of tensors on other devices: a backend's own kernels, or host memory and a notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins
from tests.backends.toy_backend import kernel

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F
from treadle.distributed import group
from treadle.runtime.comm import groups


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    dist.init_process_group()
    yield
    group.leave()


def test_a_backend_brings_its_own_collectives(plugins: Plugins) -> None:
    """As kernels of the ops, which find the group they speak to by its name."""
    asked: list[Any] = []

    def all_reduce(x: Any, *, kind: str, **attributes: Any) -> Any:
        comm = groups.find(attributes["group"])
        asked.append((kind, comm))
        return x * 2

    plugins.toy(kernels=[kernel("all_reduce", all_reduce)])
    x = mge.tensor([1.0, 2.0], device="toy0")
    total = F.distributed.all_reduce_sum(x)
    assert total.device == "toy0" and total.tolist() == [2.0, 4.0]
    assert asked == [("sum", groups.world())]
    assert not list(mge.fallback_report(clear=True))


def test_without_them_arrays_go_through_the_host(plugins: Plugins) -> None:
    plugins.toy()
    x = mge.tensor(np.ones((2, 3), np.float32), device="toy0")
    total = F.distributed.all_gather(x)
    assert total.device == "toy0" and total.shape == (2, 3)
    (row,) = mge.fallback_report(clear=True)
    assert (row.op, row.calls) == ("all_gather", 1)
    gm = mge.autodiff.GradManager().attach(x, dist.make_allreduce_cb("mean"))
    with gm:
        gm.backward((x * x).sum())
    assert x.grad.device == "toy0" and x.grad.tolist() == [[2.0] * 3] * 2
