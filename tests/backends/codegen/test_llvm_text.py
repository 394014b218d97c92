"""LLVM text of kernels: what it computes is what the interpreter computes, on every target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.codegen.execution import RUNNABLE, Native, assembly, compiled, object_code, same
from tests.backends.codegen.samples import Sample, all_samples
from tests.backends.codegen.spelled import Builder, kernel

from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.kernel.ir import KernelModule, Value, pointer
from treadle.backends.codegen.kernel.llvm import module_text
from treadle.backends.codegen.target import AVX2, AVX512, NEON, NEON_DOT, TARGETS, Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType

SAMPLES = all_samples()
_NATIVE: dict[str, Native] = {}


def native(name: str) -> Native:
    """All kernels for a target, compiled once."""
    if name not in _NATIVE:
        _NATIVE[name] = compiled([s.kernel for s in SAMPLES], TARGETS[name])
    return _NATIVE[name]


@pytest.mark.parametrize("target", [t.name for t in RUNNABLE])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_equals_the_interpreter(sample: Sample, target: str) -> None:
    expected, found = sample.arguments(), sample.arguments()
    run(sample.kernel, expected, 0, sample.items, fused=TARGETS[target].fma)
    native(target)(sample.kernel, found, 0, sample.items)
    for label, x, y in zip(
        sample.labels, expected[-len(sample.labels) :], found[-len(sample.labels) :], strict=True
    ):
        differ = np.flatnonzero(~same(x, y))
        assert not differ.size, (label, differ[:4], x[differ[:4]], y[differ[:4]])


WITH_DOTS = replace(
    AVX512, dot_int8=True, dot_bfloat16=True, features=("+avx512vnni", "+avx512bf16")
)
ARM_WITH_DOTS = NEON_DOT


@pytest.mark.parametrize("target", [AVX512, WITH_DOTS, NEON, ARM_WITH_DOTS])
def test_other_processors_have_code_for_it(target: Target) -> None:
    kernels = [s.kernel for s in SAMPLES if s.name.endswith(("8", "fibonacci", "nested", "dot16"))]
    assert len(object_code(kernels, target)) > 10_000


@pytest.mark.parametrize(
    ("target", "lanes", "codes"),
    [
        (WITH_DOTS, 16, ("vpdpbusd", "vdpbf16ps")),
        (ARM_WITH_DOTS, 4, ("usdot", "bfdot")),
        (replace(NEON_DOT, triple="aarch64-apple-macosx"), 4, ("usdot", "bfdot")),
        (AVX2, 8, ("vpmaddwd",)),
    ],
)
def test_dots_become_instructions(target: Target, lanes: int, codes: tuple[str, ...]) -> None:
    (made,) = (s.kernel for s in SAMPLES if s.name == f"dot{lanes}")
    text = assembly([made], target)
    assert all(code in text for code in codes)


def test_min_and_max_are_one_instruction() -> None:
    x = pointer(dt.float32)

    def write(b: Builder, lo: Value, hi: Value) -> None:
        b.store(x, lo, b.min(b.max(b.load(x, lo, 8), 0.0), 6.0))

    text = assembly([kernel("clip", (x,), write)], AVX2)
    assert "vmaxps" in text and "vminps" in text and "vcmp" not in text


def _first(count: int, dtype: DType, lanes: int) -> KernelModule:
    x, y = pointer(dtype), pointer(dtype)
    return kernel(
        "first",
        (x, y),
        lambda b, lo, hi: b.store(y, 0, b.load(x, 0, lanes, b.first_lanes(count, lanes))),
    )


@pytest.mark.parametrize("target", [t.name for t in RUNNABLE])
@pytest.mark.parametrize("lanes", [8, 12, 16, 32])
@pytest.mark.parametrize("dtype", [dt.int32, dt.float64, dt.uint8], ids=str)
def test_masks_known_in_advance(dtype: DType, lanes: int, target: str) -> None:
    """LLVM 22 stops, or makes wrong code, where it sees such masks as constants."""
    counts = (0, 1, 8, 9, lanes, lanes + 1)
    kernels = [_first(count, dtype, lanes) for count in counts]
    call = compiled(kernels, TARGETS[target])
    x = np.arange(1, lanes + 1).astype(dtype.numpy)
    for count, made in zip(counts, kernels, strict=True):
        y = np.zeros_like(x)
        call(made, [x, y], 0, 1)
        assert y.tolist() == [*range(1, min(count, lanes) + 1), *[0] * (lanes - count)]


def test_streaming_stores_end_in_a_fence() -> None:
    def write(streaming: bool) -> KernelModule:
        e = KernelBuilder([x := pointer(dt.float32)])
        x.store(0, e.constant(0.0, dt.float32, 8), aligned=True, streaming=streaming)
        return e.kernel("stream")

    assert "fence" in module_text([write(True)], AVX2)
    assert "fence" not in module_text([write(False)], AVX2)
