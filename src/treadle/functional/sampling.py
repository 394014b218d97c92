"""Sampling and resizing by kernels that are wider than the two neighbors of a place.

Formulas are those of OpenCV, whose names the modes have: Keys's cubic with a = -3/4, Lanczos's
window of eight cells, and areas, which are means over the cells that a result covers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.base.modes import uncast
from treadle.functional.arguments import call, widened
from treadle.functional.math import matmul
from treadle.ops.remap import Remap
from treadle.ops.select import Where
from treadle.ops.unary import Abs, Floor, Sin
from treadle.tensor import Tensor

Weights = np.ndarray[Any, np.dtype[np.float64]]
__all__ = ["resized_by_weights", "sampled"]

_CUBIC = -0.75
_SAME = {"bilinear": "linear", "bicubic": "cubic", "lanczos": "lanczos4", "area": "linear"}
"""Other names; a warp by areas is a linear one, as in OpenCV."""


def sampled(
    name: str, image: Tensor, places: Tensor, mode: str, border: str, scalar: float
) -> Tensor:
    """An image (N, C, H, W) at places (N, OH, OW, 2), pairs (x, y) in pixels: (N, C, OH, OW).

    Args:
        name: of the function, for errors.
        image: and `places`, floats of one type.
        mode: "linear" (or "bilinear", "area"), "nearest", "cubic" (or "bicubic"), "lanczos4".
        border: and `scalar`, as `Remap` has them; kernels that reach outside take them there.

    Raises:
        ShapeError: shapes or modes do not fit.
    """
    mode = _SAME.get(str(mode).lower(), str(mode).lower())
    border = str(border).lower()
    if mode not in _KERNELS:
        return call(name, Remap(mode, border, (0, 0), float(scalar)), image, places)
    dtype, image, places = image._kind.dtype, widened(image), widened(places)
    reach, kernel = _KERNELS[mode]
    cell = Remap("nearest", border, (0, 0), float(scalar))
    corner = Floor()(places)
    across, down = (kernel((places - corner)[..., axis]) for axis in (0, 1))
    total = None
    for j, v in enumerate(down):
        for i, u in enumerate(across):
            step = places.constant(np.array([i, j]) - (reach - 1), places._kind.dtype)
            part = call(name, cell, image, corner + step) * (u * v).reshape(-1, 1, *u.shape[1:])
            total = part if total is None else total + part
    return image if total is None else total.astype(dtype)


def _cubic(fraction: Tensor) -> list[Tensor]:
    """Weights of the four cells around a place that lies `fraction` behind the second one."""

    def far(t: Tensor) -> Tensor:
        return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC

    def near(t: Tensor) -> Tensor:
        return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1

    return [far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)]


def _lanczos(fraction: Tensor) -> list[Tensor]:
    """Weights of the eight cells around a place, which sum to 1."""
    found = [_sinc(t) * _sinc(t * 0.25) for t in (fraction + (3 - i) for i in range(8))]
    total = found[0]
    for weight in found[1:]:
        total = total + weight
    return [weight / total for weight in found]


def _sinc(t: Tensor) -> Tensor:
    zero = Abs()(t) < 1e-6
    angle = Where()(zero, t.constant(1.0, t._kind.dtype), t) * math.pi
    return Where()(zero, t.constant(1.0, t._kind.dtype), Sin()(angle) / angle)


_KERNELS: dict[str, tuple[int, Callable[[Tensor], list[Tensor]]]] = {
    "cubic": (2, _cubic),
    "lanczos4": (4, _lanczos),
}
"""Cells that a kernel takes on either side, and their weights."""


def resized_by_weights(image: Tensor, size: Sequence[int], mode: str) -> Tensor:
    """An image (N, C, H, W) of floats in another size, by "area" or "lanczos4"."""
    have = image.shape[2], image.shape[3]
    if mode == "area":
        shrinks = all(a >= b for a, b in zip(have, size, strict=True))
        weigh = _means if shrinks else _grown
    else:
        weigh = _lanczos_rows
    down, across = (weigh(a, b) for a, b in zip(have, size, strict=True))
    wide = widened(image)
    dtype = wide._kind.dtype
    with uncast():
        tall = matmul(wide.constant(down, dtype), wide)
        out = matmul(tall, wide.constant(across, dtype), transpose_b=True)
    return out.astype(image._kind.dtype)


def _means(have: int, want: int) -> Weights:
    """The share of each cell in each of `want` intervals of equal length."""
    ends = np.arange(want + 1) * (have / want)
    cells = np.arange(have)
    low = np.maximum(ends[:-1, None], cells)
    high = np.minimum(ends[1:, None], cells + 1)
    shares: Weights = np.maximum(high - low, 0.0)
    shares /= shares.sum(1, keepdims=True)
    return shares


def _grown(have: int, want: int) -> Weights:
    """Two cells for each result, mixed only where the result lies across their border."""
    result = np.arange(want)
    left = np.minimum(np.floor(result * (have / want)).astype(int), have - 1)
    beyond = (result + 1) - (left + 1) * (want / have)
    share = np.where(beyond <= 0, 0.0, beyond - np.floor(beyond))
    rows = np.zeros((want, have))
    rows[result, left] += 1 - share
    rows[result, np.minimum(left + 1, have - 1)] += share
    return rows


def _lanczos_rows(have: int, want: int) -> Weights:
    """Eight cells for each result, those outside replaced by the outermost ones."""
    place = (np.arange(want) + 0.5) * (have / want) - 0.5
    left = np.floor(place).astype(int)
    rows = np.zeros((want, have))
    distance = (place - left)[:, None] + 3 - np.arange(8)
    weights = np.sinc(distance) * np.sinc(distance / 4)
    weights /= weights.sum(1, keepdims=True)
    for i in range(8):
        np.add.at(rows, (np.arange(want), np.clip(left + i - 3, 0, have - 1)), weights[:, i])
    return rows
