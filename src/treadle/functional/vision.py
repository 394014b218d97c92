"""Functions of images: resizing, sampling, flipping; colors, warps and regions from their files."""

from __future__ import annotations

import math
from typing import Any

from treadle.base.shape import Shape
from treadle.base.symbol import Dim, Expr
from treadle.functional import color, detection, warp
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    extents,
    ints,
    on_own_scale,
    pair,
    promote_all,
)
from treadle.functional.color import *  # noqa: F403
from treadle.functional.detection import *  # noqa: F403
from treadle.functional.sampling import resized_by_weights, sampled
from treadle.functional.warp import *  # noqa: F403
from treadle.functional.warp import like_image
from treadle.ops import movement, resample
from treadle.tensor import Tensor

__all__ = [
    *color.__all__,
    *detection.__all__,
    *warp.__all__,
    "flip",
    "interpolate",
    "remap",
    "resize",
]

_SHORT = 20
"""Bits of factors whose product with an extent is exact."""
_MODES = {"linear": 1, "bilinear": 2, "bicubic": 2, "nearest": 2, "trilinear": 3}
"""Interpolation modes and how many spatial axes they work on."""


def interpolate(
    inp: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "bilinear",
    align_corners: bool | None = None,
) -> Tensor:
    """Resize an image to `size`, or to floor(extent * scale_factor).

    Args:
        inp: (N, C, H, W); (N, C, L) for "linear", (N, C, D, H, W) for "trilinear".
        size: extents of the result. An int stands for (size, 1) with two spatial axes.
        scale_factor: a number, or one per spatial axis.
        mode: "bilinear", "bicubic", "nearest", "linear" or "trilinear".
        align_corners: for the three linear modes, whether the outermost cells keep their places;
            else cells are half a pixel apart from the borders.

    Returns:
        (N, C, *size): each cell weighs the cells of `inp` nearest to its place. Cell i stands at
        (i + 1/2) in / out - 1/2, with `align_corners` at i (in - 1) / (out - 1); "nearest" takes
        cell floor(i in / out).

    Raises:
        ValueError: not exactly one of size and scale_factor is given, the mode is unknown, the
            number of axes does not fit it, or it takes no align_corners.
        AssertionError: the number of axes does not fit the mode "linear".

    Example:
        >>> x = mge.tensor([[[[0., 4.]]]])
        >>> F.vision.interpolate(x, size=(1, 4)).tolist()
        [[[[0.0, 1.0, 3.0, 4.0]]]]
        >>> F.vision.interpolate(x, size=(1, 4), mode="nearest").tolist()
        [[[[0.0, 0.0, 4.0, 4.0]]]]
    """
    x, mode = as_tensor(inp), str(mode).lower()
    if mode not in _MODES:
        raise ValueError(f"interpolate: unknown mode {mode!r}; use one of {', '.join(_MODES)}")
    if x.ndim != _MODES[mode] + 2:
        problem = f"interpolate: mode {mode!r} takes {_MODES[mode] + 2} axes, got {x.type}"
        raise (AssertionError if mode == "linear" else ValueError)(problem)
    if align_corners is not None and not mode.endswith("linear"):
        raise ValueError(f"interpolate: mode {mode!r} takes no align_corners")
    wanted = _target(x.shape[2:], size, scale_factor)
    how = "align_corners" if align_corners else "half_pixel"
    if mode == "nearest":
        return on_own_scale(resample.Resize("nearest", "asymmetric", wanted), inp)
    op = resample.Resize("cubic" if mode == "bicubic" else "linear", how, wanted)
    return on_own_scale(op, inp)


def _target(have: Shape, size: Any, scale_factor: Any) -> Shape:
    """Extents of the result."""
    if (size is None) == (scale_factor is None):
        raise ValueError("interpolate takes exactly one of size and scale_factor")
    if size is not None:
        given = extents(size)
        if any([isinstance(d, Expr) for d in given]) and len(given) == len(have):
            return given
        return (*given, 1) if len(given) == 1 and len(have) == 2 else pair(size, len(have))
    several = isinstance(scale_factor, (tuple, list))
    factors = list(scale_factor) if several else [scale_factor] * len(have)
    if len(factors) != len(have):
        raise ValueError(f"interpolate: {len(have)} scale factors are needed, got {scale_factor}")
    numbers = [float(f) for f in factors]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"interpolate: scale_factor must be finite, got {scale_factor}")
    return tuple(_scaled(extent, f) for extent, f in zip(have, numbers, strict=True))


def _scaled(extent: Dim, factor: float) -> Any:
    """floor(extent * factor); of a symbolic extent where the factor is a short fraction."""
    above, below = factor.as_integer_ratio()
    if isinstance(extent, int) or above.bit_length() > _SHORT:
        return int(extent * factor)
    return extent * above // below


def resize(
    inp: Tensor,
    size: Any,
    format: str = "NCHW",
    imode: str = "bilinear",
    max_size: int | None = None,
) -> Tensor:
    """Resize a batch of images.

    Args:
        inp: (N, C, H, W), or (N, H, W, C) with `format="NHWC"`.
        size: (OH, OW); an int is the length of the shorter edge, the other one keeps the ratio.
        imode: "bilinear" (or "linear"), "bicubic" (or "cubic") or "nearest", as `interpolate` has
            them; "area" or "lanczos4" as OpenCV has them. Integer images are rounded and limited
            to their type.
        max_size: with an int as size, the most that the longer edge may have.

    Raises:
        ValueError: an unknown format or mode, or `max_size` with two extents.

    Example:
        >>> F.vision.resize(mge.tensor([[[[0., 4.]]]]), (1, 4)).tolist()
        [[[[0.0, 1.0, 3.0, 4.0]]]]
    """
    x = as_tensor(inp)
    if format not in ("NCHW", "NHWC"):
        raise ValueError(f"resize: unknown format {format!r}; use 'NCHW' or 'NHWC'")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(imode, imode)
    image = x.transpose(0, 3, 1, 2) if format == "NHWC" else x
    wanted = _resized(image.shape[2:], ints(size), max_size)
    if mode in ("area", "lanczos4"):
        out = resized_by_weights(as_float(image), wanted, mode)
    else:
        out = interpolate(image, size=wanted, mode=mode)
    return like_image(out.transpose(0, 2, 3, 1) if format == "NHWC" else out, x)


def _resized(have: tuple[int, ...], size: tuple[int, ...], max_size: int | None) -> tuple[int, ...]:
    """Both extents of the result of `resize`."""
    if len(size) == 2:
        if max_size is not None:
            raise ValueError("resize: max_size limits the longer edge; give size as an int")
        return size
    short, long = min(have), max(have)
    ends = size[0], size[0] * long // short
    if max_size is not None and ends[1] > max_size:
        ends = max_size * ends[0] // ends[1], max_size
    return ends if have[0] <= have[1] else ends[::-1]


def remap(
    inp: Tensor,
    map_xy: Tensor,
    border_mode: str = "replicate",
    scalar: float = 0.0,
    interp_mode: str = "linear",
) -> Tensor:
    """Sample an image at given places.

    Args:
        inp: (N, C, H, W).
        map_xy: (N, OH, OW, 2), for every pixel of the result the (x, y) in pixels of `inp`.
        border_mode: what stands outside: "replicate", "reflect", "reflect_101", "wrap", or
            "constant" for `scalar`.
        interp_mode: "linear", "nearest", "cubic" or "lanczos4", as OpenCV has them.

    Returns:
        (N, C, OH, OW).

    Raises:
        ShapeError: shapes or modes do not fit.

    Example:
        >>> x = mge.tensor([[[[0., 10.], [20., 30.]]]])
        >>> F.remap(x, mge.tensor([[[[1., 0.], [0.5, 0.5]]]])).tolist()
        [[[[10.0, 15.0]]]]
    """
    image, places = promote_all([as_float(inp), as_float(map_xy)])
    return sampled("remap", image, places, interp_mode, border_mode, scalar)


def flip(inp: Tensor, vertical: bool = True, horizontal: bool = True) -> Tensor:
    """Flip an image upside down (`vertical`), left to right (`horizontal`), or both; same shape.

    Images are (N, H, W, C), (H, W, C) or (H, W), as in MegEngine.

    Example:
        >>> F.vision.flip(mge.tensor([[1, 2], [3, 4]]), horizontal=False).tolist()
        [[3, 4], [1, 2]]
    """
    x = as_tensor(inp)
    row = warp.row_axis(x, "flip")
    axes = [row] * bool(vertical) + [row + 1] * bool(horizontal)
    return movement.Flip(tuple(axes))(x)
