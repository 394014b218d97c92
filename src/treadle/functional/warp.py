"""Images turned and warped.

An image is (N, C, H, W), or (N, H, W, C) with `format="NHWC"`. What is sampled between cells is
computed in floats; integer images are rounded and limited to their type.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base.dialect import Dialect
from treadle.base.errors import ShapeError
from treadle.base.modes import uncast
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    call,
    indices_of,
    pair,
    promote_all,
    widened,
)
from treadle.functional.math import matmul
from treadle.functional.sampling import sampled
from treadle.ops import movement
from treadle.ops.check import InRange
from treadle.ops.gather import Take
from treadle.ops.select import Clip
from treadle.ops.unary import Floor, Round
from treadle.tensor import Tensor

__all__ = ["rot90", "rotate", "warp_affine", "warp_perspective"]


def rot90(inp: Tensor, clockwise: bool = True) -> Tensor:
    """Rotate an image by 90 degrees: (N, H, W, C) to (N, W, H, C).

    (H, W, C) and (H, W) are images, too, as in MegEngine.

    Raises:
        ShapeError: another number of axes.

    Example:
        >>> F.vision.rot90(mge.tensor([[1, 2], [3, 4]])).tolist()
        [[3, 1], [4, 2]]
    """
    x = as_tensor(inp)
    row = row_axis(x, "rot90")
    order = list(range(x.ndim))
    order[row : row + 2] = row + 1, row
    return movement.Flip((row + 1 if clockwise else row,))(x.transpose(order))


def row_axis(x: Tensor, name: str) -> int:
    """The axis that numbers the rows of an image with its channels last."""
    if x.ndim not in (2, 3, 4):
        raise ShapeError(name, "takes an image (N, H, W, C), (H, W, C) or (H, W)", saw=str(x.type))
    return 1 if x.ndim == 4 else 0


def rotate(
    inp: Tensor, angle: float = 0.0, format: str = "NCHW", interp_mode: str = "bilinear"
) -> Tensor:
    """Rotate an image counterclockwise by an angle in degrees around its center; same shape.

    Corners that come from outside are 0.

    Raises:
        ValueError: an unknown format or mode.

    Example:
        >>> F.vision.rotate(mge.tensor([[[[1., 2.], [3., 4.]]]]), 90, interp_mode="nearest")
        Tensor([[[[2. 4.]
           [1. 3.]]]], device=xpux:0)
    """
    x = as_tensor(inp)
    height, width = _extents(x, format, "rotate")
    turn = math.radians(angle)
    cos, sin = math.cos(turn), math.sin(turn)
    y0, x0 = (height - 1) / 2, (width - 1) / 2
    rows = [[cos, -sin, x0 - cos * x0 + sin * y0], [sin, cos, y0 - sin * x0 - cos * y0]]
    matrix = np.broadcast_to(np.array(rows, np.float32), (x.shape[0], 2, 3))
    turned = warp_affine(
        x, as_float(x).constant(matrix), (height, width), "constant", 0.0, format, interp_mode
    )
    return turned.astype(x.dtype)


def warp_affine(
    inp: Tensor,
    mat: Tensor,
    out_shape: Any,
    border_mode: str = "replicate",
    border_val: float = 0.0,
    format: str = "NHWC",
    interp_mode: str = "linear",
) -> Tensor:
    """Sample an image along an affine map: dst(x, y) = src(A (x, y, 1)).

    Args:
        inp: (N, H, W, C), or (N, C, H, W) with `format="NCHW"`.
        mat: (N, 2, 3), from pixels of the result to pixels of `inp`. In programs that import
            `megengine`, places in images (N, H, W, C) of up to three channels are rounded to
            1/32 of a pixel, as there.
        out_shape: (OH, OW).
        border_mode: what stands outside: "replicate", "reflect", "reflect_101", "wrap", or
            "constant" for `border_val`.
        interp_mode: "linear", "nearest", "cubic", "lanczos4", or "area", which is linear here; as
            OpenCV has them.

    Raises:
        ShapeError: shapes or modes do not fit.
        ValueError: an unknown format.

    Example:
        >>> x = F.arange(4).reshape(1, 2, 2, 1)
        >>> right = mge.tensor([[[1., 0., 0.5], [0., 1., 0.]]])
        >>> F.vision.warp_affine(x, right, (2, 2)).reshape(2, 2).tolist()
        [[0.5, 1.0], [2.5, 3.0]]
    """
    return _warp("warp_affine", inp, mat, out_shape, border_mode, border_val, format, interp_mode)


def warp_perspective(
    inp: Tensor,
    mat: Tensor,
    out_shape: Any,
    mat_idx: Any = None,
    border_mode: str = "replicate",
    border_val: float = 0.0,
    format: str = "NCHW",
    interp_mode: str = "linear",
) -> Tensor:
    """Sample an image along a perspective map: dst(x, y) = src(u / w, v / w), of P (x, y, 1).

    Args:
        inp: (N, C, H, W), or (N, H, W, C) with `format="NHWC"`.
        mat: (M, 3, 3), from pixels of the result to pixels of `inp`.
        out_shape: (OH, OW).
        mat_idx: (M,), which image each matrix is for; the first M in order if left out.
        border_mode, border_val, interp_mode: as for `warp_affine`.

    Returns:
        M images of `out_shape`.

    Raises:
        ShapeError: shapes or modes do not fit.
        IndexRangeError: `mat_idx` names no image.

    Example:
        >>> x = F.arange(16).reshape(1, 1, 4, 4)
        >>> moved = mge.tensor([[[1., 0., 1.], [0., 1., 1.], [0., 0., 1.]]])
        >>> F.vision.warp_perspective(x, moved, (2, 2)).tolist()
        [[[[5.0, 6.0], [9.0, 10.0]]]]
    """
    x, name = as_tensor(inp), "warp_perspective"
    if mat_idx is not None:
        images = indices_of(mat_idx, x, name)
        if x.ndim:  # else Take refuses it
            images = call(name, InRange(name, 0, x.shape[0]), images)
        x = call(name, Take(0), x, images)
    return _warp(name, x, mat, out_shape, border_mode, border_val, format, interp_mode)


def _warp(
    name: str,
    inp: Tensor,
    mat: Tensor,
    out_shape: Any,
    border_mode: str,
    border_val: float,
    format: str,
    interp_mode: str,
) -> Tensor:
    given = as_tensor(inp)
    _extents(given, format, name)
    image, matrix = promote_all([as_float(given), as_float(mat)])
    rows = 2 if name == "warp_affine" else 3
    if matrix.shape != (image.shape[0], rows, 3):
        raise ShapeError(
            name,
            f"the matrices must be ({image.shape[0]}, {rows}, 3)",
            saw=f"inp {given.type}, mat {matrix.type}",
            hint="give one matrix for each image",
        )
    dtype, image, matrix = image._kind.dtype, widened(image), widened(matrix)
    if format == "NHWC":
        image = image.transpose(0, 3, 1, 2)
    places = _places(matrix, pair(out_shape))
    if Dialect.megengine and rows == 2 and format == "NHWC" and image.shape[1] <= 3:
        exact = places
        # Gradients are those of the exact places.
        places = _on_grid(matrix, pair(out_shape), interp_mode).detach() + (exact - exact.detach())
    out = sampled(name, image, places, interp_mode, border_mode, border_val)
    out = (out.transpose(0, 2, 3, 1) if format == "NHWC" else out).astype(dtype)
    return like_image(out, given)


@uncast()  # Sixteen bits do not tell pixels apart.
def _places(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Map each pixel by the matrices (M, 2 or 3, 3): positions (M, OH, OW, 2)."""
    height, width = shape
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    grid = np.stack([across, down, np.ones_like(down)]).reshape(3, -1).astype(np.float32)
    points = matmul(matrix, matrix.constant(grid, matrix._kind.dtype))
    if matrix.shape[1] == 3:
        points = points[:, :2] / points[:, 2:]
    return points.transpose(0, 2, 1).reshape(matrix.shape[0], height, width, 2)


def _on_grid(matrix: Tensor, shape: tuple[int, ...], mode: str) -> Tensor:
    """`_places` in the fixed-point numbers of MegEngine and OpenCV.

    What a matrix adds per column and per row is rounded to 1/1024 first, the sum to 1/32; or to
    whole pixels, where the nearest one is taken.
    """
    height, width = shape
    kind = matrix._kind.dtype
    across, down = (matrix.constant(np.arange(n, dtype=np.float32), kind) for n in (width, height))
    columns = Round()(matrix[:, :, :1] * across * 1024)
    rows = Round()((matrix[:, :, 1:2] * down + matrix[:, :, 2:]) * 1024)
    whole = columns.reshape(-1, 2, 1, width) + rows.reshape(-1, 2, height, 1)
    parts = 1 if str(mode).lower() == "nearest" else 32
    steps = Floor()((whole + 512 / parts) * (parts / 1024)) * (1 / parts)
    return steps.transpose(0, 2, 3, 1)


def _extents(x: Tensor, format: str, name: str) -> tuple[int, int]:
    """Height and width of a batch of images."""
    if format not in ("NCHW", "NHWC"):
        raise ValueError(f"{name}: unknown format {format!r}; use 'NCHW' or 'NHWC'")
    if x.ndim != 4:
        raise ShapeError(name, "takes a batch of images of 4 axes", saw=str(x.type))
    return (x.shape[2], x.shape[3]) if format == "NCHW" else (x.shape[1], x.shape[2])


def like_image(values: Tensor, image: Tensor) -> Tensor:
    """Computed values in the element type of an image; integers are rounded and limited."""
    kind = image._kind.dtype
    if not kind.is_integer:
        return values
    whole = Round()(values)
    if kind.itemsize <= 2:  # float32 does not hold the limits of wider types
        limits = np.iinfo(kind.numpy)
        whole = Clip(float(limits.min), float(limits.max))(whole)
    return whole.astype(kind)
