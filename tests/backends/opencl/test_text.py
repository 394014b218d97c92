"""OpenCL text of kernels: compiled by the driver, it computes what the interpreter does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import same
from tests.backends.codegen.samples import Sample, all_samples
from tests.backends.targets import HERE

from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.base import dtype as dt

AT_ONCE = 12
NAMES = (
    *(f"{d.name}x8" for d in (*dt.INTEGERS, *dt.FLOATS, dt.bool_)),
    *(f"cast {d}x8" for d in ("bool", "uint8", "int16", "uint64", "float16", "float32", "float64")),
    *(f"lanes {d}x16" for d in ("uint8", "int32", "bfloat16", "float32", "float64")),
    *(f"memory {d}x8" for d in ("bool", "uint16", "int64", "float16", "float32")),
    *("uint8x1", "int32x1", "float16x1", "memory float32x1"),  # others are printed as in C11
    *("boolx32", "float32x16", "dot1", "dot4", "dot8", "fibonacci", "nested", "calls"),
)
"""Drivers take their time, so not all of them."""
SAMPLES = [s for s in all_samples() if s.name in NAMES]


def test_the_samples_are_there() -> None:
    assert len(SAMPLES) == len(NAMES)


def launch(compiler: Any, device: Any, kernel: Any, arguments: Sequence[Any], items: int) -> None:
    """Run a kernel on copies of arrays, which get back what it wrote."""
    library, stream = compiler.library, device.stream()
    (made,) = library.load(device, [symbol_of(kernel)])
    places: list[Any] = []
    for a in arguments:
        if isinstance(a, np.ndarray):
            buffer = device.alloc(a.nbytes + 64)
            device.copy_in(device.part(buffer, 64, a.nbytes), _bytes(a), stream)
            places.append((buffer, 64))
        else:
            places.append(a)
    library.renderer.launch(device, made, tuple(places), items, False, stream)
    for a, place in zip(arguments, places, strict=True):
        if isinstance(a, np.ndarray):
            if a.flags.writeable:
                device.copy_out(_bytes(a), device.part(place[0], 64, a.nbytes), stream)
            device.free(place[0])


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


@pytest.mark.parametrize("first", range(0, len(SAMPLES), AT_ONCE))
def test_equals_the_interpreter(first: int, compiler: Any, device: Any) -> None:
    samples = SAMPLES[first : first + AT_ONCE]
    compiler.library.add({symbol_of(s.kernel): s.kernel for s in samples})
    for sample in samples:
        expected, found = sample.arguments(), sample.arguments()
        run(sample.kernel, expected, 0, sample.items)
        launch(compiler, device, sample.kernel, found, sample.items)
        _compare(sample, expected, found)


def _compare(sample: Sample, expected: Sequence[Any], found: Sequence[Any]) -> None:
    outputs = len(sample.labels)
    for label, x, y in zip(sample.labels, expected[-outputs:], found[-outputs:], strict=True):
        if (label, x.dtype) == ("rem", np.float64) and "avx512" in HERE:
            continue  # PoCL's fmod of doubles is wrong there where a quotient exceeds 2 ** 53.
        differ = np.flatnonzero(~same(x, y))
        assert not differ.size, (sample.name, label, differ[:4], x[differ[:4]], y[differ[:4]])
