"""Transforms that give the image another size: pad and resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.data.opencv import cv2
from treadle.data.transform.vision import functional as F
from treadle.data.transform.vision_transform import VisionTransform, checked_mask, move_points

Interpolation = int | Sequence[int]


class Pad(VisionTransform):
    """Puts a border around images and masks, and moves points along.

    Args:
        size: pixels on every side; or (bottom, right); or (top, bottom, left, right).
        value: what the image's border is filled with: one number for all channels or one per
            channel. Python floats make the image float32.
        mask_value: what the mask's border is filled with.
        order: see `VisionTransform`.

    Raises:
        ValueError: `size` has another form, or `mask_value` is not an int.
    """

    def __init__(
        self,
        size: int | Sequence[int] = 0,
        value: float | Sequence[float] = 0,
        mask_value: int = 0,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(order)
        self.size = F.borders(size)
        self.value = value
        if not isinstance(mask_value, int):
            raise ValueError(f"mask_value should be an integer, but got mask_value={mask_value}")
        self.mask_value = mask_value

    def _apply_image(self, image: Any) -> Array:
        return F.pad(image, self.size, self.value)

    def _apply_mask(self, mask: Any) -> Array:
        return F.pad(mask, self.size, self.mask_value)

    def _apply_coords(self, coords: Any) -> Array:
        top, _, left, _ = self.size
        return move_points("Pad", coords, (-left, -top))


class _Resizing(VisionTransform):
    """Scales images, masks (by nearest neighbor) and points to a size that depends on the image."""

    _height = _width = _new_height = _new_width = 0

    def __init__(self, interpolation: Interpolation, order: Sequence[str] | None) -> None:
        super().__init__(order)
        self.interpolation = interpolation

    def apply(self, input: Any) -> Any:
        self._height, self._width = self._get_image(input).shape[:2]
        height, width = self._target(self._height, self._width)
        # A thin image may be scaled to less than a pixel.
        self._new_height, self._new_width = max(1, height), max(1, width)
        return super().apply(input)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        raise NotImplementedError

    def _is_idle(self) -> bool:
        return (self._height, self._width) == (self._new_height, self._new_width)

    def _apply_image(self, image: Any) -> Any:
        if self._is_idle():
            return image
        return F.resize(image, (self._new_height, self._new_width), self.interpolation)

    def _apply_mask(self, mask: Any) -> Any:
        mask = checked_mask(type(self).__name__, mask, (self._height, self._width))
        if self._is_idle():
            return mask
        return F.resize(mask, (self._new_height, self._new_width), cv2.INTER_NEAREST)

    def _apply_coords(self, coords: Any) -> Any:
        if self._is_idle():
            return coords
        scale = self._new_width / self._width, self._new_height / self._height
        return move_points(type(self).__name__, coords, (0, 0), scale)


class Resize(_Resizing):
    """Scales to a given size.

    Args:
        output_size: (height, width); or an int for the shorter side, the longer one in proportion
            (rounded down).
        interpolation: OpenCV's INTER_NEAREST, INTER_LINEAR, INTER_AREA, INTER_CUBIC or
            INTER_LANCZOS4, or several of which one is drawn for each image. Masks are always
            scaled by nearest neighbor. INTER_LINEAR does not smooth when it makes an image
            smaller; INTER_AREA does.
        order: see `VisionTransform`.

    Raises:
        ValueError: a size is not positive.
    """

    def __init__(
        self,
        output_size: int | Sequence[int],
        interpolation: Interpolation = cv2.INTER_LINEAR,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(interpolation, order)
        size_pair("Resize", output_size)
        self.output_size = output_size

    def _target(self, height: int, width: int) -> tuple[int, int]:
        size = self.output_size
        if not isinstance(size, int):
            return size[0], size[1]
        if min(height, width) == size:
            return height, width
        if height < width:
            return size, int(size * width / height)
        return int(size * height / width), size


class ShortestEdgeResize(_Resizing):
    """Scales the shorter side to a random length, the longer one in proportion up to a limit.

    Args:
        min_size: length of the shorter side; a pair of limits for "range", a list for "choice".
        max_size: limit of the longer side; the image is made smaller to keep it.
        sample_style: "range" draws a whole number between the two limits, both included; "choice"
            draws one of `min_size`.
        interpolation: see `Resize`.
        order: see `VisionTransform`.

    Raises:
        NotImplementedError: another `sample_style`.
        ValueError: a size is not positive.
    """

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int,
        sample_style: str = "range",
        interpolation: Interpolation = cv2.INTER_LINEAR,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(interpolation, order)
        if sample_style not in ("range", "choice"):
            raise NotImplementedError(f"{sample_style} is unsupported sample style")
        self.sample_style = sample_style
        self.min_size = (min_size, min_size) if isinstance(min_size, int) else tuple(min_size)
        self.max_size = max_size
        if not self.min_size or min(*self.min_size, max_size) < 1:
            raise ValueError(f"sizes should be positive, got {min_size} and {max_size}")
        if sample_style == "range" and not (
            len(self.min_size) == 2 and self.min_size[0] <= self.min_size[1]
        ):
            raise ValueError(f"min_size should be (least, most) for 'range', got {min_size}")

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if self.sample_style == "range":
            size = np.random.randint(self.min_size[0], self.min_size[1] + 1)
        else:
            size = int(np.random.choice(self.min_size))
        scale = size / min(height, width)
        scale = min(scale, self.max_size / max(height, width))
        return round(height * scale), round(width * scale)


class RandomResize(_Resizing):
    """Scales both sides by one random factor.

    Args:
        scale_range: least and greatest factor, drawn evenly.
        interpolation: see `Resize`.
        order: see `VisionTransform`.

    Raises:
        ValueError: the range is empty or not positive.
    """

    def __init__(
        self,
        scale_range: Sequence[float],
        interpolation: Interpolation = cv2.INTER_LINEAR,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(interpolation, order)
        low, high = scale_range
        if not 0 < low <= high:
            raise ValueError(f"scale_range should be (least, most) above 0, got {scale_range}")
        self.scale_range = (low, high)

    def _target(self, height: int, width: int) -> tuple[int, int]:
        scale = np.random.uniform(*self.scale_range)
        return round(height * scale), round(width * scale)


def size_pair(where: str, size: int | Sequence[int]) -> tuple[int, int]:
    """A size as (height, width), from a pair or from one number for both.

    Raises:
        ValueError: anything else, or not positive.
    """
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{where}: output_size should be an int or (height, width), got {size!r}")
    return int(pair[0]), int(pair[1])
