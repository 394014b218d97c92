"""resize, remap and their adjoints against their references."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.codegen.irregular import against_reference, check_op, draw

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.ops.remap import BORDERS, Remap, RemapGrad
from treadle.ops.resample import COORDINATES, MODES, Resize, ResizeGrad


@pytest.mark.parametrize("op", [Resize, ResizeGrad, Remap, RemapGrad])
def test_samples(op: type) -> None:
    check_op(op, exact=False)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", MODES)
def test_resize(mode: str, coordinates: str) -> None:
    for dtype in (dt.float32, dt.bfloat16):
        x, dy = draw((2, 3, 7, 20), dtype, 1), draw((2, 3, 11, 9), dtype, 2)
        against_reference(Resize(mode, coordinates, (11, 9)), [x], exact=dtype is dt.float32)
        against_reference(ResizeGrad(mode, coordinates, (7, 20)), [dy], exact=False)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_remap(dtype: DType, border: str) -> None:
    x, dy = draw((2, 3, 7, 9), dtype, 1), draw((2, 3, 5, 31), dtype, 2)
    places = np.random.default_rng(3).uniform(-20, 20, (2, 5, 31, 2)).astype(dtype.numpy)
    for interpolation in ("nearest", "linear"):
        op = Remap(interpolation, border, (0, 0), 0.5)
        against_reference(op, [x, places])
        back = RemapGrad(interpolation, border, (0, 0), (7, 9))
        against_reference(back, [places, dy], exact=False)


def test_places_that_are_no_numbers() -> None:
    x, places = draw((1, 1, 3, 3), dt.float32, 1), np.zeros((1, 1, 3, 2), np.float32)
    places[0, 0, :, 0] = np.nan, np.inf, -1e30
    against_reference(Remap("nearest", "replicate", (0, 0), 0.0), [x, places])
