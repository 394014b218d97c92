"""Transforms written for Pillow images."""

from typing import Any

import numpy as np
import pytest

from treadle.base.errors import ShapeError
from treadle.data.transform import TorchTransformCompose

pytest.importorskip("PIL.Image", reason="works on Pillow's images, and Pillow is optional")

IMAGE = np.random.RandomState(0).randint(0, 256, (5, 7, 3), np.uint8)


def test_channels_are_turned_and_turned_back() -> None:
    seen: list[Any] = []

    def look(image: Any) -> Any:
        seen.append(np.asarray(image))
        return image.crop((0, 0, 4, 5))

    result, label = TorchTransformCompose([look]).apply((IMAGE, 2))
    np.testing.assert_array_equal(seen[0], IMAGE[..., ::-1])
    np.testing.assert_array_equal(result, IMAGE[:, :4])
    assert label == 2


def test_gray_images_and_tensors() -> None:
    gray = IMAGE[..., :1]
    np.testing.assert_array_equal(TorchTransformCompose([]).apply(gray), gray)
    first = TorchTransformCompose([lambda image: np.asarray(image).transpose(2, 0, 1) / 255])
    np.testing.assert_allclose(first.apply(IMAGE), IMAGE.transpose(2, 0, 1) / 255)


def test_masks_have_no_rule() -> None:
    both = TorchTransformCompose([], order=("image", "mask"))
    with pytest.raises(NotImplementedError, match="no rule for masks"):
        both.apply((IMAGE, IMAGE[..., :1]))
    with pytest.raises(ShapeError, match="1 or 3 channels"):
        TorchTransformCompose([]).apply(IMAGE[..., :2])
