"""Image files as arrays, or an error that says what is wrong with the file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from treadle.base import env
from treadle.base.array import Array
from treadle.data.failure import ImageError
from treadle.data.image_header import read_header
from treadle.data.opencv import cv2

__all__ = ["decode_image", "read_gray", "read_image"]


def read_image(path: str | os.PathLike[str]) -> Array:
    """Read a color image: uint8 of shape (H, W, 3), channels blue, green, red.

    Whatever the file holds becomes that: a grey image has its channel three times; palettes and
    CMYK are converted; transparency is dropped, with the color behind it kept; 16 bits become the
    upper 8; of an animation the first frame is read; an image that its EXIF data calls turned is
    turned upright.

    Args:
        path: a file in a format of OpenCV, such as JPEG, PNG, WebP, BMP, TIFF, PNM, GIF.

    Raises:
        FileNotFoundError: there is no such file.
        ImageError: the file is empty, cut off, damaged or no image, or has more than
            `TREADLE_MAX_IMAGE_PIXELS` pixels.
    """
    return decode_image(Path(path).read_bytes(), cv2.IMREAD_COLOR, os.fspath(path))


def read_gray(path: str | os.PathLike[str]) -> Array:
    """Read an image of one channel, such as a mask: uint8 of shape (H, W).

    The numbers stay those of the file where it is grey; otherwise see `read_image`. Orientation
    in EXIF data is respected.

    Raises:
        FileNotFoundError: there is no such file.
        ImageError: see `read_image`.
    """
    return decode_image(Path(path).read_bytes(), cv2.IMREAD_GRAYSCALE, os.fspath(path))


def decode_image(data: bytes, mode: int, name: str = "image") -> Array:
    """Decode the bytes of an image file; see `read_image`.

    Args:
        data: the file's content.
        mode: one of OpenCV's IMREAD flags.
        name: what errors call the image.

    Raises:
        ImageError: see `read_image`.
    """
    if not data:
        raise ImageError(name, "the file is empty")
    header = read_header(data)
    limit = int(env.MAX_IMAGE_PIXELS.get())
    if header.pixels > limit:
        raise ImageError(
            name,
            f"the image has {header.pixels} pixels, more than the limit of {limit}",
            hint="if you trust the file, raise TREADLE_MAX_IMAGE_PIXELS",
        )
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), mode) if header.is_whole else None
    except cv2.error as error:
        raise ImageError(name, "OpenCV refuses the image", saw=str(error).strip()) from error
    if image is None:
        kind = header.kind or "unknown"
        problem = "the image is damaged or cut off" if header.kind else "this is not an image"
        raise ImageError(
            name,
            problem + " or of a kind that OpenCV cannot read",
            saw=f"{len(data)} bytes, format {kind}, beginning {data[:8].hex(' ')}",
            hint="open the file in an image viewer, or fetch it again",
        )
    decoded: Array = image
    return decoded
