"""Ops lowered for GPUs, as CUDA C++ on the host: they compute what NumPy does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular
from tests.backends.cuda.host_gpu import host_compiler
from tests.backends.cuda.host_kernels import HostKernels
from tests.backends.cuda.test_compile import EVERY, FAMILIES

from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.lower import lower
from treadle.backends.cuda.renderer import TARGET
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.types import TensorType
from treadle.ops import REGISTRY
from treadle.ops.conv import Conv, ConvGradWeight
from treadle.ops.matmul import Matmul
from treadle.ops.op import Op, as_tuple
from treadle.ops.reduce import Max, Sum
from treadle.ops.softmax import Softmax

pytestmark = pytest.mark.skipif(host_compiler() is None, reason="needs g++")
Case = tuple[Op, tuple[Array, ...]]
RNG = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    """Numbers whose sums and products are exact in any order."""
    return (RNG.integers(-16, 17, shape) / 8).astype(np.float32)


def check(cases: Sequence[Case]) -> None:
    """Every case gives the reference's results, with more threads than items and with fewer."""
    kernels: list[KernelModule] = []
    for op, arrays in cases:
        kernels += [x.kernel for x in irregular.lowered(op, arrays, TARGET).launches]
    on_host = HostKernels(kernels, TARGET)
    for blocks, threads in ((2, 3), (8, 32)):

        def runner(k: KernelModule, given: Sequence[Any], lo: int, hi: int) -> None:
            on_host(k, given, hi, blocks, threads)  # noqa: B023

        for op, arrays in cases:
            results = irregular.run(op, arrays, runner, target=TARGET)
            with np.errstate(all="ignore"):
                expected = as_tuple(op.reference(*arrays))
            for got, wanted in zip(results, expected, strict=True):
                irregular.check(got, np.asarray(wanted), f"{op}", exact=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_samples(family: str) -> None:
    cases: list[Case] = []
    for name in FAMILIES[family]:
        samples = irregular.samples(REGISTRY[name], (dt.float32, dt.int32, dt.uint32))
        cases += [c for c in samples if has_launches(*c)][:3]
    check(cases)


@pytest.mark.nvrtc
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", sorted({n[0] for n in EVERY}))
def test_all_samples(first: str) -> None:
    kinds = (dt.float32, dt.bfloat16, dt.int32, dt.bool_)
    cases: list[Case] = []
    for name in (n for n in EVERY if n.startswith(first)):
        for sample in REGISTRY[name].samples():
            for kind in (k for k in sample.element_types() if k in kinds):
                case = sample.op, sample.arrays(kind)
                if all(a.size for a in case[1]) and has_launches(*case):
                    cases.append(case)
    if not cases:
        pytest.skip("views, and ops that are left to the host")
    check(cases)


def has_launches(op: Op, arrays: tuple[Array, ...]) -> bool:
    """Whether kernels compute a case at all."""
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    found = lower(op, types, (), TARGET)
    return isinstance(found, Lowered) and bool(found.launches)


def test_sizes_that_are_divided_among_many_threads() -> None:
    image, weight = floats(2, 5, 14, 13), floats(7, 5, 3, 3)
    window = (1, 1), ((1, 1), (1, 1)), (1, 1), 1
    dy = Conv(*window).reference(image, weight)
    check(
        [
            (Sum((0, 1), False), (floats(300, 70),)),
            (Sum((0,), False), (floats(3000, 9),)),
            (Max((1,), True), (floats(6, 2000),)),
            (Softmax(1), (floats(5, 1000),)),
            (Matmul(), (floats(50, 200), floats(200, 24))),
            (Matmul(True, True), (floats(300, 33), floats(31, 300))),
            (Conv(*window), (image, weight)),
            (ConvGradWeight(*window, (3, 3)), (image, dy)),
        ]
    )
