"""Blocks are read and written as by the package gguf, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.base.blocks import FORMATS, BlockFormat

pytestmark = pytest.mark.llm

WRITTEN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("form", FORMATS.values(), ids=str)
def test_any_bytes_are_read_alike(form: BlockFormat) -> None:
    import gguf

    raw = np.random.default_rng(0).integers(0, 256, (64, 7 * form.bytes), dtype=np.uint8)
    kind = gguf.GGMLQuantizationType[form.name]
    assert kind.value == form.number
    assert gguf.GGML_QUANT_SIZES[kind] == (form.elements, form.bytes)
    ours, theirs = form.dequantize(raw), gguf.quants.dequantize(raw, kind)
    alike = ours.view(np.uint32) == theirs.view(np.uint32)
    assert (alike | np.isnan(ours) & np.isnan(theirs)).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1, 1e-3, 100])
@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_are_written_alike(name: str, scale: float) -> None:
    import gguf

    x = np.random.default_rng(1).standard_normal((50, 9 * 32)).astype(np.float32) * scale
    x[3], x[4], x[5], x[6, 5] = 0, 2.5, -1, -0.0
    theirs = gguf.quants.quantize(x.astype(np.float32), gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(FORMATS[name].quantize(x), theirs)
