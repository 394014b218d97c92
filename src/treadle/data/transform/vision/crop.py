"""Transforms that cut a window out of the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.data.opencv import cv2
from treadle.data.transform.vision import functional as F
from treadle.data.transform.vision.resize import Interpolation, size_pair
from treadle.data.transform.vision_transform import VisionTransform, checked_mask, move_points

_ATTEMPTS = 10


class _Window(NamedTuple):
    """The part of an image that is kept: its top left corner and its size."""

    x: int
    y: int
    width: int
    height: int

    def cut(self, image: Array) -> Array:
        part = image[self.y : self.y + self.height, self.x : self.x + self.width]
        # A view would keep the whole image in memory as long as its part.
        return np.ascontiguousarray(part)


class CenterCrop(VisionTransform):
    """Keeps the middle of the image.

    Args:
        output_size: (height, width), or an int for both.
        order: see `VisionTransform`.

    Raises:
        ValueError: a size is not positive.
        ShapeError: when applied, to an image smaller than that.
    """

    _window = _Window(0, 0, 0, 0)
    _image_size = 0, 0

    def __init__(
        self, output_size: int | Sequence[int], *, order: Sequence[str] | None = None
    ) -> None:
        super().__init__(order)
        self.output_size = size_pair("CenterCrop", output_size)

    def apply(self, input: Any) -> Any:
        height, width = self._get_image(input).shape[:2]
        new_height, new_width = self.output_size
        if new_height > height or new_width > width:
            raise ShapeError(
                "CenterCrop",
                "output size is bigger than image size",
                saw=f"output {self.output_size}, image {(height, width)}",
                hint="put Resize or Pad before it",
            )
        x, y = round((width - new_width) / 2), round((height - new_height) / 2)
        self._window = _Window(x, y, new_width, new_height)
        self._image_size = height, width
        return super().apply(input)

    def _apply_image(self, image: Any) -> Array:
        return self._window.cut(image)

    def _apply_mask(self, mask: Any) -> Array:
        return self._window.cut(checked_mask("CenterCrop", mask, self._image_size))

    def _apply_coords(self, coords: Any) -> Array:
        return move_points("CenterCrop", coords, (self._window.x, self._window.y))


class RandomCrop(VisionTransform):
    """Pads the image, then keeps a window of it at a random place.

    Where even the padded image is too small it is extended at the bottom and right.

    Args:
        output_size: (height, width) of the window, or an int for both.
        padding_size: see `Pad`.
        padding_value: what the image's border is filled with, see `Pad`.
        padding_maskvalue: what the mask's border is filled with.
        order: see `VisionTransform`.

    Raises:
        ValueError: a size is not positive, or the padding has another form.
    """

    _window = _Window(0, 0, 0, 0)
    _borders = 0, 0, 0, 0
    _image_size = 0, 0

    def __init__(
        self,
        output_size: int | Sequence[int],
        padding_size: int | Sequence[int] = 0,
        padding_value: float | Sequence[float] = (0, 0, 0),
        padding_maskvalue: int = 0,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(order)
        self.output_size = size_pair("RandomCrop", output_size)
        self.padding_size = F.borders(padding_size)
        self.padding_value = padding_value
        self.padding_maskvalue = padding_maskvalue

    def apply(self, input: Any) -> Any:
        height, width = self._get_image(input).shape[:2]
        self._image_size = height, width
        top, bottom, left, right = self.padding_size
        new_height, new_width = self.output_size
        bottom += max(0, new_height - (height + top + bottom))
        right += max(0, new_width - (width + left + right))
        x = np.random.randint(0, left + width + right - new_width + 1)
        y = np.random.randint(0, top + height + bottom - new_height + 1)
        self._borders = top, bottom, left, right
        self._window = _Window(x, y, new_width, new_height)
        return super().apply(input)

    def _apply_image(self, image: Any) -> Array:
        return self._window.cut(F.pad(image, self._borders, self.padding_value))

    def _apply_mask(self, mask: Any) -> Array:
        mask = checked_mask("RandomCrop", mask, self._image_size)
        return self._window.cut(F.pad(mask, self._borders, self.padding_maskvalue))

    def _apply_coords(self, coords: Any) -> Array:
        top, _, left, _ = self._borders
        return move_points("RandomCrop", coords, (self._window.x - left, self._window.y - top))


class RandomResizedCrop(VisionTransform):
    """Keeps a window of random area and proportions, scaled to one size.

    The crop of the Inception networks (Szegedy et al. 2015, section 6): ten attempts at an area
    and a proportion, drawn evenly on a logarithmic scale, that fit into the image; after that the
    largest middle part with admitted proportions.

    Args:
        output_size: (height, width) of the result, or an int for both.
        scale_range: least and greatest area of the window, as shares of the image's.
        ratio_range: least and greatest width / height of the window.
        interpolation: see `Resize`.
        order: see `VisionTransform`.

    Raises:
        ValueError: a range is empty or not positive, or a size is not positive.
    """

    _window = _Window(0, 0, 0, 0)
    _image_size = 0, 0

    def __init__(
        self,
        output_size: int | Sequence[int],
        scale_range: Sequence[float] = (0.08, 1.0),
        ratio_range: Sequence[float] = (3.0 / 4, 4.0 / 3),
        interpolation: Interpolation = cv2.INTER_LINEAR,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(order)
        self.output_size = size_pair("RandomResizedCrop", output_size)
        for name, limits in (("scale_range", scale_range), ("ratio_range", ratio_range)):
            if len(limits) != 2 or not 0 < limits[0] <= limits[1]:
                raise ValueError(f"{name} should be of kind (min, max), got {tuple(limits)}")
        self.scale_range = (scale_range[0], scale_range[1])
        self.ratio_range = (ratio_range[0], ratio_range[1])
        self.interpolation = interpolation

    def apply(self, input: Any) -> Any:
        height, width = self._get_image(input).shape[:2]
        self._image_size = height, width
        self._window = self._drawn_window(height, width) or self._middle(height, width)
        return super().apply(input)

    def _drawn_window(self, height: int, width: int) -> _Window | None:
        low, high = map(math.log, self.ratio_range)
        for _ in range(_ATTEMPTS):
            area = np.random.uniform(*self.scale_range) * height * width
            ratio = math.exp(np.random.uniform(low, high))
            new_width, new_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < new_width <= width and 0 < new_height <= height:
                x = np.random.randint(0, width - new_width + 1)
                y = np.random.randint(0, height - new_height + 1)
                return _Window(x, y, new_width, new_height)
        return None

    def _middle(self, height: int, width: int) -> _Window:
        low, high = self.ratio_range
        new_width, new_height = width, height
        if width / height < low:
            new_height = max(1, min(height, round(width / low)))
        elif width / height > high:
            new_width = max(1, min(width, round(height * high)))
        return _Window((width - new_width) // 2, (height - new_height) // 2, new_width, new_height)

    def _apply_image(self, image: Any) -> Array:
        return F.resize(self._window.cut(image), self.output_size, self.interpolation)

    def _apply_mask(self, mask: Any) -> Array:
        mask = checked_mask("RandomResizedCrop", mask, self._image_size)
        return F.resize(self._window.cut(mask), self.output_size, cv2.INTER_NEAREST)

    def _apply_coords(self, coords: Any) -> Array:
        window = self._window
        scale = self.output_size[1] / window.width, self.output_size[0] / window.height
        return move_points("RandomResizedCrop", coords, (window.x, window.y), scale)
