"""Convolution that samples its input at learned places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from treadle.base.errors import ShapeError
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    check_conv_mode,
    pair,
    promote_all,
    widened,
)
from treadle.functional.conv import biased
from treadle.functional.creation import zeros_like
from treadle.functional.elemwise import floor
from treadle.functional.math import matmul
from treadle.functional.tensor import broadcast_to, gather, where
from treadle.tensor import Tensor

__all__ = ["deformable_conv2d"]


def deformable_conv2d(
    inp: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Deformable convolution, version 2: every tap of a window reads at a learned offset.

    Tap k of the window at (i, j) reads x at (i stride + u dilation - padding + dy,
    j stride + v dilation - padding + dx), bilinearly between cells and 0 outside, times the mask.
    Source: Zhu, Hu, Lin and Dai, "Deformable ConvNets v2", 2019.

    Args:
        inp: (N, C, H, W).
        weight: (O, C, KH, KW); with groups (groups, O/groups, C/groups, KH, KW).
        offset: (N, 2 G KH KW, OH, OW) in cells, dy before dx for each tap; each of the G groups of
            C/G channels has its own.
        mask: (N, G KH KW, OH, OW).
        bias: added by broadcasting, usually (1, O, 1, 1).
        stride, padding, dilation, groups, conv_mode, compute_mode: as for `conv2d`.

    Returns:
        (N, O, OH, OW), with the extents of `conv2d`.

    Raises:
        ShapeError: the weight, offset or mask does not fit.

    Example:
        >>> x, w = mge.tensor([[[[0., 10.]]]]), F.ones((1, 1, 1, 1))
        >>> right = mge.tensor([0., 0., 0.25, -0.5]).reshape(1, 2, 1, 2)
        >>> F.deformable_conv2d(x, w, right, F.ones((1, 1, 1, 2))).tolist()
        [[[[2.5, 5.0]]]]
    """
    check_conv_mode(conv_mode)
    x, w, shifts, gains = (
        as_float(t) for t in promote_all([as_tensor(t) for t in (inp, weight, offset, mask)])
    )
    dtype, x, shifts, gains = x._kind.dtype, widened(x), widened(shifts), widened(gains)
    if x.ndim != 4 or w.ndim not in (4, 5):
        raise _misfit("x must have 4 axes and the weight 4, or 5 with groups", x, w)
    n, channels, height, width = x.shape
    *_, depth, rows, columns = w.shape
    outputs, taps = w.size // (depth * rows * columns), rows * columns
    if depth * groups != channels or outputs % groups:
        raise _misfit(f"x has {channels} channels, the weight {depth} for each group", x, w)
    parts = gains.shape[1] // taps if gains.ndim == 4 else 0
    above, left = _grid((height, width), (rows, columns), stride, padding, dilation)
    extent = (above.shape[-2], left.shape[-1])
    if not parts or channels % parts or gains.shape != (n, parts * taps, *extent):
        raise _misfit(f"the mask must be (N, G * {taps}, {extent[0]}, {extent[1]})", x, gains)
    if shifts.shape != (n, 2 * parts * taps, *extent):
        raise _misfit(f"the offset must be (N, 2 * G * {taps}, ...) like the mask", x, shifts)
    shifts = shifts.reshape(n, parts, taps, 2, *extent)
    places = [
        t + as_tensor(at.astype(np.float32), x).astype(x.dtype)
        for t, at in ((shifts[:, :, :, 0], above), (shifts[:, :, :, 1], left))
    ]
    gains = gains.reshape(n, parts, 1, -1)
    read = _sampled(x.reshape(n, parts, channels // parts, -1), places, (height, width))
    terms = (read * gains).astype(dtype).reshape(n, groups, depth * taps, -1)
    made = matmul(w.reshape(groups, outputs // groups, depth * taps), terms)
    made = made.reshape(n, outputs, *extent)
    return biased(made, bias)


def _misfit(problem: str, x: Tensor, other: Tensor) -> ShapeError:
    return ShapeError(
        "deformable_conv2d",
        problem,
        saw=f"x {x.type}, {other.type}",
        hint="compare the extents with those of conv2d on the same operands",
    )


def _grid(
    extents: tuple[int, int], kernel: tuple[int, int], stride: Any, padding: Any, dilation: Any
) -> tuple[Any, Any]:
    """Return the positions of the taps of all windows: (KH KW, OH, 1) and (KH KW, 1, OW)."""
    steps, low, apart = pair(stride), pair(padding), pair(dilation)
    found = []
    for axis in (0, 1):
        reach = apart[axis] * (kernel[axis] - 1) + 1
        count = (extents[axis] + 2 * low[axis] - reach) // steps[axis] + 1
        starts = np.arange(max(count, 0)) * steps[axis] - low[axis]
        found.append(np.add.outer(np.arange(kernel[axis]) * apart[axis], starts))
    above, left = found
    return np.repeat(above, kernel[1], 0)[:, :, None], np.tile(left, (kernel[0], 1))[:, None]


def _sampled(x: Tensor, places: list[Tensor], extents: tuple[int, int]) -> Tensor:
    """x (N, G, C/G, H W) at fractional places (N, G, K, OH, OW): (N, G, C/G, K OH OW)."""
    n, parts, channels, _ = x.shape
    whole = [floor(p) for p in places]
    rest = [p - f for p, f in zip(places, whole, strict=True)]
    total = None
    for share, index in _corners(whole, rest, extents):
        index = index.reshape(n, parts, 1, -1)
        cells = gather(x, 3, broadcast_to(index, (n, parts, channels, index.shape[3])))
        part = cells * share.reshape(n, parts, 1, -1)
        total = part if total is None else total + part
    return as_tensor(total)


def _corners(
    whole: list[Tensor], rest: list[Tensor], extents: tuple[int, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The four cells around each place: how much of it they are, and where they lie."""
    axes = []
    for first, part, extent in zip(whole, rest, extents, strict=True):
        ends = []
        for step, share in ((0, 1 - part), (1, part)):
            cell = first + step
            inside = (cell >= 0) & (cell < extent)
            kept = where(inside, cell, zeros_like(cell)).astype("int32")
            ends.append((where(inside, share, zeros_like(share)), kept))
        axes.append(ends)
    for down, row in axes[0]:
        for right, column in axes[1]:
            yield down * right, row * extents[1] + column
