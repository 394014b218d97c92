"""CUDA C++ of kernels, compiled for the host: it computes what the interpreter does."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.execution import same
from tests.backends.codegen.samples import Sample, all_samples
from tests.backends.codegen.spelled import kernel
from tests.backends.cuda.host_gpu import host_compiler
from tests.backends.cuda.host_kernels import HostKernels

from treadle.backends.codegen.kernel.c_cuda import LOCAL, cuda_source
from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.kernel.ir import KernelModule, pointer
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.target import AVX2
from treadle.base import dtype as dt

SAMPLES = all_samples()
needs_compiler = pytest.mark.skipif(host_compiler() is None, reason="needs g++")


@pytest.fixture(scope="module")
def on_host() -> HostKernels:
    return HostKernels([s.kernel for s in SAMPLES], AVX2)


@needs_compiler
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_equals_the_interpreter(sample: Sample, on_host: HostKernels) -> None:
    expected, found = sample.arguments(), sample.arguments()
    run(sample.kernel, expected, 0, sample.items)
    on_host(sample.kernel, found, sample.items, 2, 3)  # fewer threads than items
    outputs = len(sample.labels)
    for label, x, y in zip(sample.labels, expected[-outputs:], found[-outputs:], strict=True):
        differ = np.flatnonzero(~same(x, y))
        assert not differ.size, (label, differ[:4], x[differ[:4]], y[differ[:4]])


def _reversing(count: int) -> KernelModule:
    """Every item writes its number into an array of `count`, and sums it up backwards."""
    out = pointer(dt.int32, "out")

    def write(b, lo, hi) -> None:
        own = b.stack(dt.int32, count)

        def body(item) -> None:
            number = b.cast(item, dt.int32)
            b.loop(0, count, 1, lambda k: b.store(own, k, b.add(number, b.cast(k, dt.int32))))
            zero = b.constant(0, dt.int32)
            (total,) = b.loop(
                0, count, 1, lambda k, t: (b.add(b.load(own, b.sub(count - 1, k)), t),), (zero,)
            )
            b.store(out, item, total)

        b.loop(lo, hi, 1, body)

    return kernel(f"reversing{count}", (out,), write)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 32, 40])
def test_large_private_arrays_are_scratch_of_their_thread(threads: int) -> None:
    small, large = _reversing(8), _reversing(LOCAL)
    on_host = HostKernels([small, large], AVX2)
    assert on_host.scratch == {symbol_of(large): LOCAL * 4}
    for k, count in ((small, 8), (large, LOCAL)):
        out = np.zeros(37, np.int32)
        on_host(k, [out], out.size, 1, threads)
        np.testing.assert_array_equal(
            out, count * np.arange(37) + count * (count - 1) // 2, strict=False
        )


def test_source_needs_no_headers_for_nvrtc() -> None:
    source = cuda_source([SAMPLES[0].kernel], AVX2)
    with_nvrtc = source.split("#else")[0]
    assert "#include" not in with_nvrtc and source.count("#include") == 3
    assert f'extern "C" __global__ void {symbol_of(SAMPLES[0].kernel)}(' in source
