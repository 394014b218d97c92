"""Gathering, scattering, one-hot codes, selection of boxes."""

from __future__ import annotations

import math

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.interop.conventions import extremum_last, from_start, scattered_products
from treadle.interop.onnx.converters.shapes import extents, filled, reshaped
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
from treadle.ops import elementwise as ew
from treadle.ops import logic
from treadle.ops.creation import Iota
from treadle.ops.gather import Index, IndexAdd, IndexUpdate, Nonzero, Take
from treadle.ops.gather_along import AddAlongAxis, ScatterAlongAxis, TakeAlongAxis
from treadle.ops.movement import Concat, Transpose
from treadle.ops.regions import KeptBoxes
from treadle.ops.select import Where
from treadle.ops.slicing import Slice
from treadle.ops.sort import Sort


@converts("Gather", separate=True)
def _gather(node: OnnxNode, x: Value, index: Value) -> Value:
    axis = node.place(node.attr("axis", 0), len(extents(x)))
    mine, other = getattr(x, "array", None), getattr(index, "array", None)
    if mine is not None and other is not None:
        return known(np.take(mine, other, axis))
    if mine is not None:
        x = index.constant(mine, dtype_of(x))
    return Take(axis)(x, x.constant(other, dt.int64) if other is not None else index)


@converts("GatherElements")
def _gather_elements(node: OnnxNode, x: Value, index: Value) -> Value:
    axis = node.place(node.attr("axis", 0), len(extents(x)))
    shape = extents(index)
    starts = tuple(0 for _ in shape)
    within = [d if i == axis else shape[i] for i, d in enumerate(extents(x))]
    cut = x if tuple(within) == extents(x) else _cut(x, starts, within)
    return TakeAlongAxis(axis)(cut, index)


def _cut(x: Value, starts: tuple[int, ...], stops: list[int]) -> Value:
    from_array = getattr(x, "array", None)
    if from_array is not None:
        return known(from_array[tuple(map(slice, starts, stops))])
    return Slice(starts, tuple(stops), (1,) * len(stops))(x)


@converts("GatherND")
def _gather_nd(node: OnnxNode, x: Value, index: Value) -> Value:
    batch = node.attr("batch_dims", 0)
    shape, places = extents(x), extents(index)
    depth = places[-1]
    columns = [_column(index, i) for i in range(depth)]
    for i in range(batch):
        where = np.arange(shape[i]).reshape([-1 if j == i else 1 for j in range(len(places) - 1)])
        wide = np.broadcast_to(where, places[:-1]).astype(np.int64)
        columns.insert(i, index.constant(wide, dt.int64))
    return Index(tuple(range(batch + depth)))(x, *columns)


def _column(index: Value, i: int) -> Value:
    shape = extents(index)
    column = _cut(index, (*[0] * (len(shape) - 1), i), [*shape[:-1], i + 1])
    return reshaped(column, shape[:-1])


@converts("ScatterElements", "Scatter")
def _scatter_elements(node: OnnxNode, x: Value, index: Value, updates: Value) -> Value:
    axis = node.place(node.attr("axis", 0), len(extents(x)))
    places = from_start(index, extents(x)[axis], "scatter")
    return _combined(node, x, axis, places, updates, node.attr("reduction", "none"))


@converts("ScatterND")
def _scatter_nd(node: OnnxNode, x: Value, index: Value, updates: Value) -> Value:
    shape, depth, how = extents(x), extents(index)[-1], node.attr("reduction", "none")
    columns = [from_start(_column(index, i), shape[i], "scatter") for i in range(depth)]
    if depth and (how == "none" or (how == "add" and dtype_of(x) is not dt.bool_)):
        op = (IndexUpdate if how == "none" else IndexAdd)(tuple(range(depth)))
        return op(x, updates, *columns)
    # All indexed axes as one: rows that are combined.
    places = filled(x, 0, extents(index)[:-1], dt.int64)
    for column, extent in zip(columns, shape, strict=False):
        places = places * extent + column
    width, count = math.prod(shape[depth:]), math.prod(extents(index)[:-1])
    rows = reshaped(x, (math.prod(shape[:depth]), width))
    given = reshaped(updates, (count, width))
    places = reshaped(places, (count, 1)).broadcast_to((count, width))
    return reshaped(_combined(node, rows, 0, places, given, how), shape)


def _combined(
    node: OnnxNode, x: Value, axis: int, places: Value, updates: Value, how: str
) -> Value:
    """x with updates written at places along an axis, or reduced with what is there."""
    if how == "none":
        return ScatterAlongAxis(axis)(x, places, updates)
    if dtype_of(x) is dt.bool_:
        # A sum of truth values is "or", a product "and".
        how = {"add": "max", "mul": "min"}.get(how, how)
        bits = [v.astype(dt.uint8) for v in (x, updates)]
        return _combined(node, bits[0], axis, places, bits[1], how).astype(dt.bool_)
    if how == "add":
        return AddAlongAxis(axis)(x, places, updates)
    if how not in ("mul", "max", "min"):
        raise node.refuse(f"reduction {how!r} is unknown")
    if 0 in extents(places):
        return x
    if how == "mul":
        ones = filled(x, 1, extents(x), dtype_of(x))
        return x * scattered_products(ones, axis, places, updates)
    found = ScatterAlongAxis(axis)(x, *extremum_last(axis, places, updates, least=how == "min"))
    return (ew.Maximum() if how == "max" else ew.Minimum())(x, found)


@converts("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _feature_extractor(node: OnnxNode, x: Value, places: Value) -> Value:
    shape = extents(x)
    count = math.prod(extents(places))
    made = Take(len(shape) - 1)(x, reshaped(places, (count,)))
    return made if len(shape) > 1 else reshaped(made, (1, count))


@converts("Binarizer", domain="ai.onnx.ml")
def _binarizer(node: OnnxNode, x: Value) -> Value:
    limit = np.asarray(node.attr("threshold", 0.0)).astype(dtype_of(x).numpy)
    return logic.Greater()(x, x.constant(limit)).astype(dtype_of(x))


@converts("TensorScatter", host=(2,))
def _tensor_scatter(node: OnnxNode, x: Value, update: Value, starts: Array | None = None) -> Value:
    shape = extents(x)
    axis = node.place(node.attr("axis", -2), len(shape))
    count, length = extents(update)[axis], shape[axis]
    first = np.zeros(shape[0], np.int64) if starts is None else starts
    places = first[:, None] + np.arange(count)
    if node.attr("mode", "linear") == "circular":
        places = places % length
    order = (0, axis, *(i for i in range(1, len(shape)) if i != axis))
    back = tuple(int(i) for i in np.argsort(order))
    rows = np.broadcast_to(np.arange(shape[0])[:, None], places.shape).astype(np.int64)
    turned = Transpose(order)(x)
    indices = [turned.constant(np.ascontiguousarray(i), dt.int64) for i in (rows, places)]
    made = IndexUpdate((0, 1))(turned, Transpose(order)(update), *indices)
    return Transpose(back)(made)


@converts("OneHot", host=(1,))
def _one_hot(node: OnnxNode, index: Value, depth: Array, values: Value) -> Value:
    n = int(depth.reshape(-1)[0])
    rank = len(extents(index)) + 1
    axis = node.place(node.attr("axis", -1), rank)
    shape = list(extents(index))
    shape.insert(axis, 1)
    places = from_start(index, n)
    codes = np.arange(n).reshape([-1 if i == axis else 1 for i in range(rank)])
    node.made([*shape[:axis], n, *shape[axis + 1 :]], 8)
    hot = logic.Equal()(reshaped(places, shape), places.constant(codes, dt.int64))
    off, on = (reshaped(_cut(values, (i,), [i + 1]), ()) for i in (0, 1))
    return Where()(hot, on, off)


@converts("Where")
def _where(node: OnnxNode, mask: Value, x: Value, y: Value) -> Value:
    if is_known(mask) and is_known(x) and is_known(y):
        return known(np.where(mask.array, x.array, y.array))
    return Where()(mask, x, y)


@converts("Compress", separate=True)
def _compress(node: OnnxNode, x: Value, mask: Value) -> Value:
    axis = node.attributes.get("axis")
    flat = reshaped(x, (-1,)) if axis is None else x
    where = 0 if axis is None else node.place(axis, len(extents(x)))
    if len(extents(mask)) != 1:
        raise node.refuse(f"its condition has {len(extents(mask))} axes", "give it one axis")
    if is_known(x) and is_known(mask):
        places = np.flatnonzero(mask.array)
        return Take(where)(flat, flat.constant(places.astype(np.int64), dt.int64))
    flat, mask = together([flat, mask])
    places = reshaped(Nonzero()(mask), (-1,))
    return Take(where)(flat, places)


# -- boxes -------------------------------------------------------------------------------------


@converts("NonMaxSuppression", host=(3,))
def _non_max_suppression(
    node: OnnxNode,
    boxes: Value,
    scores: Value,
    most: Value = None,
    overlap: Array | None = None,
    least: Value = None,
) -> Value:
    computed = [v is not None and not is_concrete(v) for v in (most, least)]
    limit = 0 if most is None else _NO_LIMIT
    if most is not None and not computed[0]:
        limit = int(concrete(most, node, "input 2").reshape(-1)[0])
    threshold = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
    floor = None
    if least is not None and not computed[1]:
        floor = float(concrete(least, node, "input 4").reshape(-1)[0])
    if not 0 <= threshold <= 1:
        raise node.refuse(f"iou_threshold is {threshold:g}", "it is from 0 to 1")
    if limit <= 0:
        return known(np.zeros((0, 3), np.int64))
    corners = _corners(boxes, bool(node.attr("center_point_box", 0)))
    order = Sort(2).outputs(-scores)[1]
    kept = KeptBoxes(threshold, min(limit, _NO_LIMIT), floor)(corners, scores, order)
    mask = logic.GreaterEqual()(kept, kept.constant(0))
    if computed[0]:  # The best come first.
        places = Iota(0, 1, extents(kept)[2], dt.int64)
        mask = logic.LogicalAnd()(mask, logic.Less()(kept.apply(places, ())[0], reshaped(most, ())))
    if computed[1]:
        best = TakeAlongAxis(2)(scores, ew.Maximum()(kept, kept.constant(0)))
        mask = logic.LogicalAnd()(mask, logic.Greater()(best, reshaped(least, ())))
    found = Nonzero()(mask)
    columns = [_column(found, i) for i in range(3)]
    columns[2] = Index((0, 1, 2))(kept, *columns)
    count = extents(columns[0])[0]
    return Concat(1)(*(reshaped(c, (count, 1)) for c in columns)).astype(dt.int64)


_NO_LIMIT = (1 << 31) - 1


def _corners(boxes: Value, centered: bool) -> Value:
    """Boxes [B,N,4] as (low, low, high, high)."""
    shape = extents(boxes)
    halves = [_cut(boxes, (0, 0, at), [*shape[:2], at + 2]) for at in (0, 2)]
    if centered:
        reach = halves[1] / 2
        return Concat(2)(halves[0] - reach, halves[0] + reach)
    return Concat(2)(ew.Minimum()(*halves), ew.Maximum()(*halves))
