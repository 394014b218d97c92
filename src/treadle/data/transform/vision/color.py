"""Transforms of colors, which leave points and masks as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.data.opencv import cv2
from treadle.data.transform.compose import Compose
from treadle.data.transform.vision import functional as F
from treadle.data.transform.vision_transform import VisionTransform, checked_image

Amount = float | Sequence[float]

_LEVELS = 255
# Principal components of the colors of ImageNet (Krizhevsky et al. 2012, section 4.1), rows in the
# order blue, green, red.
_EIGENVECTORS = np.array(
    [[-0.5836, -0.6948, 0.4203], [-0.5808, -0.0045, -0.8140], [-0.5675, 0.7192, 0.4009]]
)
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])


class _ColorTransform(VisionTransform):
    """Changes images (H, W, C), uint8 or floating with values from 0 to 255."""

    def _apply_mask(self, mask: Any) -> Any:
        return mask

    def _apply_coords(self, coords: Any) -> Any:
        return coords

    def _checked(self, image: Any) -> Array:
        name = type(self).__name__
        array = checked_image(name, image)
        if array.dtype != np.uint8 and array.dtype.kind != "f":
            raise DTypeError(
                name,
                "colors are changed in uint8 images, or floating ones from 0 to 255",
                saw=str(array.dtype),
                hint="convert a 16-bit image: (image // 257).astype('uint8')",
            )
        return array

    def _is_gray(self, image: Array) -> bool:
        if image.shape[2] in (1, 3):
            return bool(image.shape[2] == 1)
        raise ShapeError(type(self).__name__, "an image has 1 or 3 channels", saw=f"{image.shape}")

    def _gray(self, image: Array) -> Array:
        """Brightness (H, W, 1) of a BGR image; a grey one is its own."""
        return image if self._is_gray(image) else F.to_gray(image)


class Normalize(VisionTransform):
    """(image - mean) / std, per channel, as float32.

    Args:
        mean: one number, or one per channel of an image (H, W, C); an array that broadcasts
            against the image, such as (C, 1, 1) for one that is (C, H, W) already.
        std: likewise.
        order: see `VisionTransform`. Points and masks stay as they are.

    Raises:
        ValueError: a `std` of zero.
        ShapeError: when applied, to an image that does not have these channels.
    """

    def __init__(
        self,
        mean: float | Sequence[float] | Array = 0.0,
        std: float | Sequence[float] | Array = 1.0,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(order)
        self.mean = np.array(mean, dtype=np.float32)
        self.std = np.array(std, dtype=np.float32)
        if not self.std.all():
            raise ValueError(f"std should not be zero, but got std={std}")

    def _apply_image(self, image: Any) -> Array:
        array = np.asarray(image).astype(np.float32)
        try:
            result: Array = (array - self.mean) / self.std
        except ValueError:
            result = np.empty(0, np.float32)
        if result.shape != array.shape:
            raise ShapeError(
                "Normalize",
                "mean and std do not fit the image's channels",
                saw=f"image {array.shape}, mean {self.mean.shape}, std {self.std.shape}",
                hint="images are (H, W, C) here: put ToMode after Normalize",
            )
        return result

    def _apply_mask(self, mask: Any) -> Any:
        return mask

    def _apply_coords(self, coords: Any) -> Any:
        return coords


class GaussianNoise(_ColorTransform):
    """Adds noise to every value of the image, and keeps it within 0 to 255.

    Args:
        mean: of the noise, as a share of 255; one number or one per channel.
        std: its standard deviation, likewise.
        order: see `VisionTransform`.

    Raises:
        ValueError: `std` is negative.
    """

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(order)
        self.mean = np.array(mean, dtype=np.float32)
        self.std = np.array(std, dtype=np.float32)
        if (self.std < 0).any():
            raise ValueError(f"std should not be negative, but got std={std}")

    def _apply_image(self, image: Any) -> Array:
        array = self._checked(image)
        noise = np.random.normal(self.mean, self.std, array.shape) * _LEVELS
        return _clipped(array + noise.astype(np.float32), array.dtype)


class _FactorTransform(_ColorTransform):
    """Changes a quality of the image by a random factor."""

    _quality = ""

    def __init__(self, value: Amount, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        self._limits = _factor_limits(self._quality, value)
        self.value = value

    def _apply_image(self, image: Any) -> Array:
        array = self._checked(image)
        if self.value == 0:
            return array
        return _clipped(self._changed(array.astype(np.float32), self._factor()), array.dtype)

    def _factor(self) -> np.float32:
        return np.float32(np.random.uniform(*self._limits))

    def _changed(self, image: Array, factor: np.float32) -> Array:
        raise NotImplementedError("a transform says what its factor does")


class BrightnessTransform(_FactorTransform):
    """Multiplies the image by a random factor.

    Args:
        value: the factor is drawn evenly from [max(0, 1 - value), 1 + value]; or the (least,
            greatest) factor. 0 leaves images as they are.
        order: see `VisionTransform`.

    Raises:
        ValueError: the value is negative.
    """

    _quality = "brightness"

    def _changed(self, image: Array, factor: np.float32) -> Array:
        return image * factor


class ContrastTransform(_FactorTransform):
    """Moves the image towards its mean brightness, or away from it, by a random factor.

    Args:
        value: see `BrightnessTransform`.
        order: see `VisionTransform`.

    Raises:
        ValueError: the value is negative.
    """

    _quality = "contrast"

    def _changed(self, image: Array, factor: np.float32) -> Array:
        changed: Array = image * factor + self._gray(image).mean() * (1 - factor)
        return changed


class SaturationTransform(_FactorTransform):
    """Moves the image towards its grey version, or away from it, by a random factor.

    A grey image (H, W, 1) stays as it is.

    Args:
        value: see `BrightnessTransform`.
        order: see `VisionTransform`.

    Raises:
        ValueError: the value is negative.
    """

    _quality = "saturation"

    def _changed(self, image: Array, factor: np.float32) -> Array:
        return image * factor + self._gray(image) * (1 - factor)


class HueTransform(_ColorTransform):
    """Turns all colors around the color circle by a random angle.

    A grey image (H, W, 1) stays as it is. Computed on 8 bits, whatever the image's dtype.

    Args:
        value: the angle is drawn evenly from [-value, value], 0.5 being half the circle; or the
            (least, greatest) angle.
        order: see `VisionTransform`.

    Raises:
        ValueError: the value is outside [0, 0.5] or, for a pair, [-0.5, 0.5].
    """

    def __init__(self, value: Amount, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        pair = value if isinstance(value, Sequence) else (-value, value)
        if len(pair) != 2 or not -0.5 <= pair[0] <= pair[1] <= 0.5:
            raise ValueError(f"hue value should be in [0.0, 0.5], but got {value}")
        self._limits = (pair[0], pair[1])
        self.value = value

    def _apply_image(self, image: Any) -> Array:
        array = self._checked(image)
        if self.value == 0:
            return array
        turn = int(np.random.uniform(*self._limits) * _LEVELS)
        if self._is_gray(array):
            return array
        hsv = cv2.cvtColor(_clipped(array, np.dtype(np.uint8)), cv2.COLOR_BGR2HSV_FULL)
        # The circle has 256 steps, so that the sum may run over.
        hsv[..., 0] += np.uint8(turn % 256)
        turned = np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR_FULL))
        return turned.astype(array.dtype)


class ColorJitter(_ColorTransform):
    """Changes brightness, contrast, saturation and hue, in random order.

    Args:
        brightness: see `BrightnessTransform`.
        contrast: see `ContrastTransform`.
        saturation: see `SaturationTransform`.
        hue: see `HueTransform`.
        order: see `VisionTransform`.

    Raises:
        ValueError: a value is out of its range.
    """

    def __init__(
        self,
        brightness: Amount = 0,
        contrast: Amount = 0,
        saturation: Amount = 0,
        hue: Amount = 0,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        kinds = (BrightnessTransform, ContrastTransform, SaturationTransform, HueTransform)
        values = (brightness, contrast, saturation, hue)
        parts = [kind(value) for kind, value in zip(kinds, values, strict=True) if value != 0]
        self.transforms = Compose(parts, shuffle_indices=[tuple(range(1, len(parts) + 1))])
        super().__init__(order)

    def set_order(self, order: Sequence[str]) -> None:
        super().set_order(order)
        self.transforms.set_order(order)

    def apply(self, input: Any) -> Any:
        return self.transforms.apply(input)


class Lighting(_ColorTransform):
    """Adds a random mixture of the principal color components of ImageNet.

    After Krizhevsky et al. (2012), section 4.1, for images from 0 to 255: the strengths are drawn
    from a normal distribution of deviation `255 scale` and multiplied by the eigenvalues (0.2175,
    0.0188, 0.0045).

    Args:
        scale: standard deviation of the strengths, as a part of 255; usually 0.1.
        order: see `VisionTransform`.

    Raises:
        ValueError: `scale` is negative.
        ShapeError: when applied, to an image without three channels.
    """

    def __init__(self, scale: float, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if scale < 0:
            raise ValueError("lighting scale should be non-negative")
        self.scale = scale
        self.eigvec = _EIGENVECTORS
        self.eigval = _EIGENVALUES

    def _apply_image(self, image: Any) -> Array:
        array = self._checked(image)
        if self.scale == 0:
            return array
        if array.shape[2] != 3:
            raise ShapeError("Lighting", "the image must have 3 channels", saw=f"{array.shape}")
        strengths = np.random.normal(scale=self.scale * 255, size=3)
        return _clipped(array + self.eigvec.dot(strengths * self.eigval), array.dtype)


def _factor_limits(quality: str, value: Amount) -> tuple[float, float]:
    if isinstance(value, Sequence):
        low, high = value
    else:
        low, high = (max(0, 1 - value), 1 + value) if value >= 0 else (-1, -1)
    if not 0 <= low <= high:
        raise ValueError(f"{quality} value should be non-negative, but got {value}")
    return low, high


def _clipped(image: Array, dtype: np.dtype[Any]) -> Array:
    clipped: Array = image.clip(0, _LEVELS).astype(dtype)
    return clipped
