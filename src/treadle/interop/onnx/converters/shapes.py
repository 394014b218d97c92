"""Operators that make, ask for, or change shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.guards import data_decide, is_equal
from treadle.base.shape import format_shape
from treadle.base.symbol import Expr, is_identical, maximum, minimum
from treadle.interop.onnx.converters.arithmetic import target_type
from treadle.interop.onnx.nodes import (
    OnnxNode,
    Value,
    concrete,
    dtype_of,
    is_concrete,
    is_known,
    known,
    together,
)
from treadle.interop.onnx.registry import converts
from treadle.interop.onnx.sizes import Extents, shape_value
from treadle.ops import elementwise as ew
from treadle.ops import unary
from treadle.ops.gather import Counted
from treadle.ops.movement import Broadcast, Concat, Flip, Reshape, Transpose
from treadle.ops.select import Where
from treadle.ops.slicing import Pad, Slice

_NO_END = (1 << 31) - 1
"""End of a slice that goes to the end, as exporters write it."""


def extents(value: Value) -> tuple[int, ...]:
    """The shape; where a program for many extents is captured, some are expressions.

    They answer Python's questions as integers do, and are pinned where a number is asked for.
    """
    return tuple(_shape(value))


def _shape(value: Value) -> Any:
    array = getattr(value, "array", None)
    return value.type.shape if array is None else array.shape


# -- questions ---------------------------------------------------------------------------------


@converts("Shape", separate=True)
def _shape_of(node: OnnxNode, x: Value) -> Value:
    shape = extents(x)
    start, end = node.attr("start", 0), node.attr("end", len(shape))
    return shape_value(shape[slice(start, end)], x)


@converts("Size", separate=True)
def _size_of(node: OnnxNode, x: Value) -> Value:
    return _reshaped(shape_value((math.prod(extents(x)),), x), ())


# -- creation ----------------------------------------------------------------------------------


@converts("Constant")
def _constant(node: OnnxNode) -> Value:
    given = node.attributes
    if "value" in given:
        return known(given["value"])
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_string", object),
        ("value_strings", object),
    ):
        if name in given:
            return known(np.array(given[name], dtype))
    raise node.refuse("it has no dense value")


@converts("ConstantOfShape", host=(0,))
def _constant_of_shape(node: OnnxNode, shape: Array) -> Value:
    value = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)[:1]
    extents_ = node.made(shape.tolist(), value.itemsize)
    return known(np.broadcast_to(value.reshape(()), extents_).copy())


@converts("Range")
def _range(node: OnnxNode, *ends: Value) -> Value:
    if not all(map(is_concrete, ends)):
        return _computed_range(*[reshaped(v, ()) for v in ends])
    start, limit, delta = [concrete(v, node, f"input {i}") for i, v in enumerate(ends)]
    wide = np.float64 if start.dtype.kind not in "iu" else np.int64
    given: list[Any] = [np.asarray(v).astype(wide).item() for v in (start, limit, delta)]
    first, last, step = given
    count = max(math.ceil((last - first) / step), 0)
    node.made([count], start.dtype.itemsize)
    return known((first + np.arange(count, dtype=wide) * step).astype(start.dtype))


def _computed_range(start: Value, limit: Value, delta: Value) -> Value:
    """A range whose ends only a run knows, and so its extent."""
    kind = dtype_of(start)
    wide = dt.int64 if kind.is_integer else dt.float64
    first, last, step = [ew.Cast(wide)(v) for v in (start, limit, delta)]
    if kind.is_integer:
        count = -ew.FloorDiv()(first - last, step)
    else:
        count = ew.Cast(dt.int64)(-unary.Floor()((first - last) / step))
    places = ew.Cast(wide)(Counted()(count))
    return ew.Cast(kind)(first + places * step)


@converts("EyeLike", separate=True)
def _eye_like(node: OnnxNode, x: Value) -> Value:
    code = node.attributes.get("dtype")
    dtype = x.type.dtype.numpy if code is None else target_type(int(code), node)
    rows, columns = node.made(extents(x), dtype.itemsize)
    return known(np.eye(rows, columns, k=node.attr("k", 0)).astype(dtype))


# -- other views of the same elements ----------------------------------------------------------


@converts("Identity", separate=True)
def _identity(node: OnnxNode, x: Value) -> Value:
    return x


@converts("Reshape", host=(1,), symbols=True)
def _reshape(node: OnnxNode, x: Value, shape: Array) -> Value:
    wanted = shape.tolist()
    if not node.attr("allowzero", 0):
        mine = extents(x)
        wanted = [mine[i] if is_equal(d, 0) else d for i, d in enumerate(wanted)]
    return _reshaped(x, wanted)


def _reshaped(x: Value, wanted: Sequence[int]) -> Value:
    """Reshape with at most one -1; also arrays of types that tensors do not have."""
    shape = list(wanted)
    if -1 in shape:
        rest = math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = 0 if is_equal(rest, 0) else math.prod(extents(x)) // rest
    array = getattr(x, "array", None)
    if isinstance(x, Extents):
        return Extents(x.array.reshape(shape), x.dtype, x.anchor)
    return Reshape(tuple(shape))(x) if array is None else known(array.reshape(shape))


@converts("Flatten")
def _flatten(node: OnnxNode, x: Value) -> Value:
    shape, axis = extents(x), node.attr("axis", 1)
    axis += len(shape) if axis < 0 else 0
    return _reshaped(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeezed(node: OnnxNode, x: Value, axes: Sequence[int] | None) -> Value:
    shape = extents(x)
    if axes is None:
        drop = {i for i, d in enumerate(shape) if d == 1}
    else:
        drop = {node.place(a, len(shape)) for a in axes}
    return _reshaped(x, [d for i, d in enumerate(shape) if i not in drop])


@converts("Squeeze")
def _squeeze_attribute(node: OnnxNode, x: Value) -> Value:
    return _squeezed(node, x, node.attributes.get("axes"))


@converts("Squeeze", since=13, host=(1,))
def _squeeze(node: OnnxNode, x: Value, axes: Array | None = None) -> Value:
    return _squeezed(node, x, None if axes is None else axes.reshape(-1).tolist())


def _unsqueezed(node: OnnxNode, x: Value, axes: Sequence[int]) -> Value:
    shape = list(extents(x))
    rank = len(shape) + len(axes)
    for axis in sorted(node.place(a, rank) for a in axes):
        shape.insert(axis, 1)
    return _reshaped(x, shape)


@converts("Unsqueeze")
def _unsqueeze_attribute(node: OnnxNode, x: Value) -> Value:
    return _unsqueezed(node, x, node.attributes["axes"])


@converts("Unsqueeze", since=13, host=(1,))
def _unsqueeze(node: OnnxNode, x: Value, axes: Array) -> Value:
    return _unsqueezed(node, x, axes.reshape(-1).tolist())


@converts("Transpose")
def _transpose(node: OnnxNode, x: Value) -> Value:
    rank = len(extents(x))
    order = node.ints("perm", range(rank)[::-1])
    array = getattr(x, "array", None)
    return Transpose(order)(x) if array is None else known(array.transpose(order))


# -- repetition --------------------------------------------------------------------------------


@converts("Expand", host=(1,), symbols=True)
def _expand(node: OnnxNode, x: Value, shape: Array) -> Value:
    mine, wanted = extents(x), tuple(shape.tolist())
    rank = max(len(mine), len(wanted))
    wide, given = ((*(1,) * (rank - len(s)), *s) for s in (mine, wanted))
    made = [
        d if is_identical(n, 1) or (data_decide(n) and not is_identical(d, 1)) else n
        for n, d in zip(wide, given, strict=True)
    ]
    for n, d in zip(made, given, strict=True):
        if isinstance(n, int) and isinstance(d, int) and d not in (1, n):
            problem = f"{format_shape(mine)} does not become {format_shape(wanted)}"
            raise node.refuse(problem, "check the model")
    return _broadcast(node, x, made)


def filled(like: Value, value: float, shape: Sequence[int], dtype: dt.DType) -> Value:
    """One number in every element of a shape, whose extents may be symbols."""
    return Broadcast(tuple(shape))(like.constant(value, dtype))


def _broadcast(node: OnnxNode, x: Value, shape: Sequence[int]) -> Value:
    if is_known(x):
        node.made(shape, x.array.itemsize)
    return x if _is_shape(extents(x), shape) else Broadcast(tuple(shape))(x)


def _is_shape(shape: Sequence[int], other: Sequence[int]) -> bool:
    return len(shape) == len(other) and all(map(is_equal, shape, other))


@converts("Tile", host=(1,))
def _tile(node: OnnxNode, x: Value, repeats: Array) -> Value:
    shape = extents(x)
    apart = [part for d in shape for part in (1, d)]
    wide = [part for d, n in zip(shape, repeats, strict=True) for part in (int(n), d)]
    whole = [d * int(n) for d, n in zip(shape, repeats, strict=True)]
    return _reshaped(_broadcast(node, _reshaped(x, apart), wide), whole)


# -- parts -------------------------------------------------------------------------------------


@converts("Concat")
def _concat(node: OnnxNode, *xs: Value) -> Value:
    return _join(xs, node.place(node.attr("axis", 0), len(extents(xs[0]))))


def _join(xs: Sequence[Value], axis: int) -> Value:
    if all(map(is_known, xs)):
        return known(np.concatenate([x.array for x in xs], axis))
    return xs[0] if len(xs) == 1 else Concat(axis % len(extents(xs[0])))(*xs)


@converts("Slice")
def _slice_attributes(node: OnnxNode, x: Value) -> Value:
    starts, ends = node.ints("starts", ()), node.ints("ends", ())
    return _sliced(x, starts, ends, node.ints("axes", range(len(starts))), [1] * len(starts))


@converts("Slice", since=10, host=(1, 2, 3, 4), symbols=True)
def _slice(
    node: OnnxNode,
    x: Value,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Value:
    count = starts.size
    where = range(count) if axes is None else axes.tolist()
    return _sliced(
        x, starts.tolist(), ends.tolist(), where, [1] * count if steps is None else steps.tolist()
    )


def _sliced(
    x: Value, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> Value:
    shape = extents(x)
    first, last, step = [0] * len(shape), list(shape), [1] * len(shape)
    backward = []
    for start, end, axis, by in zip(starts, ends, axes, steps, strict=True):
        axis %= len(shape)
        if any(isinstance(n, Expr) for n in (start, end, shape[axis])) and by > 0:
            first[axis], last[axis], step[axis] = _bounds(start, end, by, shape[axis])
            continue
        indices = _places(start, end, by, shape[axis])
        if by < 0:
            backward.append(axis)
            indices = indices[::-1]
        first[axis], step[axis] = (indices.start, indices.step) if len(indices) else (0, 1)
        last[axis] = indices[-1] + 1 if len(indices) else 0
    array = getattr(x, "array", None)
    if array is not None:
        cut = array[tuple(map(slice, first, last, step))]
        return known(np.flip(cut, tuple(backward)))
    made = Slice(tuple(first), tuple(last), tuple(step))(x)
    return Flip(tuple(sorted(backward)))(made) if backward else made


def _places(start: int, end: int, step: int, extent: int) -> range:
    """Return the cells of a slice: NumPy's rule, but backward from before the axis gives its first
    cell.
    """
    start, end = (p + extent if p < 0 else p for p in (start, end))
    if step > 0:
        return range(min(max(start, 0), extent), min(max(end, 0), extent), step)
    return range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step)


def _bounds(start: Any, end: Any, step: int, extent: int) -> tuple[Any, Any, int]:
    """First cell, the one behind the last and the step, of extents that may be expressions."""
    if not isinstance(end, Expr) and end >= _NO_END:
        end = extent
    low, high = (p + extent if p < 0 else p for p in (start, end))
    if any(map(data_decide, (low, high, extent))):
        low = minimum(maximum(low, 0), extent)
        return low, maximum(minimum(high, extent), low), step
    low, high = (min(max(p, 0), extent) for p in (low, high))
    return (low, high, step) if low < high else (0, 0, 1)


def part(x: Value, axis: int, start: int, stop: int) -> Value:
    """x from `start` to `stop` along an axis."""
    return _sliced(x, [start], [stop], [axis], [1])


def _split_at(x: Value, axis: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    places = np.cumsum([0, *sizes]).tolist()
    return tuple(part(x, axis, a, b) for a, b in pairwise(places))


def _even(extent: int, count: int) -> list[int]:
    size = -(-extent // count)
    return [max(min(size, extent - i * size), 0) for i in range(count)]


@converts("Split")
def _split_attribute(node: OnnxNode, x: Value) -> tuple[Value, ...]:
    axis = node.attr("axis", 0)
    sizes = node.ints("split", _even(extents(x)[axis], node.n_outputs))
    return _split_at(x, axis, sizes)


@converts("Split", since=13, host=(1,))
def _split(node: OnnxNode, x: Value, sizes: Array | None = None) -> tuple[Value, ...]:
    axis = node.attr("axis", 0)
    count = node.attr("num_outputs", node.n_outputs)
    if count != node.n_outputs:
        raise node.refuse(f"num_outputs is {count}, and the node has {node.n_outputs} outputs", "")
    given = _even(extents(x)[axis], count) if sizes is None else sizes.tolist()
    return _split_at(x, axis, given)


@converts("Pad")
def _pad_attributes(node: OnnxNode, x: Value) -> Value:
    pads = node.attributes.get("pads", node.attributes.get("paddings", ()))
    return _padded(node, x, pads, node.attr("value", 0.0), None)


@converts("Pad", since=11, host=(1, 3), separate=True)
def _pad(
    node: OnnxNode, x: Value, pads: Array, value: Value = None, axes: Array | None = None
) -> Value:
    where = None if axes is None else axes.tolist()
    if value is None or is_known(value):
        fill = 0.0 if value is None or value.array.size == 0 else value.array.reshape(-1)[0].item()
        return _padded(node, x, pads.tolist(), fill, where)
    # A number that the model computes: zeros, and the number where there was nothing.
    x, value = together([x, value])
    inside = _padded(node, known(np.ones(extents(x), np.uint8)), pads.tolist(), 0, where)
    made = _padded(node, x, pads.tolist(), 0, where)
    if node.attr("mode", "constant") != "constant" or inside.array.all():
        return made
    kept = made.constant(inside.array.astype(bool), as_dtype("bool"))
    return Where()(kept, made, reshaped(value, ()))


def _padded(
    node: OnnxNode, x: Value, pads: Sequence[int], fill: Any, axes: Sequence[int] | None
) -> Value:
    rank = len(extents(x))
    where = [node.place(a, rank) for a in (range(rank) if axes is None else axes)]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(where):
        before[axis], after[axis] = int(pads[i]), int(pads[i + len(where)])
    mode = node.attr("mode", "constant")
    # What is negative cuts off; padding comes after.
    cut = [(max(-b, 0), d - max(-a, 0)) for b, a, d in zip(before, after, extents(x), strict=True)]
    if any(p < 0 for p in (*before, *after)):
        x = _sliced(x, [a for a, _ in cut], [b for _, b in cut], range(rank), [1] * rank)
    widths = tuple((max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True))
    if not any(map(any, widths)):
        return x
    if is_known(x):
        sizes = [d + b + a for d, (b, a) in zip(extents(x), widths, strict=True)]
        node.made(sizes, x.array.itemsize)
    if mode == "wrap":
        return _wrapped(x, widths)
    known_mode: Any = mode
    return Pad(widths, known_mode, fill if mode == "constant" else 0.0)(x)


def _wrapped(x: Value, widths: Sequence[tuple[int, int]]) -> Value:
    for axis, (before, after) in enumerate(widths):
        if before or after:
            extent = extents(x)[axis]
            places = np.arange(-before, extent + after) % extent
            pieces = [part(x, axis, int(i), int(i) + 1) for i in places]
            x = _join(pieces, axis)
    return x


@converts("Trilu", host=(1,))
def _trilu(node: OnnxNode, x: Value, k: Array | None = None) -> Value:
    rows, columns = extents(x)[-2:]
    mask = np.ones((rows, columns), bool)
    diagonal = 0 if k is None else int(k)
    kept = np.triu(mask, diagonal) if node.attr("upper", 1) else np.tril(mask, diagonal)
    array = getattr(x, "array", None)
    if array is not None:
        return known(np.where(kept, array, np.zeros((), array.dtype)))
    return Where()(x.constant(kept, as_dtype("bool")), x, x.constant(0, dtype_of(x)))


@converts("CenterCropPad", host=(1,))
def _center_crop_pad(node: OnnxNode, x: Value, shape: Array) -> Value:
    rank = len(extents(x))
    axes = [node.place(a, rank) for a in node.ints("axes", range(rank))]
    for axis, wanted in zip(axes, shape.tolist(), strict=True):
        extent = extents(x)[axis]
        if extent > wanted:
            start = (extent - wanted) // 2
            x = part(x, axis, start, start + wanted)
        elif extent < wanted:
            before = (wanted - extent) // 2
            widths = [(0, 0)] * rank
            widths[axis] = (before, wanted - extent - before)
            x = Pad(tuple(widths), "constant", 0.0)(x)
    return x


@converts("DepthToSpace")
def _depth_to_space(node: OnnxNode, x: Value) -> Value:
    n, c, h, w = extents(x)
    b = int(node.attributes["blocksize"])
    if node.attr("mode", "DCR") == "DCR":
        apart = _reshaped(x, (n, b, b, c // (b * b), h, w))
        order: tuple[int, ...] = (0, 3, 4, 1, 5, 2)
    else:
        apart = _reshaped(x, (n, c // (b * b), b, b, h, w))
        order = (0, 1, 4, 2, 5, 3)
    return _reshaped(Transpose(order)(apart), (n, c // (b * b), h * b, w * b))


@converts("SpaceToDepth")
def _space_to_depth(node: OnnxNode, x: Value) -> Value:
    n, c, h, w = extents(x)
    b = int(node.attributes["blocksize"])
    apart = _reshaped(x, (n, c, h // b, b, w // b, b))
    depth_first = node.attr("mode", "DCR") == "DCR"
    order = (0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4)
    return _reshaped(Transpose(order)(apart), (n, c * b * b, h // b, w // b))


@converts("ReverseSequence", host=(1,))
def _reverse_sequence(node: OnnxNode, x: Value, lengths: Array) -> Value:
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    parts = []
    for i, length in enumerate(lengths.tolist()):
        one = part(x, batch, i, i + 1)
        turned = Flip((time,))(part(one, time, 0, length))
        rest = part(one, time, length, extents(x)[time])
        parts.append(_join([turned, rest], time) if extents(rest)[time] else turned)
    return _join(parts, batch)


def host_value(node: OnnxNode, value: Value, what: str) -> Array:
    """The array of a value, which must be known."""
    return concrete(value, node, what)


def joined(xs: Sequence[Value], axis: int) -> Value:
    """Concatenation of values of one kind."""
    return _join(xs, axis)


def reshaped(x: Value, shape: Sequence[int]) -> Value:
    """The same elements under another shape, with at most one -1."""
    return _reshaped(x, shape)


def where_not(mask: Value, x: Value, other: float) -> Value:
    """x where the mask is false, else a number."""
    return Where()(mask, x.constant(other, dtype_of(x)), x)
