"""Gathering and scattering."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.errors import UnsupportedOp
from treadle.base.types import TensorType
from treadle.interop.onnx.exporters.elementwise import cast
from treadle.interop.onnx.writer import GraphWriter, OnnxOperand, exports
from treadle.ops.movement import Transpose

X = OnnxOperand


@exports("take")
def _take(w: GraphWriter, op: Any, x: X, index: X) -> X:
    kind = op.infer(x.type, index.type)[0]
    return w.one("Gather", [x, cast(w, index, dt.int64)], kind, axis=op.axis)


@exports("take_along_axis")
def _take_along(w: GraphWriter, op: Any, x: X, index: X) -> X:
    kind = op.infer(x.type, index.type)[0]
    return w.one("GatherElements", [x, cast(w, index, dt.int64)], kind, axis=op.axis)


@exports("scatter_along_axis", "add_along_axis")
def _scatter_along(w: GraphWriter, op: Any, x: X, index: X, v: X) -> X:
    how = "add" if op.name == "add_along_axis" else None
    inputs = [x, cast(w, index, dt.int64), v]
    return w.one("ScatterElements", inputs, x.type, axis=op.axis, reduction=how)


def _first(op: Any, rank: int) -> tuple[int, ...]:
    """The indexed axes before the others."""
    return (*op.axes, *(i for i in range(rank) if i not in op.axes))


def _places(w: GraphWriter, indices: tuple[X, ...]) -> X:
    """Indices that broadcast, as one array of coordinates along a new last axis."""
    shape = np.broadcast_shapes(*(i.extents for i in indices))
    columns = []
    for index in indices:
        wide = cast(w, index, dt.int64).broadcast_to(shape)
        columns.append(wide.reshape((*shape, 1)))
    kind = TensorType(dt.int64, (*shape, len(indices)))
    return columns[0] if len(columns) == 1 else w.one("Concat", columns, kind, axis=len(shape))


@exports("index")
def _index(w: GraphWriter, op: Any, x: X, *indices: X) -> X:
    kind = op.infer(x.type, *(i.type for i in indices))[0]
    rank, places = x.type.ndim, _places(w, indices)
    turned = x if _first(op, rank) == tuple(range(rank)) else Transpose(_first(op, rank))(x)
    rest = turned.type.shape[len(op.axes) :]
    count = places.type.ndim - 1
    found = w.one(
        "GatherND", [turned, places], TensorType(kind.dtype, (*places.type.shape[:-1], *rest))
    )
    before = _before(op)
    if not before:
        return found
    # NumPy puts the indexed axes where the first of them was, if they are neighbors.
    order = (
        *range(count, count + before),
        *range(count),
        *range(count + before, count + len(rest)),
    )
    return Transpose(order)(found)


def _before(op: Any) -> int:
    """Axes that come before the indexed ones in the result."""
    neighbors = list(op.axes) == list(range(op.axes[0], op.axes[0] + len(op.axes)))
    return int(op.axes[0]) if neighbors else 0


@exports("index_update", "index_add")
def _index_write(w: GraphWriter, op: Any, x: X, v: X, *indices: X) -> X:
    rank, places = x.type.ndim, _places(w, indices)
    order = _first(op, rank)
    turned = x if order == tuple(range(rank)) else Transpose(order)(x)
    count, before = places.type.ndim - 1, _before(op)
    value = v
    if before:
        rest = range(count + before, v.type.ndim)
        value = Transpose((*range(before, before + count), *range(before), *rest))(v)
    how = "add" if op.name == "index_add" else None
    made = w.one("ScatterND", [turned, places, value], turned.type, reduction=how)
    back = tuple(int(i) for i in np.argsort(order))
    return made if order == tuple(range(rank)) else Transpose(back)(made)


@exports("one_hot")
def _one_hot(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    if not x.type.ndim:
        return w.apply(op, (x.reshape((1,)),))[0].reshape((op.num_classes,))
    depth = w.ints(op.num_classes)
    values = w.constant(np.array([0, 1], kind.dtype.numpy))
    return w.one("OneHot", [cast(w, x, dt.int64), depth, values], kind, axis=-1)


@exports("counted")
def _counted(w: GraphWriter, op: Any, n: X) -> X:
    ends = [w.constant(np.array(i, n.type.dtype.numpy)) for i in (0, 1)]
    return w.one("Range", [ends[0], n, ends[1]], op.infer(n.type)[0])


@exports("nonzero")
def _nonzero(w: GraphWriter, op: Any, x: X) -> X:
    if not x.type.ndim:
        raise UnsupportedOp("nonzero", "of a scalar it cannot be written as ONNX")
    kind = op.infer(x.type)[0]
    turned = TensorType(dt.int64, (kind.shape[1], kind.shape[0]))
    found = w.one("NonZero", [x], turned)
    rows = w.one("Transpose", [found], TensorType(dt.int64, kind.shape), perm=[1, 0])
    return cast(w, rows, kind.dtype)
