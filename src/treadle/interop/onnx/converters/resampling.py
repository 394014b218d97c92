"""Resize, grids, and regions: values at fractional places."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.modes import LOCAL
from treadle.base.symbol import Expr, is_identical
from treadle.interop.onnx.converters.shapes import extents, joined, part, reshaped
from treadle.interop.onnx.nodes import OnnxNode, Value, concrete, dtype_of, together
from treadle.interop.onnx.registry import converts
from treadle.jit.control import while_loop
from treadle.ops import elementwise as ew
from treadle.ops import logic, reduce, unary
from treadle.ops.gather import Index, Take
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Concat, Transpose
from treadle.ops.regions import RegionMean
from treadle.ops.resample import Resize as ResizeOp
from treadle.ops.select import Where
from treadle.tensor import Tensor

# -- resize ------------------------------------------------------------------------------------


@converts("Resize", host=(1,))
def _resize_10(node: OnnxNode, x: Value, scales: Array) -> Value:
    shape = extents(x)
    sizes = [_times(d, float(s)) for d, s in zip(shape, scales, strict=True)]
    return _resized(node, x, list(range(len(shape))), sizes, [float(s) for s in scales], None)


@converts("Upsample")
def _upsample_attribute(node: OnnxNode, x: Value) -> Value:
    return _upsample(node, x, np.array(node.attributes["scales"]))


@converts("Upsample", since=9, host=(1,))
def _upsample(node: OnnxNode, x: Value, scales: Array) -> Value:
    if node.attr("mode", "nearest") != "nearest" or any(s != int(s) for s in scales):
        return _resize_10(node, x, scales)
    shape = extents(x)
    apart = [n for d in shape for n in (d, 1)]
    wide = tuple(n for d, s in zip(shape, scales, strict=True) for n in (d, int(s)))
    made = reshaped(x, apart).broadcast_to(wide)
    return reshaped(made, [d * int(s) for d, s in zip(shape, scales, strict=True)])


@converts("Resize", since=11, host=(1, 2, 3), symbols=True)
def _resize(
    node: OnnxNode,
    x: Value,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Value:
    shape = extents(x)
    axes = [node.place(a, len(shape)) for a in node.ints("axes", range(len(shape)))]
    mine: list[int] = [shape[a] for a in axes]
    box = None if roi is None or roi.size == 0 else roi.reshape(2, -1)
    if sizes is not None and sizes.size:
        target: Sequence[int] = sizes.tolist()
        quick = _stretched(node, x, axes, target)
        if quick is not None:
            return quick
        target, mine = [int(t) for t in target], list(map(int, mine))
        factors = [t / d for t, d in zip(target, mine, strict=True)]
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(target)
            target = [math.floor(factor * d + 0.5) for d in mine]
    elif scales is not None:
        factors = [float(s) for s in scales]
        target = [_times(d, f) for d, f in zip(mine, factors, strict=True)]
        if (
            box is not None
            and node.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        ):
            spans = zip(mine, factors, box.T, strict=True)
            target = [math.floor(d * f * (b - a)) for d, f, (a, b) in spans]
    else:
        raise node.refuse("neither scales nor sizes are given")
    return _resized(node, x, axes, target, factors, box)


def _times(extent: int, by: float) -> int:
    """An extent times a number, rounded down; whole numbers ask for nothing."""
    return extent * int(by) if by.is_integer() else math.floor(extent * by)


def _stretched(
    node: OnnxNode, x: Value, axes: Sequence[int], target: Sequence[int]
) -> Value | None:
    """Extents of which some are expressions, as the op of the same meaning takes them."""
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if not any(isinstance(d, Expr) for d in (*target, *extents(x))):
        return None
    return _by_op(node, x, axes, target, True)


def _resized(
    node: OnnxNode,
    x: Value,
    axes: Sequence[int],
    target: Sequence[int],
    factors: Sequence[float],
    box: Array | None,
) -> Value:
    shape = extents(x)
    exact = all(
        is_identical(shape[a] * int(f), t) if f.is_integer() else abs(f - t / shape[a]) < 1e-9
        for f, t, a in zip(factors, target, axes, strict=True)
    )
    quick = _by_op(node, x, axes, target, exact)
    if quick is not None:
        return quick
    kind = dtype_of(x)
    places = node.attr(
        "coordinate_transformation_mode", "half_pixel" if node.opset > 10 else "asymmetric"
    )
    y = x if kind.is_float else x.astype(dt.float32)
    outside = None
    for i, axis in enumerate(axes):
        extent = extents(y)[axis]
        if extent == target[i] and factors[i] == 1.0 and places != "tf_crop_and_resize":
            continue
        window = (0.0, 1.0) if box is None else (float(box[0, i]), float(box[1, i]))
        at = _coordinates(places, extent, target[i], factors[i], window)
        y = _interpolated(node, y, axis, at, factors[i])
        if places == "tf_crop_and_resize":
            beyond = (at < 0) | (at > extent - 1)
            mask = beyond.reshape([-1 if j == axis else 1 for j in range(len(extents(y)))])
            outside = mask if outside is None else outside | mask
    if outside is not None and outside.any():
        fill = y.constant(node.attr("extrapolation_value", 0.0))
        whole = np.broadcast_to(outside, extents(y))
        y = Where()(y.constant(np.ascontiguousarray(whole), dt.bool_), fill, y)
    if kind.is_float:
        return y.astype(kind)
    info = np.iinfo(kind.numpy)
    return ew.Minimum()(ew.Maximum()(y, y.constant(info.min)), y.constant(info.max)).astype(kind)


_COORDINATES = {
    "half_pixel": "half_pixel",
    "align_corners": "align_corners",
    "asymmetric": "asymmetric",
}


def _by_op(
    node: OnnxNode, x: Value, axes: Sequence[int], target: Sequence[int], exact: bool
) -> Value | None:
    """The op of the same meaning, for maps resized along spatial axes; None if there is none.

    `exact`: the factors of the node are the quotients of the extents.
    """
    rank, mode = len(extents(x)), node.attr("mode", "nearest")
    places = node.attr(
        "coordinate_transformation_mode", "half_pixel" if node.opset > 10 else "asymmetric"
    )
    shape = list(extents(x))
    for axis, size in zip(axes, target, strict=True):
        shape[axis] = size
    ours = mode == "linear" and places in _COORDINATES
    if mode == "nearest":
        ours = places == "asymmetric" and node.attr("nearest_mode", "round_prefer_floor") == "floor"
        ours |= places == "asymmetric" and node.opset <= 10
    if node.attr("antialias", 0) or not (
        ours and exact and 3 <= rank <= 5 and dtype_of(x).is_float
    ):
        return None
    if tuple(shape[:2]) != extents(x)[:2] or any(d < 1 for d in shape):
        return None
    return ResizeOp(mode, _COORDINATES[places], tuple(shape[2:]))(x)


def _coordinates(mode: str, n: int, m: int, factor: float, window: tuple[float, float]) -> Array:
    """Return the positions of m results on n cells."""
    i = np.arange(m, dtype=np.float64)
    if mode == "align_corners":
        extent = factor * n  # not rounded, where scales were given
        return i * (n - 1) / (extent - 1) if extent != 1 else i * 0
    if mode == "asymmetric":
        return i / factor
    if mode == "pytorch_half_pixel":
        return (i + 0.5) / factor - 0.5 if m > 1 else i * 0 - 0.0
    if mode == "tf_half_pixel_for_nn":
        return (i + 0.5) / factor
    if mode == "tf_crop_and_resize":
        start, end = window
        if m > 1:
            return start * (n - 1) + i * (end - start) * (n - 1) / (m - 1)
        return i * 0 + 0.5 * (start + end) * (n - 1)
    if mode == "half_pixel_symmetric":
        adjusted = m / (factor * n)
        center = n / 2
        return center * (1 - adjusted) + (i + 0.5) / factor - 0.5
    return (i + 0.5) / factor - 0.5


def _interpolated(node: OnnxNode, x: Value, axis: int, at: Array, factor: float) -> Value:
    n, mode = extents(x)[axis], node.attr("mode", "nearest")
    if mode == "nearest":
        places = _nearest(str(node.attr("nearest_mode", "round_prefer_floor")), at, node.opset)
        index = np.clip(places, 0, n - 1).astype(np.int64)
        return Take(axis)(x, x.constant(index, dt.int64))
    scale = min(factor, 1.0) if node.attr("antialias", 0) else 1.0
    kernel: Callable[[Array], Array] = _triangle
    reach = 1.0
    if mode == "cubic":
        slope = float(node.attr("cubic_coeff_a", -0.75))
        kernel, reach = (lambda t: _cubic(t, slope)), 2.0
    weights = _weights(at, n, kernel, reach / scale, scale, bool(node.attr("exclude_outside", 0)))
    return _along(x, axis, weights)


def _nearest(mode: str, at: Array, opset: int) -> Array:
    if opset <= 10:
        return np.floor(at)
    rounded: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda t: np.ceil(t - 0.5),
        "round_prefer_ceil": lambda t: np.floor(t + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    return rounded[mode](at)


def _triangle(t: Array) -> Array:
    found: Array = np.maximum(1 - np.abs(t), 0)
    return found


def _cubic(t: Array, a: float) -> Array:
    """Keys' kernel."""
    t = np.abs(t)
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _weights(
    at: Array, n: int, kernel: Callable[[Array], Array], reach: float, scale: float, inside: bool
) -> Array:
    """[results, cells]: how much each cell counts; what lies outside counts for the edge."""
    low = np.floor(at - reach).astype(int)
    cells = low[:, None] + np.arange(int(2 * reach) + 3)
    shares = kernel((at[:, None] - cells) * scale)
    if inside:
        shares = np.where((cells < 0) | (cells >= n), 0, shares)
    if inside or scale != 1.0:
        shares = shares / shares.sum(1, keepdims=True)
    result = np.zeros((at.size, n))
    rows = np.broadcast_to(np.arange(at.size)[:, None], cells.shape)
    np.add.at(result, (rows, np.clip(cells, 0, n - 1)), shares)
    return result


def _along(x: Value, axis: int, weights: Array) -> Value:
    """The product with a matrix along one axis."""
    rank = len(extents(x))
    order = (*(i for i in range(rank) if i != axis), axis)
    back = tuple(int(i) for i in np.argsort(order))
    matrix = x.constant(np.ascontiguousarray(weights.T.astype(dtype_of(x).numpy)), dtype_of(x))
    turned = Transpose(order)(x)
    shape = extents(turned)
    flat = Matmul()(reshaped(turned, (-1, shape[-1])), matrix)
    return Transpose(back)(reshaped(flat, (*shape[:-1], weights.shape[0])))


# -- grids -------------------------------------------------------------------------------------


@converts("GridSample")
def _grid_sample(node: OnnxNode, x: Value, grid: Value) -> Value:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(m := str(node.attr("mode", "linear")), m)
    padding, corners = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    spatial = extents(x)[2:]
    rank = len(spatial)
    flat = reshaped(grid, (extents(grid)[0], -1, rank))
    places = []
    for i, n in enumerate(spatial):
        unit = reshaped(part(flat, 2, rank - 1 - i, rank - i), extents(flat)[:2])
        at = (unit + 1) * ((n - 1) / 2) if corners else (unit + 1) * (n / 2) - 0.5
        places.append(
            at if padding == "zeros" or mode == "cubic" else _inside(at, n, padding, corners)
        )
    made = _grid_values(x, places, mode, str(padding), corners)
    return reshaped(made, (*extents(x)[:2], *extents(grid)[1:-1]))


def _inside(at: Value, n: int, padding: str, corners: bool) -> Value:
    """Places outside moved to the border or mirrored."""
    zero, last = at.constant(0), at.constant(n - 1)
    if padding == "reflection":
        low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
        span = high - low
        if span == 0:
            return at * 0
        twice = ew.Mod()(unary.Abs()(at - low), at.constant(2 * span))
        at = low + ew.Minimum()(twice, 2 * span - twice)
    return ew.Minimum()(ew.Maximum()(at, zero), last)


def _taps(at: Value, mode: str) -> list[tuple[Value, Value | None]]:
    """Cells that count for a place, each with its share (None: all of it)."""
    if mode == "nearest":
        floor = unary.Floor()(at + 0.5)
        half = logic.Equal()(floor - at, at.constant(0.5))
        odd = logic.NotEqual()(ew.Mod()(floor, at.constant(2)), at.constant(0))
        return [(floor - (half & odd).astype(dtype_of(at)), None)]
    low = unary.Floor()(at)
    if mode == "linear":
        return [(low, low + 1 - at), (low + 1, at - low)]
    taps = []
    for shift in (-1, 0, 1, 2):
        cell = low + shift
        t, a = unary.Abs()(at - cell), -0.75
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        taps.append((cell, near if shift in (0, 1) else far))
    return taps


def _grid_values(
    x: Value, places: Sequence[Value], mode: str, padding: str, corners: bool
) -> Value:
    """x [N, C, *S] at places [N, P], as [N, C, P]."""
    spatial, kind = extents(x)[2:], dtype_of(x)
    batch = np.arange(extents(x)[0], dtype=np.int64)[:, None]
    rows = np.ascontiguousarray(np.broadcast_to(batch, extents(places[0])))
    order = (0, *range(2, 2 + len(spatial)), 1)
    last = Transpose(order)(x)
    total: Value = None

    def add(axis: int, cells: list[Value], share: Value | None) -> None:
        nonlocal total
        if axis < len(spatial):
            for cell, weight in _taps(places[axis], mode):
                both = weight if share is None else share if weight is None else share * weight
                add(axis + 1, [*cells, cell], both)
            return
        seen = _at_cells(last, rows, cells, spatial, padding, corners)
        seen = seen if share is None else seen * reshaped(share.astype(kind), (*extents(share), 1))
        total = seen if total is None else total + seen

    add(0, [], None)
    return Transpose((0, 2, 1))(total)


def _at_cells(
    x: Value,
    rows: Array,
    cells: Sequence[Value],
    spatial: Sequence[int],
    padding: str,
    corners: bool,
) -> Value:
    inside: Any = None
    indices = []
    for cell, n in zip(cells, spatial, strict=True):
        if padding == "zeros":
            within = (cell >= 0) & (cell <= n - 1)
            inside = within if inside is None else inside & within
        at = _inside(cell, n, "border" if padding == "zeros" else padding, corners)
        indices.append(unary.Floor()(at + 0.5).astype(dt.int64))
    axes = tuple(range(1 + len(spatial)))
    seen = Index(axes)(x, x.constant(rows, dt.int64), *indices)
    if inside is None:
        return seen
    return seen * reshaped(inside.astype(dtype_of(x)), (*extents(inside), 1))


# -- regions -----------------------------------------------------------------------------------


@converts("RoiAlign", separate=True)
def _roi_align(node: OnnxNode, x: Value, rois: Value, batches: Value) -> Value:
    """Averages (or maxima) of bilinear samples on a regular grid in each cell of each region."""
    mode = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "")
    half = 0.5 if mode == "half_pixel" else 0.0
    x, boxes, batches = together([x, rois * node.attr("spatial_scale", 1.0) - half, batches])
    if node.attr("sampling_ratio", 0) > 0:
        return _regions(node, x, boxes, batches, not half)
    return _adaptive(node, x, boxes, batches, not half)


def _regions(node: OnnxNode, x: Value, boxes: Value, batches: Value, least: bool) -> Value:
    count, ratio = extents(boxes)[0], int(node.attributes["sampling_ratio"])
    sizes = node.attr("output_height", 1), node.attr("output_width", 1)
    average, sides, corners = node.attr("mode", "avg") == "avg", [], []
    for i, (size, n) in enumerate(zip(sizes, extents(x)[2:], strict=True)):
        start, stop = part(boxes, 1, 1 - i, 2 - i), part(boxes, 1, 3 - i, 4 - i)
        length = stop - start
        length = ew.Maximum()(length, length.constant(1.0)) if least else length
        steps = (np.arange(size * ratio) + 0.5) / (size * ratio)
        at = start + length * length.constant(steps.reshape(1, -1), dtype_of(length))
        inside = (at >= -1.0) & (at <= float(n))
        at = ew.Minimum()(ew.Maximum()(at, at.constant(0.0)), at.constant(n - 1.0))
        low = unary.Floor()(at)
        high = ew.Minimum()(low + 1.0, at.constant(n - 1.0))
        share, counted = at - low, inside.astype(dtype_of(at))
        shape = (count, -1, 1) if i == 0 else (count, 1, -1)
        taps = ((low, (1 - share) * counted), (high, share * counted))
        if average:
            lines = [low.astype(dt.int64), high.astype(dt.int64)], [w for _, w in taps]
            sides += [Concat(2)(*[reshaped(v, (count, -1, 1)) for v in both]) for both in lines]
            continue
        corners.append(
            [(reshaped(c.astype(dt.int64), shape), reshaped(w, (*shape, 1))) for c, w in taps]
        )
    images, last = batches.astype(dt.int64), Transpose((0, 2, 3, 1))(x)
    if average:
        return Transpose((0, 3, 1, 2))(RegionMean(sizes, (ratio, ratio))(last, images, *sides))
    images = reshaped(images, (count, 1, 1))
    samples = [
        Index((0, 1, 2))(last, images, row, column) * (wy * wx)
        for row, wy in corners[0]
        for column, wx in corners[1]
    ]
    whole = functools.reduce(ew.Maximum(), samples)
    cells = reshaped(whole, (count, sizes[0], ratio, sizes[1], ratio, extents(x)[1]))
    return Transpose((0, 3, 1, 2))(reduce.Max((2, 4))(cells))


def _adaptive(node: OnnxNode, x: Value, boxes: Value, batches: Value, least: bool) -> Value:
    """Sample each cell as often as it is long and wide: a loop over the samples of the largest.

    Samples that lie outside of the maps are 0 and are not visited, so there are at most about two
    per position of the maps, however large the boxes are.
    """
    count, sizes = extents(boxes)[0], (node.attr("output_height", 1), node.attr("output_width", 1))
    down, across = (
        _Side.of(boxes, i, size, n, least)
        for i, (size, n) in enumerate(zip(sizes, extents(x)[2:], strict=True))
    )
    average = node.attr("mode", "avg") == "avg"
    images, last = reshaped(batches.astype(dt.int64), (count, 1, 1)), Transpose((0, 2, 3, 1))(x)
    rows, columns = down.most(), across.most()
    first = _empty(down, across, count, average).broadcast_to((count, *sizes, extents(x)[1]))

    def turn(t: Value, made: Value) -> Value:
        i = ew.FloorDiv()(t, columns)
        (row_taps, in_row), (column_taps, in_column) = down.taps(i), across.taps(t - i * columns)
        samples = [
            Index((0, 1, 2))(
                last, images, reshaped(row, (count, -1, 1)), reshaped(column, (count, 1, -1))
            )
            * (reshaped(wy, (count, -1, 1, 1)) * reshaped(wx, (count, 1, -1, 1)))
            for row, wy in row_taps
            for column, wx in column_taps
        ]
        whole = functools.reduce(ew.Add() if average else ew.Maximum(), samples)
        joint = ew.Add()(made, whole) if average else ew.Maximum()(made, whole)
        visited = reshaped(in_row, (count, -1, 1, 1)) & reshaped(in_column, (count, 1, -1, 1))
        return Where()(visited, joint, made)

    total = ew.Mul()(rows, columns)
    made = _turns(node, total, turn, first)
    each = reshaped(down.grid * across.grid, (count, 1, 1, 1))
    if average:
        made = made / ew.Maximum()(each, each.constant(1.0))
    else:
        made = Where()(each > 0.0, made, made.constant(0.0))
    return Transpose((0, 3, 1, 2))(made)


def _empty(down: _Side, across: _Side, count: Any, average: bool) -> Value:
    """Return the value that a cell's samples are added to, or compared with."""
    zero = reshaped(down.grid * 0.0, (count, 1, 1, 1))
    if average:
        return zero
    missing = reshaped(down.visits < down.grid, (count, -1, 1, 1))
    missing = missing | reshaped(across.visits < across.grid, (count, 1, -1, 1))
    return Where()(missing, zero, zero.constant(-math.inf))


def _turns(
    node: OnnxNode, total: Value, body: Callable[[Value, Value], Value], first: Value
) -> Value:
    """`first` after so many turns: a loop of the program, if there is one."""
    if LOCAL.capture is not None and isinstance(total, Tensor):
        start = total * 0
        made = while_loop(
            lambda t, _: t < total, lambda t, made: (t + 1, body(t, made)), (start, first)
        )
        return made[1]
    made = first
    for t in range(int(concrete(total, node, "the size of the regions, outside of programs,"))):
        made = body(total.constant(t, dt.int64), made)
    return made


class _Side(NamedTuple):
    """Samples along one axis: of boxes [K,1], of their cells [K,size].

    Attributes:
        cells: where they begin.
        step: from sample to sample.
        grid: samples per cell, as a float.
        first: the one of a cell that is visited first.
        visits: how many are.
        extent: of the maps.
    """

    cells: Value
    step: Value
    grid: Value
    first: Value
    visits: Value
    extent: Any

    @classmethod
    def of(cls, boxes: Value, i: int, size: int, n: Any, least: bool) -> _Side:
        """Return the samples along the axis i of the maps, of extent n, in `size` cells."""
        start, stop = part(boxes, 1, 1 - i, 2 - i), part(boxes, 1, 3 - i, 4 - i)
        length = stop - start
        one, none = length.constant(1.0), length.constant(0.0)
        length = ew.Maximum()(length, one) if least else length
        cell = length / length.constant(float(size))
        grid = ew.Maximum()(unary.Ceil()(cell), none)
        step = cell / ew.Maximum()(grid, one)
        places = length.constant(np.arange(size).reshape(1, -1), dtype_of(length))
        cells = start + places * cell

        def limited(k: Value) -> Value:
            return ew.Maximum()(ew.Minimum()(k, grid), none)

        # One more on either side, lest rounding lose a sample at the edge.
        low = limited(unary.Ceil()((-1.0 - cells) / step - 0.5) - 1.0)
        high = limited(unary.Floor()((cells.constant(float(n)) - cells) / step - 0.5) + 2.0)
        visits = ew.Minimum()(high - low, low.constant(2.0 * n + 8.0))
        return cls(cells, step, grid, low, Where()(visits > 0.0, visits, none), n)

    def most(self) -> Value:
        """Visits of the cell with the most, at least one: int64."""
        flat = reshaped(self.visits, (-1,))
        one = flat.constant(np.ones(1), dtype_of(flat))
        return reduce.Max((0,))(joined([flat, one], 0)).astype(dt.int64)

    def taps(self, turn: Value) -> tuple[list[tuple[Value, Value]], Value]:
        """Positions and weights of two neighbors for each cell, and which cells have this visit."""
        turn = turn.astype(dtype_of(self.visits))
        at = self.cells + (self.first + turn + 0.5) * self.step
        here = turn < self.visits
        inside = here & (at >= -1.0) & (at <= float(self.extent))
        none, most = at.constant(0.0), at.constant(self.extent - 1.0)
        at = Where()(inside, ew.Minimum()(ew.Maximum()(at, none), most), none)
        low, counted = unary.Floor()(at), inside.astype(dtype_of(at))
        share = at - low
        high = ew.Minimum()(low + 1.0, most)
        taps = ((low, (1 - share) * counted), (high, share * counted))
        return [(place.astype(dt.int64), weight) for place, weight in taps], here
