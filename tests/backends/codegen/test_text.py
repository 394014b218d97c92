"""Text and digests of kernels."""

from __future__ import annotations

import gc
import weakref

from tests.backends.codegen.spelled import Builder, function, kernel

from treadle.backends.codegen.kernel.c import c_source
from treadle.backends.codegen.kernel.ir import KernelModule, Value, pointer, size
from treadle.backends.codegen.kernel.llvm import module_text
from treadle.backends.codegen.kernel.text import digest, kernel_text, symbol_of
from treadle.backends.codegen.target import AVX2
from treadle.base import dtype as dt


def axpy(name: str = "axpy", factor: float = 2.0) -> KernelModule:
    """y += factor x, eight at a time, with a masked tail."""
    x, y, n = pointer(dt.float32, "x"), pointer(dt.float32, "y"), size("n")

    def write(b: Builder, lo: Value, hi: Value) -> None:
        def body(item: Value) -> None:
            at = b.mul(item, 8)
            mask = b.first_lanes(b.sub(n, at), 8)
            made = b.fma(b.load(x, at, 8, mask), factor, b.load(y, at, 8, mask))
            b.store(y, at, made, mask)

        b.loop(lo, hi, 1, body)

    return kernel(name, (x, y, n), write)


def mean_or_zero() -> KernelModule:
    """Every structure: a called function, a loop with a carried sum, a branch with a result."""
    x, n, out = pointer(dt.int32, "x"), size("n"), pointer(dt.float64, "out")
    target, place = pointer(dt.float64, "target"), size("place")

    def clear_body(b: Builder) -> None:
        b.store(target, place, b.constant(0.0, dt.float64))

    clear = function("clear", (target, place), clear_body)

    def write(b: Builder, lo: Value, hi: Value) -> None:
        b.call(clear, out, lo)
        zero = b.constant(0, dt.int64)
        (total,) = b.loop(0, n, 1, lambda i, t: b.add(t, b.cast(b.load(x, i), dt.int64)), (zero,))
        (mean,) = b.branch(
            b.compare("lt", 0, n),
            lambda: b.div(b.cast(total, dt.float64), b.cast(n, dt.float64)),
            lambda: b.constant(0.0, dt.float64),
            [b.constant(0.0, dt.float64)],
        )
        b.store(out, lo, mean)

    return kernel("mean", (x, n, out), write, (clear,))


def test_kernel_text(golden) -> None:
    golden(kernel_text(axpy()), "axpy")
    golden(kernel_text(mean_or_zero()), "mean")


def test_llvm_text(golden) -> None:
    golden(module_text([axpy()], AVX2), "axpy")
    golden(module_text([mean_or_zero()], AVX2), "mean")


def test_c_text(golden) -> None:
    source = c_source([mean_or_zero(), axpy()], AVX2)
    golden(source[source.index("typedef") :])


def test_digest_ignores_the_name_only() -> None:
    assert digest(axpy()) == digest(axpy("other"))
    assert digest(axpy()) != digest(axpy(factor=2.5))
    assert digest(mean_or_zero()) == digest(mean_or_zero())


def test_symbols_are_names_that_assemblers_take() -> None:
    kernel_ = axpy("relu+ä b")
    assert symbol_of(kernel_) == f"relu___b_{digest(kernel_)[:16]}"


def test_digests_do_not_keep_kernels_alive() -> None:
    kernel_ = axpy()
    digest(kernel_)
    alive = weakref.ref(kernel_)
    del kernel_
    gc.collect()
    assert alive() is None


def test_equal_kernels_are_emitted_once() -> None:
    assert module_text([axpy(), axpy()], AVX2) == module_text([axpy()], AVX2)
