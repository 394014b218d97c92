"""Symbols of MegEngine that no other test calls, called as its users do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.interop.megengine import install, uninstall
from treadle.utils import module_stats


@pytest.fixture
def megengine() -> Iterator[None]:
    install()
    yield
    uninstall()


def test_element_types_are_asked_about(megengine: None) -> None:
    dtype = importlib.import_module("megengine.core.tensor.dtype")

    assert dtype.is_differentible_dtype(np.dtype(np.float32))
    assert dtype.is_differentible_dtype(dtype.bfloat16)
    assert not dtype.is_differentible_dtype(np.dtype(np.int32))
    assert [dtype.get_dtype_bit(name) for name in ("int8", "float16", "float32")] == [8, 16, 32]
    scale = np.float32(0.25)
    stored = dtype.convert_to_qint32(np.array([1.0, -0.6], np.float32), dtype.qint32(scale))
    np.testing.assert_array_equal(
        dtype.convert_from_qint32(stored), np.array([1.0, -0.5], np.float32)
    )


def test_recomputation_is_switched_off() -> None:
    mge.dtr.eviction_threshold = "5GB"
    mge.dtr.enable()
    mge.dtr.disable()
    w = mge.Parameter([2.0])
    with mge.autodiff.GradManager().attach(w) as gm:
        gm.backward(w * w)
    assert w.grad.item() == 4.0


def test_steps_hold_no_more_than_they_may() -> None:
    config = mge.jit.SublinearMemoryConfig(num_worker=1)
    f = mge.jit.trace(lambda x: F.exp(x).sum(), symbolic=True, sublinear_memory_config=config)
    assert f(F.zeros((4,))).item() == 4.0


def test_xla_traces_compute_what_traces_do() -> None:
    f = mge.jit.xla_trace(lambda x: F.relu(x) * 2)
    for value in (1.0, -1.0):
        assert f(mge.tensor([value])).item() == 2 * max(value, 0)


def test_receptive_fields_are_left_out() -> None:
    net, x = M.Conv2d(1, 1, 3), np.zeros((1, 1, 5, 5), np.float32)
    module_stats.enable_receptive_field()
    fields = [module_stats.module_stats(net, input_shapes=[x.shape])[1].flops[0]]
    module_stats.disable_receptive_field()
    fields.append(module_stats.module_stats(net, input_shapes=[x.shape])[1].flops[0])
    assert fields[0]["receptive_field"] == (3, 3)
    assert "receptive_field" not in fields[1]
