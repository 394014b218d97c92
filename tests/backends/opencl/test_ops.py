"""Every op's samples on the OpenCL device, op by op.

Drivers compile slowly, and a source takes its time however little is in it: ops are taken many at
a time. The kernels of each op's first sample are compiled, and every sample runs that needs no
others; `TREADLE_TEST_SAMPLES=all` compiles the kernels of all, which takes a minute more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular

from treadle.backends.api import Support
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.program import Lowered
from treadle.backends.rendered import eager
from treadle.base.array import Array
from treadle.base.dtype import as_dtype, float32
from treadle.base.types import TensorType
from treadle.ops import REGISTRY
from treadle.ops.op import Op, Sample, as_tuple
from treadle.runtime.array import DeviceArray
from treadle.runtime.opened import OpenDevice

OPS = sorted(
    (c for c in REGISTRY.values() if c.__module__.startswith("treadle.")), key=lambda c: c.name
)
AT_ONCE = 24
ALL = os.environ.get("TREADLE_TEST_SAMPLES") == "all"
Case = tuple[Sample, tuple[Array, ...], tuple[TensorType, ...], Lowered]


def cases(op: type[Op], compiler: Any) -> Iterator[Case]:
    """Samples that are generated, in the element type that means most."""
    for sample in op.samples():
        kinds = sample.element_types()
        arrays = sample.arrays(float32 if float32 in kinds else kinds[0])
        types = tuple(TensorType(as_dtype(a.dtype), a.shape) for a in arrays)
        lowered = compiler.lower(sample.op, types)
        if isinstance(lowered, Support):
            assert lowered.message
        elif types:
            yield sample, arrays, types, lowered


def compiled(ops: Sequence[type[Op]], compiler: Any) -> set[str]:
    """Kernels of some ops, which are compiled together, by name."""
    kernels = {}
    for op in ops:
        for case in list(cases(op, compiler))[: None if ALL else 1]:
            kernels.update((symbol_of(x.kernel), x.kernel) for x in case[3].launches)
    compiler.library.add(kernels)
    return set(kernels)


@pytest.fixture(scope="module")
def opened(device: Any) -> OpenDevice:
    return OpenDevice("opencl0", device)


@pytest.mark.parametrize("first", range(0, len(OPS), AT_ONCE), ids=lambda i: OPS[i].name)
def test_results_are_numpys(first: int, compiler: Any, opened: OpenDevice) -> None:
    ops = OPS[first : first + AT_ONCE]
    known = compiled(ops, compiler)
    for case in (c for op in ops for c in cases(op, compiler)):
        if {symbol_of(launch.kernel) for launch in case[3].launches} <= known:
            check(case, compiler, opened)


def check(case: Case, compiler: Any, opened: OpenDevice) -> None:
    sample, arrays, types, _ = case
    launch = eager.prepare(compiler, sample.op, types)
    assert not isinstance(launch, Support)
    given = [DeviceArray(opened, a.dtype, a.shape, host=np.ascontiguousarray(a)) for a in arrays]
    made = launch(*given)
    with np.errstate(all="ignore"):
        wanted = as_tuple(sample.op.reference(*arrays))
    results = made if isinstance(made, tuple) else (made,)
    for got, reference in zip(results, wanted, strict=True):
        if got.dtype.kind != "c":
            irregular.check(got.host(), np.asarray(reference), str(sample), exact=False)
