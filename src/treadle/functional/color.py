"""Colors of images converted.

An image is (N, H, W, C), uint8 from 0 to 255 or float32; integers are rounded and limited.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from treadle.base.dtype import float32, uint8
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.modes import uncast
from treadle.functional.arguments import as_tensor
from treadle.functional.elemwise import maximum
from treadle.functional.math import matmul
from treadle.functional.tensor import concat, repeat
from treadle.functional.warp import like_image
from treadle.tensor import Tensor

__all__ = ["cvt_color"]

_GRAY = (0.299, 0.587, 0.114)
_TO_YUV = (
    (0.299, 0.587, 0.114),
    (-0.147108, -0.288804, 0.435912),
    (0.614777, -0.514799, -0.099978),
)
_FROM_YUV = ((1.0, 0.0, 1.14), (1.0, -0.395, -0.581), (1.0, 2.032, 0.0))
_FROM_YCRCB = ((1.0, 1.403, 0.0), (1.0, -0.714, -0.344), (1.0, 0.0, 1.773))
_FROM_JPEG = ((1.0, 0.0, 1.402), (1.0, -0.34414, -0.71414), (1.0, 1.772, 0.0))
_FROM_BT601 = ((1.164, 0.0, 1.596), (1.164, -0.391, -0.813), (1.164, 2.018, 0.0))
_SWAP = ((0, 0, 1), (0, 1, 0), (1, 0, 0))

_PLANAR = re.compile(r"(BT601_)?YUV2(GRAY|RGB|BGR)_(NV21|NV12|YV12|YU12)")


def _matrices() -> dict[str, tuple[Any, int]]:
    """Return for each mode its matrix for pixels, and which of the input's channels are centered.

    The number is the count of chroma channels: 2 where channels 1 and 2 of the input are offset
    by half of the range, -2 where those of the result are.
    """
    gray, keep = np.array([_GRAY]), np.eye(3)
    swap, wide = np.array(_SWAP), np.ones((3, 1))
    drop = np.eye(3, 4)
    return {
        "RGB2GRAY": (gray, 0),
        "BGR2GRAY": (gray @ swap, 0),
        "RGBA2GRAY": (gray @ drop, 0),
        "GRAY2RGB": (wide, 0),
        "GRAY2BGR": (wide, 0),
        "RGB2BGR": (swap, 0),
        "BGR2RGB": (swap, 0),
        "RGBA2RGB": (keep @ drop, 0),
        "RGBA2BGR": (swap @ drop, 0),
        "RGB2YUV": (np.array(_TO_YUV), -2),
        "YUV2RGB": (np.array(_FROM_YUV), 2),
        "YCrCb2RGB": (np.array(_FROM_YCRCB), 2),
        "YCrCb2BGR": (swap @ np.array(_FROM_YCRCB), 2),
    }


def cvt_color(inp: Tensor, mode: str = "") -> Tensor:
    """Convert an image to another color space.

    Args:
        inp: (N, H, W, C) uint8 or float32; (N, 3 H / 2, W, 1) for the modes with subsampled
            chroma.
        mode: "RGB2GRAY", "BGR2GRAY", "RGBA2GRAY", "GRAY2RGB", "GRAY2BGR", "RGB2BGR", "BGR2RGB",
            "RGBA2RGB", "RGBA2BGR", "RGB2YUV", "YUV2RGB", "YCrCb2RGB", "YCrCb2BGR"; or "YUV2GRAY",
            "YUV2RGB" or "YUV2BGR" with "_NV21", "_NV12", "_YV12" or "_YU12" behind it, of full
            range, or of BT.601's limited range with "BT601_" before it.

    Returns:
        (N, H, W, channels of the result). Gray is 0.299 R + 0.587 G + 0.114 B; chroma is offset by
        128, or by 0.5 in floats. The coefficients are those of ITU-R BT.601, as OpenCV has them.

    Raises:
        ValueError: an unknown mode.
        ShapeError: the axes do not fit the mode.
        DTypeError: the image is neither uint8 nor float32.

    Example:
        >>> F.vision.cvt_color(mge.tensor([[[[1., 0., 0.]]]]), "RGB2GRAY").item()
        0.29899999499320984
    """
    x = as_tensor(inp)
    planar = _PLANAR.fullmatch(mode)
    table = _matrices()
    if planar is None and mode not in table:
        raise ValueError(f"cvt_color: unknown mode {mode!r}; use one of {', '.join(table)}")
    matrix, chroma = table.get(mode, (np.zeros((1, 1)), 0))
    channels = matrix.shape[1]
    if x.ndim != 4 or x.shape[3] != channels:
        raise ShapeError(
            "cvt_color", f"{mode} takes (N, H, W, {channels})", saw=str(x.type), hint="NHWC"
        )
    if x._kind.dtype not in (uint8, float32):
        raise DTypeError("cvt_color", "takes uint8 or float32", saw=str(x.type), hint="cast it")
    values = x.astype(float32)
    if planar is not None:
        return like_image(_planar(values, *planar.groups()), x)
    half = 128.0 if x._kind.dtype is uint8 else 0.5
    offset = np.array([0, half, half], np.float32)
    if chroma == 2:
        values = values - offset
    with uncast():
        out = matmul(values, values.constant(matrix.T.astype(np.float32)))
    return like_image(out + offset if chroma == -2 else out, x)


def _planar(x: Tensor, limited: str | None, target: str, layout: str) -> Tensor:
    """Rows of luma followed by subsampled chroma, (N, 3 H / 2, W, 1), as pixels."""
    n, rows, width, _ = x.shape
    height = rows * 2 // 3
    if rows % 3 or height % 2 or width % 2:
        raise ShapeError(
            "cvt_color",
            f"{rows} rows of {width} do not hold luma and subsampled chroma",
            saw=str(x.type),
            hint="(N, 3 H / 2, W, 1) with even H and W",
        )
    luma = x[:, :height]
    if target == "GRAY":
        return luma
    if layout.startswith("NV"):
        pairs = x[:, height:].reshape(n, height // 2, width // 2, 2)
        first, second = pairs[..., 0:1], pairs[..., 1:2]
    else:
        planes = x[:, height:].reshape(n, 2, height // 2, width // 2, 1)
        first, second = planes[:, 0], planes[:, 1]
    u, v = (second, first) if layout in ("NV21", "YV12") else (first, second)
    wide = [repeat(repeat(c, 2, 1), 2, 2) - 128.0 for c in (u, v)]
    matrix = np.array(_FROM_BT601 if limited else _FROM_JPEG, np.float32)
    matrix = matrix if target == "RGB" else matrix[::-1]
    pixels = concat([maximum(luma - 16.0, 0.0) if limited else luma, *wide], 3)
    with uncast():
        return matmul(pixels, x.constant(np.ascontiguousarray(matrix.T)))
