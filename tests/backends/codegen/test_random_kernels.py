"""Random kernels compute natively what they compute in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.execution import RUNNABLE, Native, compiled, same
from tests.backends.codegen.random_kernels import COUNT, Generator

from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.target import TARGETS

GENERATORS = [Generator(seed) for seed in range(60)]
KERNELS = [g.kernel() for g in GENERATORS]
_NATIVE: dict[str, Native] = {}


def native(name: str) -> Native:
    if name not in _NATIVE:
        _NATIVE[name] = compiled(KERNELS, TARGETS[name])
    return _NATIVE[name]


@pytest.mark.parametrize("target", [t.name for t in RUNNABLE])
@pytest.mark.parametrize("seed", range(len(GENERATORS)))
def test_equals_the_interpreter(seed: int, target: str) -> None:
    kernel, generator = KERNELS[seed], GENERATORS[seed]
    expected, found = generator.arguments(), generator.arguments()
    items = COUNT // 16
    run(kernel, expected, 2, items, fused=TARGETS[target].fma)
    native(target)(kernel, found, 2, items)
    for x, y in zip(expected, found, strict=True):
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            differ = np.flatnonzero(~same(x, y))
            assert not differ.size, (x.dtype, differ[:4], x[differ[:4]], y[differ[:4]])
