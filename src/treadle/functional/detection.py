"""Regions of images: suppression of overlapping boxes, pooling over boxes, matching of images.

Boxes are (x0, y0, x1, y1) in pixels; regions of interest are (K, 5), the number of the image before
the box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.dialect import Dialect
from treadle.base.errors import ShapeError, UnsupportedOp
from treadle.base.modes import uncast
from treadle.base.shape import require_equal
from treadle.base.symbol import Dim
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    call,
    pair,
    promote_all,
    widened,
)
from treadle.functional.elemwise import abs as magnitude
from treadle.functional.elemwise import clip, floor, maximum, minimum
from treadle.functional.elemwise import round as rounded
from treadle.functional.math import matmul
from treadle.functional.tensor import expand_dims, non_zero, stack, where, zeros_like
from treadle.functional.windows import avg_pool2d, pad
from treadle.ops.check import InRange
from treadle.ops.gather import Take
from treadle.ops.regions import KeptBoxes, RegionArgmax, RegionMean
from treadle.ops.sort import Sort
from treadle.tensor import Tensor

__all__ = ["correlation", "deformable_psroi_pooling", "nms", "nvof", "roi_align", "roi_pooling"]


def nms(boxes: Tensor, scores: Tensor, iou_thresh: float, max_output: int | None = None) -> Tensor:
    """Indices of the boxes that no better box covers, best score first: int32 (count,).

    A box is dropped if its intersection over union with a box that was kept exceeds `iou_thresh`.
    Data decide the count, so what follows in a compiled function is a program of its own.

    Args:
        boxes: (N, 4).
        scores: (N,).
        iou_thresh: from 0 to 1.
        max_output: the largest number of boxes to keep.

    Raises:
        AssertionError: `iou_thresh` is negative, or shapes do not fit (`ShapeError`).

    Example:
        >>> boxes = mge.tensor([[0., 0., 4., 4.], [1., 0., 5., 4.], [8., 8., 9., 9.]])
        >>> F.vision.nms(boxes, mge.tensor([0.5, 0.75, 0.25]), 0.5).tolist()
        [1, 2]
    """
    if iou_thresh < 0:
        raise AssertionError(f"nms: iou_thresh must not be negative, got {iou_thresh}")
    corners, values = (x.detach() for x in promote_all([as_float(boxes), as_float(scores)]))
    if corners.dtype not in KeptBoxes.dtypes:
        corners, values = corners.astype("float32"), values.astype("float32")
    if corners.ndim != 2 or values.ndim != 1 or corners.shape[1] != 4:
        raise _misfit_of_boxes(boxes, scores)
    require_equal(corners.shape[0], values.shape[0], lambda: _misfit_of_boxes(boxes, scores))
    given = [expand_dims(corners, 0), expand_dims(values, (0, 1))]
    order = Sort(2).outputs(-given[1])[1]
    most = None if max_output is None else int(max_output)
    kept = call("nms", KeptBoxes(float(iou_thresh), most), *given, order).reshape(-1)
    return call("nms", Take(0), kept, non_zero(kept >= 0)[:, 0])


def _misfit_of_boxes(boxes: Tensor, scores: Tensor) -> ShapeError:
    saw = f"boxes {as_tensor(boxes).type}, scores {as_tensor(scores).type}"
    hint = "give a score per box"
    return ShapeError("nms", "takes boxes [n,4] and scores [n]", saw=saw, hint=hint)


def roi_pooling(
    inp: Tensor, rois: Tensor, output_shape: Any, mode: str = "max", scale: float = 1.0
) -> Tensor:
    """The maximum, or mean, of every part of a grid over regions of an image.

    Args:
        inp: (N, C, H, W).
        rois: (K, 5); corners times `scale`, rounded, are the first and last cell of a region.
        output_shape: rows and columns of the grid.
        mode: "max" or "average".

    Returns:
        (K, C, *output_shape); parts outside of the image are 0.

    Raises:
        ShapeError: shapes do not fit.
        IndexRangeError: a region names no image.
        ValueError: an unknown mode.

    Source: Girshick, Fast R-CNN, ICCV 2015.

    Example:
        >>> x = F.arange(16).reshape(1, 1, 4, 4)
        >>> F.vision.roi_pooling(x, mge.tensor([[0., 0., 0., 3., 3.]]), 2).tolist()
        [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    mode = str(mode).lower()
    if mode not in ("max", "average"):
        raise ValueError(f"roi_pooling: unknown mode {mode!r}; use 'max' or 'average'")
    x, regions = promote_all([as_float(inp), as_float(rois)])
    grid, dtype = pair(output_shape), x._kind.dtype
    if mode == "average":
        return _mean_of_parts(widened(x), widened(regions), grid, float(scale)).astype(dtype)
    at = call("roi_pooling", RegionArgmax(grid, float(scale)), x, regions.detach())
    inside = at >= 0
    found = Take(0)(x.reshape(-1), where(inside, at, zeros_like(at)))
    return as_tensor(found * inside.astype(found.dtype))


def _mean_of_parts(x: Tensor, rois: Tensor, grid: tuple[int, ...], scale: float) -> Tensor:
    """Sums over the rows and columns of each part, as two products with 0 and 1."""
    _check_regions("roi_pooling", x, rois)
    corners = rounded(rois[:, 1:] * scale).astype("int32").detach()
    rows, columns = (
        _covered(corners[:, axis], corners[:, axis + 2], grid[1 - axis], x.shape[3 - axis])
        for axis in (1, 0)
    )
    rows, columns = rows.astype(x.dtype), columns.astype(x.dtype)
    images = call("roi_pooling", Take(0), x, _images("roi_pooling", x, rois))
    with uncast():
        sums = matmul(expand_dims(rows, 1) @ images, expand_dims(columns, 1), transpose_b=True)
    counts = expand_dims(rows.sum(2), 2) * expand_dims(columns.sum(2), 1)
    return sums / expand_dims(maximum(counts, 1), 1)


def _covered(first: Tensor, last: Tensor, parts: int, extent: int) -> Tensor:
    """Mark the cells of `extent` that belong to each part of regions (K,): bool (K,
    parts, extent).
    """
    start = first.reshape(-1, 1, 1)
    cells = maximum(last.reshape(-1, 1, 1) - start + 1, 1)
    number = first.constant(np.arange(parts, dtype=np.int32).reshape(1, parts, 1))
    cell = first.constant(np.arange(extent, dtype=np.int32))
    end = start - (-(number + 1) * cells) // parts
    return (cell >= start + number * cells // parts) & (cell < end)


def roi_align(
    inp: Tensor,
    rois: Tensor,
    output_shape: Any,
    mode: str = "average",
    spatial_scale: float = 1.0,
    sample_points: Any = 2,
    aligned: bool = True,
) -> Tensor:
    """The mean, or maximum, of samples between cells, in every part of a grid over regions.

    A region's parts are equal and not rounded; each holds `sample_points` rows and columns of
    samples, interpolated from the four cells around. Cells stand at whole numbers; samples more
    than one cell outside of the image are 0, those within that are on its border. In programs that
    import `megengine`, cells outside are 0, and no region counts as wider than it is.

    Args:
        inp: (N, C, H, W).
        rois: (K, 5).
        output_shape: rows and columns of the grid.
        mode: "average" or "max".
        spatial_scale: pixels of `inp` per unit of `rois`.
        sample_points: rows and columns of samples in a part.
        aligned: whether corners are half a pixel off, as pixels have an extent; without it a region
            counts as at least one pixel wide and high.

    Returns:
        (K, C, *output_shape).

    Raises:
        ShapeError: shapes do not fit.
        IndexRangeError: a region names no image.
        ValueError: an unknown mode.

    Source: He et al., Mask R-CNN, ICCV 2017.

    Example:
        >>> x = F.arange(16).reshape(1, 1, 4, 4)
        >>> F.vision.roi_align(x, mge.tensor([[0., 0., 0., 4., 4.]]), 2).tolist()
        [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    mode = str(mode).lower()
    if mode not in ("average", "max"):
        raise ValueError(f"roi_align: unknown mode {mode!r}; use 'average' or 'max'")
    x, regions = promote_all([as_float(inp), as_float(rois)])
    _check_regions("roi_align", x, regions)
    dtype, x, regions = x._kind.dtype, widened(x), widened(regions)
    grid, samples = pair(output_shape), pair(sample_points)
    corners = regions[:, 1:] * float(spatial_scale) - (0.5 if aligned else 0.0)
    least = 0.0 if aligned or Dialect.megengine else 1.0
    size = maximum(corners[:, 2:] - corners[:, :2], least)
    images = _images("roi_align", x, regions).reshape(-1, 1, 1)
    if Dialect.megengine:
        x, corners = pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), corners + 1.0
    k, channels, places = rois.shape[0], x.shape[1], []
    for axis in (1, 0):
        count = grid[1 - axis] * samples[1 - axis]
        steps = x.constant(((np.arange(count) + 0.5) / count).astype(np.float32))
        places.append(corners[:, axis : axis + 1] + size[:, axis : axis + 1] * steps)
    if mode == "average":
        sides = [v for at, n in zip(places, x.shape[2:], strict=True) for v in _lines(at, n)]
        given = x.transpose(0, 2, 3, 1), images.reshape(-1), *sides
        op = RegionMean((grid[0], grid[1]), (samples[0], samples[1]))
        return call("roi_align", op, *given).transpose(0, 3, 1, 2).astype(dtype)
    rows, columns = (p.shape[1] for p in places)
    down = places[0].reshape(k, rows, 1) + zeros_like(places[1]).reshape(k, 1, columns)
    right = places[1].reshape(k, 1, columns) + zeros_like(places[0]).reshape(k, rows, 1)
    shape = x.shape[2:]
    outside = _outside(down, shape[0], 1.0) | _outside(right, shape[1], 1.0)
    found = _between(_cells(x), images, [down, right], shape)
    found = found * (1 - outside.astype(x.dtype)).reshape(*outside.shape, 1)
    parts = found.reshape(k, grid[0], samples[0], grid[1], samples[1], channels)
    return parts.max((2, 4)).transpose(0, 3, 1, 2).astype(dtype)


def deformable_psroi_pooling(
    inp: Tensor,
    rois: Tensor,
    trans: Tensor,
    no_trans: bool,
    part_size: int,
    pooled_h: int,
    pooled_w: int,
    sample_per_part: int,
    spatial_scale: float,
    trans_std: float = 0.1,
) -> Tensor:
    """The mean of samples in every part of a grid over regions, each part moved by an offset.

    Args:
        inp: (N, C, H, W).
        rois: (K, 5), corners in whole pixels, the last ones included.
        trans: (K, 2 G, part_size, part_size), x before y for each of G groups of C/G channels, in
            shares of the region's extent times `trans_std`; rows beyond K are not read.
        no_trans: leave the parts where they are; `trans` is not read.
        part_size: rows and columns of offsets.
        pooled_h, pooled_w: rows and columns of the grid.
        sample_per_part: rows and columns of samples in a part.
        spatial_scale: pixels of `inp` per unit of `rois`.

    Returns:
        (K, C, pooled_h, pooled_w): means of the samples within the image, 0 where there are none.

    Raises:
        ShapeError: shapes do not fit.
        IndexRangeError: a region names no image.

    Source: Dai et al., Deformable convolutional networks, ICCV 2017.

    Example:
        >>> x, box = F.arange(16).reshape(1, 1, 4, 4), mge.tensor([[0., 0., 0., 3., 3.]])
        >>> still = F.zeros((1, 2, 2, 2))
        >>> F.nn.deformable_psroi_pooling(x, box, still, True, 2, 2, 2, 2, 1.0).tolist()
        [[[[1.25, 3.0], [8.25, 10.0]]]]
    """
    x, regions = promote_all([as_float(inp), as_float(rois)])
    _check_regions("deformable_psroi_pooling", x, regions)
    dtype, x, regions = x._kind.dtype, widened(x), widened(regions)
    groups = 1 if no_trans else _groups_of_offsets(x, regions, trans, part_size)
    k, (n, channels, height, width) = regions.shape[0], x.shape
    low = rounded(regions[:, 1:3]) * spatial_scale - 0.5
    size = maximum((rounded(regions[:, 3:5]) + 1.0) * spatial_scale - 0.5 - low, 0.1)
    places = []
    for axis, parts in ((1, pooled_h), (0, pooled_w)):
        # Part p and sample s stand at p + s / samples parts, as (p, s) on axes 2, 3 or 4, 5.
        steps = np.add.outer(np.arange(parts), np.arange(sample_per_part) / sample_per_part) / parts
        shape = (1, 1, *steps.shape, 1, 1) if axis == 1 else (1, 1, 1, 1, *steps.shape)
        wide = size[:, axis].reshape(k, 1, 1, 1, 1, 1)
        at = low[:, axis].reshape(k, 1, 1, 1, 1, 1) + wide * x.constant(
            steps.reshape(shape).astype(np.float32)
        )
        if not no_trans:
            moved = _offsets(widened(as_float(trans))[:k], axis, part_size, (pooled_h, pooled_w))
            at = at + moved.reshape(k, groups, pooled_h, 1, pooled_w, 1) * trans_std * wide
        places.append(at)
    whole = places[0] * 0.0 + places[1] * 0.0
    down, right = (p + whole for p in places)
    inside = 1 - (_outside(down, height, 0.5) | _outside(right, width, 0.5)).astype(x.dtype)
    images = _images("deformable_psroi_pooling", x, regions).reshape(k, 1, 1, 1, 1, 1) * groups
    images = images + x.constant(np.arange(groups, dtype=np.int32).reshape(groups, 1, 1, 1, 1))
    table = _cells(x.reshape(n * groups, channels // groups, height, width))
    weights = inside.reshape(*inside.shape, 1)
    found = _between(table, images, [down, right], (height, width)) * weights
    mean = found.sum((3, 5)) / maximum(weights.sum((3, 5)), 1)
    mean = mean.transpose(0, 1, 4, 2, 3).reshape(k, channels, pooled_h, pooled_w)
    return mean.astype(dtype)


def _groups_of_offsets(x: Tensor, rois: Tensor, trans: Tensor, part_size: int) -> int:
    given = as_tensor(trans)
    groups = given.shape[1] // 2 if given.ndim == 4 else 0
    wanted = (2 * groups, part_size, part_size)
    short = given.shape[0] < rois.shape[0]
    if not groups or short or given.shape[1:] != wanted or x.shape[1] % groups:
        raise ShapeError(
            "deformable_psroi_pooling",
            f"trans must be (K, 2 G, {part_size}, {part_size}) with G dividing the channels",
            saw=f"inp {x.type}, rois {rois.type}, trans {given.type}",
            hint="G is the number of groups of channels that move together",
        )
    return groups


def _offsets(trans: Tensor, axis: int, parts: int, grid: tuple[int, int]) -> Tensor:
    """The offsets of the cells of the grid along x (0) or y (1): (K, G, *grid)."""
    k = trans.shape[0]
    own = trans.reshape(k, -1, 2, parts, parts)[:, :, axis]
    rows, columns = (np.arange(g) * parts // g for g in grid)
    index = (own.constant(i.astype(np.int32)) for i in (rows, columns))
    return Take(3)(Take(2)(own, next(index)), next(index))


def _check_regions(name: str, x: Tensor, rois: Tensor) -> None:
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5:
        raise ShapeError(
            name,
            "takes images (N, C, H, W) and regions (K, 5)",
            saw=f"inp {x.type}, rois {rois.type}",
            hint="put the image's number before the corners of the box",
        )


def _images(name: str, x: Tensor, rois: Tensor) -> Tensor:
    """Numbers of the images of regions, none from the end: int32 (K,)."""
    return call(name, InRange(name, 0, x.shape[0]), rois[:, 0].astype("int32"))


def _outside(at: Tensor, extent: Dim, margin: float) -> Tensor:
    """Return whether places lie more than a margin outside of the cells 0 to extent - 1."""
    return (at < -margin) | (at - margin > extent - 1)


def _cells(x: Tensor) -> Tensor:
    """Images (N, C, H, W) as one row of channels per cell: (N H W, C)."""
    n, channels, *extents = x.shape
    return x.transpose(0, 2, 3, 1).reshape(n * math.prod(extents), channels)


def _lines(at: Tensor, extent: Dim) -> tuple[Tensor, Tensor]:
    """The cells beside places (K, P) of an axis, and their weights, (K, P, 2); none outside."""
    pair = _neighbors(at, extent)
    inside = 1 - _outside(at, extent, 1.0).astype(at.dtype)
    cells, weights = ([p[i] for p in pair] for i in (0, 1))
    return stack(cells, 2), stack(weights, 2) * expand_dims(inside, 2)


def _neighbors(at: Tensor, extent: Dim) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The two cells beside places that are pushed inside, with their weights."""
    most = extent - 1
    if isinstance(most, int):
        inside = clip(at, 0.0, float(most))
    else:
        inside = minimum(maximum(at, 0.0), most)
    first = floor(inside)
    rest = inside - first
    near = first.astype("int32")
    far = where(near < extent - 1, near + 1, near)
    return (near, 1 - rest), (far, rest)


def _between(
    table: Tensor, images: Tensor, places: Sequence[Tensor], shape: Sequence[Dim]
) -> Tensor:
    """Rows of `_cells`, interpolated at places (y, x) that are pushed inside: (*places, C)."""
    axes = [_neighbors(at, extent) for at, extent in zip(places, shape, strict=True)]
    base = images * math.prod(shape)
    total = None
    for row, down in axes[0]:
        for column, right in axes[1]:
            cells = Take(0)(table, base + row * shape[1] + column)
            share = down * right
            part = cells * share.reshape(*share.shape, 1)
            total = part if total is None else total + part
    return as_tensor(total)


def correlation(
    data1: Tensor,
    data2: Tensor,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    pad_size: int = 0,
    is_multiply: bool = True,
) -> Tensor:
    """Compare patches of one image with patches of another that are displaced: a cost volume.

    Args:
        data1, data2: (N, C, H, W), padded with `pad_size` zeros on each side.
        kernel_size: extent of the patches, odd.
        max_displacement: largest displacement, in cells.
        stride1: cells between patches of the first image.
        stride2: cells between displacements.
        is_multiply: sum products; else absolute differences.

    Returns:
        (N, D * D, OH, OW) with D = 2 (max_displacement // stride2) + 1, displacements row by row
        from the upper left; the sums are divided by the number of terms, kernel_size^2 C.

    Raises:
        ShapeError: the images differ in shape, or nothing is left of them.
        ValueError: the kernel is even.

    Source: Fischer et al., FlowNet, ICCV 2015.

    Example:
        >>> x = F.arange(9).reshape(1, 1, 3, 3)
        >>> F.vision.correlation(x, x).reshape(-1).tolist()
        [0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 32.0]
    """
    if kernel_size % 2 == 0:
        raise ValueError(f"correlation: kernel_size must be odd, got {kernel_size}")
    x, y = promote_all([as_float(data1), as_float(data2)])
    if x.ndim != 4 or x.shape != y.shape:
        raise ShapeError("correlation", "takes two images of one shape", saw=f"{x.type}, {y.type}")
    dtype, x, y = x._kind.dtype, widened(x), widened(y)
    around = ((0, 0), (0, 0), (pad_size, pad_size), (pad_size, pad_size))
    x, y = pad(x, around), pad(y, around)
    far = max_displacement
    height, width = (d - 2 * far for d in x.shape[2:])
    if min(height, width) < kernel_size:
        raise ShapeError(
            "correlation",
            f"no patch of {kernel_size} has a place within {far} cells of the border",
            saw=f"{data1.type} padded by {pad_size}",
            hint="raise pad_size",
        )
    center = x[:, :, far : far + height, far : far + width]
    reach = far // stride2
    steps = [far + i * stride2 for i in range(-reach, reach + 1)]
    costs = []
    for i in steps:
        for j in steps:
            other = y[:, :, i : i + height, j : j + width]
            costs.append((center * other if is_multiply else magnitude(center - other)).mean(1))
    return avg_pool2d(stack(costs, 1), kernel_size, stride1, mode="average").astype(dtype)


def nvof(src: Tensor, precision: int = 1) -> Tensor:
    """Optical flow by the unit of NVIDIA's GPUs, which no backend has yet; any shape.

    Raises:
        UnsupportedOp: always.

    Example:
        >>> import contextlib
        >>> with contextlib.suppress(NotImplementedError): F.vision.nvof(F.zeros((1, 2, 8, 8, 4)))
    """
    raise UnsupportedOp(
        "nvof",
        "needs the optical flow unit of an NVIDIA GPU",
        saw=f"{as_tensor(src).type}, precision {precision}",
        hint="compute the flow with OpenCV, or a network built on correlation()",
    )
