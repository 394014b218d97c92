"""OpenCL text of kernels, without a driver: what is printed, and what is asked of the launch.

That it computes what the interpreter does, `tests/backends/opencl/test_text.py` shows.
"""

from __future__ import annotations

import pytest
from tests.backends.codegen.spelled import Builder, function, kernel
from tests.backends.codegen.test_text import axpy, mean_or_zero

from treadle.backends.codegen.kernel.c_opencl import opencl_source, scratch_bytes
from treadle.backends.codegen.kernel.ir import KernelError, KernelModule, Value, pointer
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.target import AVX2
from treadle.base import dtype as dt

X = pointer(dt.float32, "x")


def reversing() -> KernelModule:
    """Scratch memory in the entry and in a function that it calls."""
    data = pointer(dt.float32, "data")

    def swap(b: Builder) -> None:
        held = b.stack(dt.float64, 3)
        b.store(held, 0, b.cast(b.load(data, 0), dt.float64))
        b.store(data, 0, b.cast(b.load(held, 0), dt.float32))

    swapping = function("swap", (data,), swap)

    def write(b: Builder, lo: Value, hi: Value) -> None:
        own = b.stack(dt.float32, 20)
        b.store(own, 0, b.load(X, lo))
        b.call(swapping, own)
        b.store(X, lo, b.load(own, 0))

    return kernel("reversing", (X,), write, (swapping,))


@pytest.mark.parametrize("single", [True, False], ids=["processor", "graphics"])
def test_text(single: bool, golden) -> None:
    source = opencl_source([mean_or_zero(), axpy(), reversing()], AVX2, single=single)
    golden(source.partition("SHORT_FLOATS(16)\n")[2])


def test_scratch_memory_is_asked_of_the_launch_where_calls_have_none() -> None:
    made, plain = reversing(), axpy()
    # 20 float32 and 3 float64, each from a multiple of 64 bytes on.
    source = opencl_source([made, plain], AVX2, single=False)
    assert scratch_bytes(source) == {symbol_of(made): 128 + 64}
    assert not scratch_bytes(opencl_source([made, plain], AVX2, single=True))


def test_what_is_not_of_the_language_is_refused() -> None:
    bad = kernel("bad", (X,), lambda b, lo, hi: b.shuffle(b.splat(lo, 4), b.splat(lo, 4), (8,)))
    with pytest.raises(KernelError, match=r"bad: shuffle of int64x4"):
        opencl_source([bad], AVX2, single=True)
    half = kernel(
        "half", (X,), lambda b, lo, hi: b.dot(b.splat(lo, 4), b.splat(lo, 4), b.splat(lo, 4))
    )
    with pytest.raises(KernelError, match="half: dot"):
        opencl_source([half], AVX2, single=True)
