"""C text of kernels: compiled by the system's compiler, it computes what the interpreter does."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.execution import Native, c_compiler, compiled_c, same
from tests.backends.codegen.samples import Sample, all_samples

from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.target import AVX2

SAMPLES = all_samples()
pytestmark = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> Native:
    return compiled_c([s.kernel for s in SAMPLES], AVX2, tmp_path_factory.mktemp("c"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_equals_the_interpreter(sample: Sample, native: Native) -> None:
    expected, found = sample.arguments(), sample.arguments()
    run(sample.kernel, expected, 0, sample.items)
    native(sample.kernel, found, 0, sample.items)
    outputs = len(sample.labels)
    for label, x, y in zip(sample.labels, expected[-outputs:], found[-outputs:], strict=True):
        differ = np.flatnonzero(~same(x, y))
        assert not differ.size, (label, differ[:4], x[differ[:4]], y[differ[:4]])
