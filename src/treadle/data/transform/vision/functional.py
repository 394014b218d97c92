"""Operations on single images (H, W, C), on which the vision transforms are built."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.data.opencv import cv2

__all__ = ["flip", "pad", "resize", "to_bgr", "to_gray", "wrap_keepdims"]

P = ParamSpec("P")

_RESIZABLE = ("uint8", "uint16", "int16", "float32", "float64")


def wrap_keepdims(func: Callable[Concatenate[Array, P], Array]) -> Callable[..., Array]:
    """Decorator for functions of an image (H, W, C): refuse others, give a lost C axis back.

    Raises:
        ShapeError: from the decorated function, for an image without three axes.
    """

    @functools.wraps(func)
    def wrapper(image: Array, *args: P.args, **kwargs: P.kwargs) -> Array:
        if np.ndim(image) != 3:
            raise ShapeError(
                func.__name__,
                f"image must have 3 dims, but got {np.ndim(image)} dims",
                hint="images are (H, W, C); a grey one gets its axis with image[:, :, None]",
            )
        result = func(image, *args, **kwargs)
        return result[:, :, np.newaxis] if result.ndim == 2 else result

    return wrapper


@wrap_keepdims
def to_gray(image: Array) -> Array:
    """Brightness of a BGR image: (H, W, 3), uint8, uint16 or float32, to (H, W, 1).

    0.114 blue + 0.587 green + 0.299 red (ITU-R BT.601).
    """
    gray: Array = cv2.cvtColor(_with_channels("to_gray", image, 3), cv2.COLOR_BGR2GRAY)
    return gray


@wrap_keepdims
def to_bgr(image: Array) -> Array:
    """A grey image (H, W, 1) with its channel three times: (H, W, 3)."""
    return np.repeat(_with_channels("to_bgr", image, 1), 3, axis=2)


@wrap_keepdims
def pad(
    input: Array, size: int | Sequence[int], value: float | Sequence[float] | Array = 0
) -> Array:
    """Put a border around an image.

    Args:
        input: array (H, W, C) of any dtype.
        size: pixels on every side; or (bottom, right); or (top, bottom, left, right).
        value: what the border is filled with, one number or one per channel. Fractional numbers
            (Python floats) make the result float32.

    Raises:
        ValueError: `size` has another form or is negative, or `value` does not fit the dtype or
            the channels.
    """
    top, bottom, left, right = borders(size)
    fill = np.asarray(value)
    if fill.dtype.kind == "f":
        input = input.astype(np.float32)
    height, width, channels = input.shape
    _check_fill(fill, input.dtype, channels)
    shape = height + top + bottom, width + left + right, channels
    padded = np.empty(shape, dtype=input.dtype)
    padded[:] = fill[:channels] if fill.ndim else fill
    padded[top : top + height, left : left + width] = input
    return padded


def borders(size: int | Sequence[int]) -> tuple[int, int, int, int]:
    """A border's width as (top, bottom, left, right), from any of the three ways to say it."""
    if isinstance(size, int):
        sides: tuple[int, ...] = (size, size, size, size)
    elif len(size) == 2:
        sides = (0, size[0], 0, size[1])
    elif len(size) == 4:
        sides = tuple(size)
    else:
        raise ValueError(
            "size should be an int, (bottom, right) or (top, bottom, left, right), "
            f"but got size={size!r}"
        )
    if min(sides) < 0:
        raise ValueError(f"a border cannot be negative, but got size={size!r}")
    top, bottom, left, right = map(int, sides)
    return top, bottom, left, right


@wrap_keepdims
def flip(image: Array, flipCode: int) -> Array:
    """Mirror an image: left to right (1 and above), top to bottom (0), or both (-1 and below)."""
    if flipCode == 0:
        return np.ascontiguousarray(image[::-1])
    mirrored = image[:, ::-1] if flipCode > 0 else image[::-1, ::-1]
    return np.ascontiguousarray(mirrored)


@wrap_keepdims
def resize(
    input: Array, size: Sequence[int], interpolation: int | Sequence[int] | None = None
) -> Array:
    """Resize an image with pixel centers aligned (a pixel's center is at +0.5).

    Args:
        input: array (H, W, C): uint8, uint16, int16, float16, float32, float64; of any dtype for
            cv2.INTER_NEAREST.
        size: the new (height, width).
        interpolation: one of OpenCV's INTER_NEAREST, INTER_LINEAR (if None), INTER_AREA,
            INTER_CUBIC, INTER_LANCZOS4, or several of which one is drawn.

    Raises:
        ShapeError: `size` is not a pair of positive numbers, or the image is empty.
        DTypeError: the dtype cannot be interpolated.
    """
    if len(size) != 2 or min(size) < 1 or not input.size:
        raise ShapeError(
            "resize", f"resize needs (h, w), but got {tuple(size)}", saw=f"image {input.shape}"
        )
    method = _drawn(interpolation)
    height, width = int(size[0]), int(size[1])
    if method == cv2.INTER_NEAREST:
        rows = np.arange(height) * input.shape[0] // height
        columns = np.arange(width) * input.shape[1] // width
        return np.ascontiguousarray(input[rows[:, None], columns])
    if input.dtype == np.float16:
        return resize(input.astype(np.float32), size, method).astype(np.float16)
    if input.dtype.name not in _RESIZABLE:
        raise DTypeError(
            "resize",
            "this dtype cannot be interpolated",
            saw=input.dtype.name,
            hint="use interpolation=cv2.INTER_NEAREST, or convert to float32",
        )
    resized: Array = cv2.resize(np.ascontiguousarray(input), (width, height), interpolation=method)
    return resized


def _drawn(interpolation: int | Sequence[int] | None) -> int:
    if interpolation is None:
        return int(cv2.INTER_LINEAR)
    if isinstance(interpolation, Sequence):
        return int(interpolation[np.random.randint(len(interpolation))])
    return int(interpolation)


def _with_channels(where: str, image: Array, channels: int) -> Array:
    if image.shape[2] == channels:
        return np.ascontiguousarray(image)
    raise ShapeError(
        where, f"the image must have {channels} channels (H, W, C)", saw=f"{image.shape}"
    )


def _check_fill(fill: Array, dtype: np.dtype[Any], channels: int) -> None:
    if fill.ndim > 1 or (fill.ndim == 1 and fill.size < channels):
        raise ValueError(f"value should be a number or one per channel, got shape {fill.shape}")
    if dtype.kind not in "iu":
        return
    limits = np.iinfo(dtype)
    if fill.size and not (limits.min <= fill.min() and fill.max() <= limits.max):
        raise ValueError(f"value {fill.tolist()} does not fit {dtype}")
