"""What graphics cards are given, run on the processor: scratch memory of the launch, any groups."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular

from treadle.backends.api import Support
from treadle.backends.object_cache import ObjectCache
from treadle.backends.rendered import eager
from treadle.backends.rendered.compiler import RenderedCompiler
from treadle.base import dtype as dt
from treadle.base.dtype import as_dtype
from treadle.base.types import TensorType
from treadle.ops.conv import Conv
from treadle.ops.matmul import Matmul
from treadle.ops.op import Op, as_tuple
from treadle.ops.reduce import Sum
from treadle.ops.softmax import Softmax
from treadle.ops.sort import Sort
from treadle.runtime.array import DeviceArray
from treadle.runtime.opened import OpenDevice

RNG = np.random.default_rng(2)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


CASES: dict[str, Callable[[], tuple[Op, tuple[np.ndarray, ...]]]] = {
    "matmul": lambda: (Matmul(), (floats(37, 19), floats(19, 21))),
    "convolution": lambda: (
        next(s.op for s in Conv.samples()),
        next(s.arrays(dt.float32) for s in Conv.samples()),
    ),
    "softmax": lambda: (Softmax(1), (floats(5, 33),)),
    "sum": lambda: (Sum((0,)), (floats(300, 7),)),
    "sort": lambda: (Sort(1, False), (floats(3, 40),)),
}


@pytest.fixture(scope="module")
def graphics(tmp_path_factory: Any) -> RenderedCompiler:
    platforms: Any = importlib.import_module("treadle.backends.opencl.platforms")
    renderer: Any = importlib.import_module("treadle.backends.opencl.renderer")
    made = RenderedCompiler(renderer.ClRenderer(platforms.devices()[0][0], single=False))
    made.library.cache = ObjectCache(tmp_path_factory.mktemp("cache"))
    return made


@pytest.mark.parametrize("name", CASES)
def test_kernels_with_scratch_memory(name: str, graphics: RenderedCompiler, device: Any) -> None:
    op, arrays = CASES[name]()
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    launch, opened = eager.prepare(graphics, op, types), OpenDevice("opencl0", device)
    assert not isinstance(launch, Support)
    made = launch(*(DeviceArray(opened, a.dtype, a.shape, host=a) for a in arrays))
    results = made if isinstance(made, tuple) else (made,)
    for got, wanted in zip(results, as_tuple(op.reference(*arrays)), strict=True):
        irregular.check(got.host(), np.asarray(wanted), name, exact=False)


def test_a_type_that_the_device_lacks_is_refused(backend: Any, monkeypatch: Any) -> None:
    renderer: Any = importlib.import_module("treadle.backends.opencl.renderer")
    platforms: Any = importlib.import_module("treadle.backends.opencl.platforms")
    monkeypatch.setattr(renderer, "features_of", lambda device: ())
    made = RenderedCompiler(renderer.ClRenderer(platforms.devices()[0][0]))
    answer = made.lower(Sum((0,)), [TensorType(dt.float64, (8, 8))])
    assert isinstance(answer, Support) and answer.reason == "device-feature"
    assert "float64" in answer.message
    assert not isinstance(made.lower(Sum((0,)), [TensorType(dt.float32, (8, 8))]), Support)
