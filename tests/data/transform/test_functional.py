"""Operations on images."""

import cv2
import numpy as np
import pytest

from treadle.base.errors import ShapeError
from treadle.data.transform.vision import functional as F

IMAGE = np.random.RandomState(0).randint(0, 256, (5, 7, 3), np.uint8)


def test_the_channel_axis_is_kept() -> None:
    assert F.to_gray(IMAGE).shape == (5, 7, 1)
    assert F.resize(IMAGE[..., :1], (3, 4)).shape == (3, 4, 1)
    dropped = F.wrap_keepdims(lambda image: image[..., 0])
    assert dropped(IMAGE).shape == (5, 7, 1)
    with pytest.raises(ShapeError, match="3 dims, but got 2"):
        F.to_gray(IMAGE[..., 0])


def test_gray_and_back() -> None:
    expected = IMAGE.astype(float) @ [0.114, 0.587, 0.299]
    assert np.abs(F.to_gray(IMAGE)[..., 0] - expected).max() <= 1
    np.testing.assert_array_equal(F.to_bgr(IMAGE[..., :1]), IMAGE[..., [0, 0, 0]])
    with pytest.raises(ShapeError, match="1 channel"):
        F.to_bgr(IMAGE)


@pytest.mark.parametrize("code", [-1, 0, 1])
def test_flip_as_opencv_does(code: int) -> None:
    np.testing.assert_array_equal(F.flip(IMAGE, flipCode=code), cv2.flip(IMAGE, code))


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "uint8"])
def test_nearest_takes_any_dtype(dtype: str) -> None:
    mask = (IMAGE[..., :1] % 2).astype(dtype)
    resized = F.resize(mask, (10, 14), cv2.INTER_NEAREST)
    assert resized.dtype == mask.dtype
    np.testing.assert_array_equal(resized, mask.repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float16", "float32", "float64"])
def test_other_methods_keep_the_dtype(dtype: str) -> None:
    for method in (cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_CUBIC, cv2.INTER_LANCZOS4):
        flat = F.resize(np.full((8, 8, 3), 9, dtype), (5, 11), method)
        assert flat.dtype == dtype
        np.testing.assert_allclose(flat, 9, rtol=1e-3)


def test_one_of_several_methods_is_drawn() -> None:
    np.random.seed(0)
    methods = [cv2.INTER_NEAREST, cv2.INTER_LINEAR]
    seen = {F.resize(IMAGE, (9, 9), methods).tobytes() for _ in range(30)}
    assert seen == {F.resize(IMAGE, (9, 9), method).tobytes() for method in methods}


@pytest.mark.parametrize("size", [(5,), (0, 5), (1, 2, 3)])
def test_sizes_that_are_none(size: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="resize needs"):
        F.resize(IMAGE, size)
