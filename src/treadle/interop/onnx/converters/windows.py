"""Convolution and pooling: everything that moves a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.interop.onnx.converters.shapes import extents, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, dtype_of, known
from treadle.interop.onnx.registry import converts
from treadle.ops import elementwise as ew
from treadle.ops import reduce, unary
from treadle.ops.conv import Conv, ConvGradInput
from treadle.ops.gather import Take
from treadle.ops.gather_along import ScatterAlongAxis, TakeAlongAxis
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Transpose
from treadle.ops.pool import AvgPool, MaxPool
from treadle.ops.slicing import Pad

Pairs = tuple[tuple[int, int], ...]


class WindowGeometry:
    """Kernel, strides, dilation and padding of a node over an input's spatial extents."""

    def __init__(self, node: OnnxNode, spatial: Sequence[int], kernel: Sequence[int]) -> None:
        rank = len(spatial)
        self.spatial = tuple(spatial)
        self.kernel = checked_kernel(node, kernel)
        self.strides = node.ints("strides", [1] * rank)
        self.dilation = node.ints("dilations", [1] * rank)
        self.ceil = bool(node.attr("ceil_mode", 0))
        pads = node.ints("pads", [0] * 2 * rank)
        self.padding: Pairs = tuple(zip(pads[:rank], pads[rank:], strict=True))
        auto = _auto_pad(node)
        if auto == "VALID":
            self.padding = ((0, 0),) * rank
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            self.padding = tuple(self._same(i, auto == "SAME_LOWER") for i in range(rank))

    def reach(self, axis: int) -> int:
        """Cells from the first to the last of a window."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    @property
    def fits(self) -> bool:
        """True if one window at least lies inside of the padded input."""
        sizes = zip(self.spatial, self.padding, strict=True)
        return all(self.reach(i) <= n + sum(p) for i, (n, p) in enumerate(sizes))

    def _same(self, axis: int, lower: bool) -> tuple[int, int]:
        n, step = self.spatial[axis], self.strides[axis]
        # The number of (n - 1) % step is all that it needs where n is an expression.
        total = max(self.reach(axis) - 1 - int((n - 1) % step), 0)
        return (total - total // 2, total // 2) if lower else (total // 2, total - total // 2)

    def without_padding(self, spatial: Sequence[int]) -> WindowGeometry:
        """The same windows over an input that has its padding already."""
        made = copy(self)
        made.spatial = tuple(spatial)
        made.padding = ((0, 0),) * len(made.spatial)
        return made

    def positions(self, axis: int) -> int:
        """Windows along an axis; an incomplete last one only where it starts inside."""
        low, high = self.padding[axis]
        n, step = self.spatial[axis], self.strides[axis]
        rest = n + low + high - self.reach(axis)
        if not self.ceil:
            return rest // step + 1
        return min(-(-rest // step) + 1, (n + low - 1) // step + 1)


def checked_kernel(node: OnnxNode, kernel: Sequence[int]) -> tuple[int, ...]:
    """The extents of a kernel, which an attribute may repeat.

    Raises:
        UnsupportedOp: it says something else.
    """
    made = tuple(int(k) for k in kernel)
    said = node.ints("kernel_shape", made)
    if said != made:
        raise node.refuse(
            f"kernel_shape is {list(said)}, and the weights have {list(made)}", "check the model"
        )
    return made


# -- convolution -------------------------------------------------------------------------------


def _auto_pad(node: OnnxNode) -> str:
    found = node.attr("auto_pad", "NOTSET") or "NOTSET"
    if found not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise node.refuse(f"auto_pad {found!r} is unknown", "check the model")
    return found


@converts("Conv")
def convolved(node: OnnxNode, x: Value, weight: Value, bias: Value = None) -> Value:
    """The convolution of a node; nothing where no window fits."""
    spatial = extents(x)[2:]
    at = WindowGeometry(node, spatial, extents(weight)[2:])
    counts = [at.positions(i) for i in range(len(spatial))]
    if 0 in counts:
        return known(np.zeros((extents(x)[0], extents(weight)[0], *counts), dtype_of(x).numpy))
    op = Conv(at.strides, at.padding, at.dilation, node.attr("group", 1))
    return _with_bias(op(x, weight), bias)


def _with_bias(y: Value, bias: Value) -> Value:
    if bias is None:
        return y
    return y + reshaped(bias, (1, -1, *[1] * (len(extents(y)) - 2)))


@converts("ConvTranspose")
def _conv_transpose(node: OnnxNode, x: Value, weight: Value, bias: Value = None) -> Value:
    spatial, kernel = extents(x)[2:], checked_kernel(node, extents(weight)[2:])
    rank = len(spatial)
    strides = node.ints("strides", [1] * rank)
    dilation = node.ints("dilations", [1] * rank)
    extra = node.ints("output_padding", [0] * rank)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    full = [s * (n - 1) + r + e for s, n, r, e in zip(strides, spatial, reach, extra, strict=True)]
    wanted = node.ints("output_shape", ())[-rank:]
    pads = node.ints("pads", [0] * 2 * rank)
    padding = list(zip(pads[:rank], pads[rank:], strict=True))
    auto = _auto_pad(node)
    if not wanted and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(spatial, strides, strict=True))
    if wanted:
        totals = [f - w for f, w in zip(full, wanted, strict=True)]
        lower = auto != "SAME_UPPER"
        padding = [(t - t // 2, t // 2) if lower else (t // 2, t - t // 2) for t in totals]
    made = [f - a - b for f, (a, b) in zip(full, padding, strict=True)]
    groups = node.attr("group", 1)
    # What is negative is room to be left empty.
    inside = tuple((max(a, 0), max(b, 0)) for a, b in padding)
    sizes = tuple(m + min(a, 0) + min(b, 0) for m, (a, b) in zip(made, padding, strict=True))
    op = ConvGradInput(strides, inside, dilation, groups, sizes)
    result = op(x, weight)
    if any(p < 0 for pair in padding for p in pair):
        widths = ((0, 0), (0, 0), *((max(-a, 0), max(-b, 0)) for a, b in padding))
        result = Pad(tuple(widths), "constant", 0.0)(result)
    return _with_bias(result, bias)


# -- windows as an axis ------------------------------------------------------------------------


def unfolded(
    x: Value, at: WindowGeometry, fill: float, counts: Sequence[int] | None = None
) -> Value:
    """x [N, C, *S] as [N, C, *positions, *kernel]: what each window sees.

    There are as many windows as the geometry gives, or `counts` of them per axis.
    """
    rank = len(at.spatial)
    counts = counts or [at.positions(i) for i in range(rank)]
    ends = [
        (n - 1) * s + at.reach(i) for i, (n, s) in enumerate(zip(counts, at.strides, strict=True))
    ]
    after = [
        max(e - n - low, 0) for e, n, (low, _) in zip(ends, at.spatial, at.padding, strict=True)
    ]
    widths = ((0, 0), (0, 0), *((low, a) for (low, _), a in zip(at.padding, after, strict=True)))
    y = Pad(tuple(widths), "constant", fill)(x) if any(map(any, widths)) else x
    for i in range(rank):
        axis = 2 + 2 * i
        first = np.arange(counts[i])[:, None] * at.strides[i]
        places = (first + np.arange(at.kernel[i]) * at.dilation[i]).astype(np.int64)
        y = Take(axis)(y, y.constant(places, dt.int64))
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    return Transpose(order)(y)


def _window_axes(rank: int) -> tuple[int, ...]:
    return tuple(range(2 + rank, 2 + 2 * rank))


# -- pooling -----------------------------------------------------------------------------------


@converts("MaxPool")
def _max_pool(node: OnnxNode, x: Value) -> Value:
    at = WindowGeometry(node, extents(x)[2:], node.ints("kernel_shape", ()))
    if not node.wants(1):
        low = tuple(a for a, _ in at.padding)
        fits = all(a < r for a, r in zip(low, at.kernel, strict=True))
        if fits and at.fits and len(at.spatial) <= 3:
            return MaxPool(at.kernel, at.strides, at.padding, at.dilation, at.ceil)(x)
    return _max_pool_with_places(node, x, at)


def _max_pool_with_places(node: OnnxNode, x: Value, at: WindowGeometry) -> tuple[Value, Value]:
    rank, kind = len(at.spatial), dtype_of(x)
    counts = [at.positions(i) for i in range(rank)]
    if 0 in counts:
        shape = (*extents(x)[:2], *counts)
        return known(np.zeros(shape, kind.numpy)), known(np.zeros(shape, np.int64))
    least = -np.inf if kind.is_float else np.iinfo(kind.numpy).min
    windows = unfolded(x, at, least)
    shape = extents(windows)
    flat = reshaped(windows, (*shape[: 2 + rank], -1))
    values = reduce.Max((2 + rank,))(flat)
    cells = np.arange(math.prod(extents(x)), dtype=np.int64).reshape(extents(x))
    if node.attr("storage_order", 0):  # column by column: spatial axes counted the other way
        plane = np.arange(math.prod(at.spatial)).reshape(at.spatial[::-1]).transpose()
        planes = cells.reshape(-1, math.prod(at.spatial))[:, :1]
        cells = (planes + plane.reshape(1, -1)).reshape(extents(x)).astype(np.int64)
    seen = unfolded(x.constant(cells, dt.int64), at, -1)
    chosen = reduce.Argmax(2 + rank, True)(flat).astype(dt.int64)
    places = reshaped(seen, extents(flat))
    from_each = ew.Mul()(places, _one_hot(chosen, extents(flat)[-1]))
    return values, reduce.Sum((2 + rank,))(from_each)


def _one_hot(index: Value, n: int) -> Value:
    places = index.constant(np.arange(n, dtype=np.int64), dt.int64)
    return (index - places).astype(dt.bool_).astype(dt.int64) * -1 + 1


@converts("MaxUnpool", host=(2,))
def _max_unpool(node: OnnxNode, x: Value, index: Value, shape: Array | None = None) -> Value:
    kernel = node.ints("kernel_shape", ())
    at = WindowGeometry(node, extents(x)[2:], kernel)
    spatial = [
        (n - 1) * s + k - a - b
        for n, s, k, (a, b) in zip(at.spatial, at.strides, kernel, at.padding, strict=True)
    ]
    natural = (*extents(x)[:2], *spatial)
    wanted = natural if shape is None else tuple(int(d) for d in shape)
    count = math.prod(extents(x))
    empty = x.constant(np.zeros(math.prod(natural), dtype_of(x).numpy), dtype_of(x))
    made = ScatterAlongAxis(0)(empty, reshaped(index, (count,)), reshaped(x, (count,)))
    more = tuple((0, w - n) for w, n in zip(wanted, natural, strict=True))
    made = reshaped(made, natural)
    return Pad(more)(made) if wanted != natural else made


@converts("AveragePool")
def _average_pool(node: OnnxNode, x: Value) -> Value:
    at = WindowGeometry(node, extents(x)[2:], node.ints("kernel_shape", ()))
    include = bool(node.attr("count_include_pad", 0))
    plain = all(d == 1 for d in at.dilation) and len(at.spatial) <= 3 and at.fits
    if (
        plain
        and all(max(p) < k for p, k in zip(at.padding, at.kernel, strict=True))
        and not (include and at.ceil)
    ):
        return AvgPool(at.kernel, at.strides, at.padding, include, at.ceil)(x)
    rank = len(at.spatial)
    total = reduce.Sum(_window_axes(rank))(unfolded(x, at, 0.0))
    ones = known(np.ones((1, 1, *at.spatial), dtype_of(x).numpy))
    counts = [at.positions(i) for i in range(rank)]
    if include:  # cells of the padding count, those beyond it do not
        ones = known(np.pad(ones.array, ((0, 0), (0, 0), *at.padding), constant_values=1))
        at = at.without_padding(ones.array.shape[2:])
    count = reduce.Sum(_window_axes(rank))(unfolded(ones, at, 0.0, counts))
    return total / total.constant(count.array, dtype_of(x))


@converts("LpPool")
def _lp_pool(node: OnnxNode, x: Value) -> Value:
    at = WindowGeometry(node, extents(x)[2:], node.ints("kernel_shape", ()))
    p = float(node.attr("p", 2))
    powers = ew.Pow()(unary.Abs()(x), x.constant(p))
    total = reduce.Sum(_window_axes(len(at.spatial)))(unfolded(powers, at, 0.0))
    return ew.Pow()(total, total.constant(1.0 / p))


@converts("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: OnnxNode, x: Value) -> Value:
    axes = tuple(range(2, len(extents(x))))
    op = reduce.Mean if node.op_type == "GlobalAveragePool" else reduce.Max
    return op(axes, True)(x)


@converts("GlobalLpPool")
def _global_lp_pool(node: OnnxNode, x: Value) -> Value:
    axes, p = tuple(range(2, len(extents(x)))), float(node.attr("p", 2))
    total = reduce.Sum(axes, True)(ew.Pow()(unary.Abs()(x), x.constant(p)))
    return ew.Pow()(total, total.constant(1.0 / p))


@converts("Col2Im", host=(1, 2))
def _col_to_image(node: OnnxNode, x: Value, image: Array, block: Array) -> Value:
    spatial, kernel = [int(d) for d in image], [int(k) for k in block]
    at = WindowGeometry(node, spatial, kernel)
    n, rows, _ = extents(x)
    cells = math.prod(kernel)
    # The adjoint of unfolding is a transposed convolution with one-hot weights, one per cell.
    weight = np.eye(cells, dtype=dtype_of(x).numpy).reshape(cells, 1, *kernel)
    counts = [at.positions(i) for i in range(len(spatial))]
    columns = reshaped(x, (n * (rows // cells), cells, *counts))
    op = ConvGradInput(at.strides, at.padding, at.dilation, 1, tuple(spatial))
    made = op(columns, x.constant(weight, dtype_of(x)))
    return reshaped(made, (n, rows // cells, *spatial))


# -- deformable --------------------------------------------------------------------------------


@converts("DeformConv")
def _deform_conv(
    node: OnnxNode, x: Value, weight: Value, offset: Value, bias: Value = None, mask: Value = None
) -> Value:
    n, _, *spatial = extents(x)
    outs, per_group, *kernel = extents(weight)
    at = WindowGeometry(node, spatial, kernel)
    groups, shared = node.attr("group", 1), node.attr("offset_group", 1)
    rows, columns = at.positions(0), at.positions(1)
    cells = kernel[0] * kernel[1]
    shifts = reshaped(offset, (n, shared, cells, 2, rows, columns))
    places = _regular(at, rows, columns)
    samples = _sampled(x, shifts, places, shared)
    if mask is not None:
        samples = samples * reshaped(mask, (n, shared, 1, cells, rows, columns))
    patches = reshaped(samples, (n, groups, per_group * cells, rows * columns))
    kernels = reshaped(weight, (1, groups, outs // groups, per_group * cells))
    return _with_bias(reshaped(Matmul()(kernels, patches), (n, outs, rows, columns)), bias)


def _regular(at: WindowGeometry, rows: int, columns: int) -> tuple[Array, Array]:
    """Row and column of every cell of every window, [cells, rows, columns]."""
    i, j = np.meshgrid(np.arange(at.kernel[0]), np.arange(at.kernel[1]), indexing="ij")
    top = np.arange(rows) * at.strides[0] - at.padding[0][0]
    left = np.arange(columns) * at.strides[1] - at.padding[1][0]
    y = i.reshape(-1, 1, 1) * at.dilation[0] + top[None, :, None]
    x = j.reshape(-1, 1, 1) * at.dilation[1] + left[None, None, :]
    shape = (at.kernel[0] * at.kernel[1], rows, columns)
    return np.broadcast_to(y, shape), np.broadcast_to(x, shape)


def _sampled(x: Value, shifts: Value, places: tuple[Array, Array], shared: int) -> Value:
    """x at fractional places, [N, shared, C / shared, cells, rows, columns]; 0 outside."""
    n, channels, height, width = extents(x)
    _, _, cells, _, rows, columns = extents(shifts)
    flat = reshaped(x, (n, shared, channels // shared, height * width))
    kind = dtype_of(x)
    halves = [reduce.Sum((3,))(shifts * shifts.constant(_pick(i), kind)) for i in (0, 1)]
    at = [h + h.constant(p.astype(kind.numpy), kind) for h, p in zip(halves, places, strict=True)]
    low = [unary.Floor()(a) for a in at]
    total = None
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = low[0] + dy, low[1] + dx
            share = (1 - unary.Abs()(at[0] - row)) * (1 - unary.Abs()(at[1] - column))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            cell = _clamped(row, height) * width + _clamped(column, width)
            index = reshaped(cell.astype(dt.int64), (n, shared, 1, cells * rows * columns))
            seen = _along_last(flat, index, channels // shared)
            part = reshaped(seen, (n, shared, channels // shared, cells, rows, columns))
            weight = reshaped(share * inside.astype(kind), (n, shared, 1, cells, rows, columns))
            total = part * weight if total is None else total + part * weight
    return total


def _pick(i: int) -> Array:
    found: Array = np.eye(2)[i].reshape(1, 1, 1, 2, 1, 1)
    return found


def _clamped(x: Value, extent: int) -> Value:
    return ew.Minimum()(ew.Maximum()(x, x.constant(0)), x.constant(extent - 1))


def _along_last(x: Value, index: Value, channels: int) -> Value:
    wide = index.broadcast_to((*extents(index)[:2], channels, extents(index)[3]))
    return TakeAlongAxis(3)(x, wide)
