"""Indices out of range on a device: nothing is read there, and whoever waits is told."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import IndexRangeError

DEVICE = "opencl0"
Run = Callable[[Any], Any]


@pytest.fixture(params=["eager", "compiled"])
def way(request: pytest.FixtureRequest) -> Run:
    return mge.jit.compile if request.param == "compiled" else lambda body: body


def on_device(values: Any, dtype: str) -> mge.Tensor:
    return mge.tensor(np.array(values, dtype), device=DEVICE) * 1  # There, not on the host.


def test_whoever_waits_is_told_once(way: Run) -> None:
    x, wrong = on_device(np.arange(5), "float32"), on_device([1, 2, 9], "int32")
    pick = way(lambda x, i: x[i] * 2)
    assert pick(x, on_device([1, -5], "int32")).tolist() == [2, 0]
    pick(x, wrong)
    with pytest.raises(IndexRangeError, match="index 9 is out of range for an extent of 5") as told:
        (x + 1).numpy()
    assert "test_indices.py" in str(told.value.at)
    assert (x + 1).tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(IndexRangeError, match="index 9"):
        for _ in range(100):  # Nobody waits, but there is an end to what is left unsaid.
            pick(x, wrong)
    for _ in range(64):
        with contextlib.suppress(IndexRangeError):  # Every run is told of.
            mge.device.synchronize(DEVICE)


def test_an_axis_without_elements_is_not_read(way: Run) -> None:
    empty, i = on_device(np.zeros((0, 4096)), "float32"), on_device([1, 2], "int32")
    with pytest.raises(IndexRangeError, match="an extent of 0"):
        way(lambda x, i: F.nn.embedding(i + 5, x))(empty, i).numpy()


def test_in_a_branch() -> None:
    x, wrong = on_device(np.arange(5), "float32"), on_device([1, 2, 9], "int32")

    def body(x: mge.Tensor, i: mge.Tensor) -> mge.Tensor:
        return mge.jit.cond(x.sum() > 0, lambda: x[i], lambda: x[i - 8])

    with pytest.raises(IndexRangeError, match="index 9 is out of range for an extent of 5"):
        mge.jit.compile(body)(x, wrong).numpy()


BRANCH = """
import numpy as np, treadle as mge
from treadle.base.errors import IndexRangeError
def body(x, i):
    return mge.jit.cond(x.sum() > 0, lambda: x[i], lambda: x[i - 8])
x, i = (mge.tensor(np.array(v, t), device="opencl0") * 1 for v, t in
        ([range(5), "float32"], [[1, 2, 9], "int32"]))
try:
    mge.jit.compile(body)(x, i).numpy()
except IndexRangeError as error:
    print(error)
"""


def test_a_program_out_of_the_cache_tells_of_them_too(tmp_path: Path) -> None:
    own = {**os.environ, "TREADLE_CACHE_DIR": str(tmp_path)}
    for _ in ("made", "out of the cache"):
        done = subprocess.run([sys.executable, "-c", BRANCH], env=own, capture_output=True)
        assert b"index 9 is out of range for an extent of 5" in done.stdout, done.stderr
