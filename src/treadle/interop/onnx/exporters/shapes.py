"""Movement, creation, and parts of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.interop.onnx.writer import GraphWriter, OnnxOperand, exports
from treadle.ops.op import Op
from treadle.ops.slicing import Slice

X = OnnxOperand
FAR = -(1 << 62)
"""Stands for the place before the first one, where a slice goes backward."""


@exports("reshape")
def _reshape(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    return w.one(
        "Reshape", [x, _extents(w, kind.shape)], kind, allowzero=1 if 0 in kind.shape else None
    )


def _extents(w: GraphWriter, shape: tuple[Any, ...]) -> X:
    """A shape as numbers; one symbolic extent is left to be derived."""
    unknown = [d for d in shape if not isinstance(d, int)]
    if len(unknown) > 1:
        return w.ints(*OnnxOperand(w, TensorType(dt.float32, shape), "").extents)
    return w.ints(*(d if isinstance(d, int) else -1 for d in shape))


@exports("transpose")
def _transpose(w: GraphWriter, op: Any, x: X) -> X:
    if not op.permutation:
        return w.one("Identity", [x], x.type)
    return w.one("Transpose", [x], op.infer(x.type)[0], perm=list(op.permutation))


@exports("broadcast")
def _broadcast(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    if kind.shape == x.type.shape:
        return w.one("Identity", [x], kind)
    shape = [d if isinstance(d, int) else 1 for d in kind.shape]
    return w.one("Expand", [x, w.ints(*shape)], kind)


@exports("slice")
def _slice(w: GraphWriter, op: Any, x: X) -> X:
    return _sliced(w, op, x)


def _sliced(w: GraphWriter, op: Op, x: X) -> X:
    box: Any = op
    kind = op.infer(x.type)[0]
    if not box.starts:
        return w.one("Identity", [x], x.type)
    starts, stops = list(box.starts), list(box.stops)
    for i, step in enumerate(box.steps):
        if step < 0 and starts[i] < 0:  # nothing: it starts before the first place
            starts[i] = stops[i] = 0
        elif step < 0 and stops[i] < 0:
            stops[i] = FAR
    inputs = [x, *(w.ints(*v) for v in (starts, stops, range(len(stops)), box.steps))]
    return w.one("Slice", inputs, kind)


@exports("flip")
def _flip(w: GraphWriter, op: Any, x: X) -> X:
    count = len(op.axes)
    if not count:
        return w.one("Identity", [x], x.type)
    vectors = ([-1] * count, [FAR] * count, op.axes, [-1] * count)
    return w.one("Slice", [x, *(w.ints(*v) for v in vectors)], x.type)


@exports("roll")
def _roll(w: GraphWriter, op: Any, x: X) -> X:
    for shift, axis in zip(op.shifts, op.axes, strict=True):
        extent = x.extents[axis]
        cut = (extent - shift) % extent if extent else 0
        if cut:
            x = w.one(
                "Concat",
                [_between(x, axis, cut, extent), _between(x, axis, 0, cut)],
                x.type,
                axis=axis,
            )
    return x


def _between(x: X, axis: int, start: int, stop: int) -> X:
    shape = x.extents
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else d for i, d in enumerate(shape))
    return Slice(starts, stops, (1,) * len(shape))(x)


@exports("pad")
def _pad(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    if not any(d for pair in op.widths for d in pair if isinstance(d, int)):
        return w.one("Identity", [x], kind)
    widths = w.ints(*(b for b, _ in op.widths), *(a for _, a in op.widths))
    value = x.constant(op.value, x.type.dtype) if op.mode == "constant" else None
    return w.one("Pad", [x, widths, value], kind, mode=op.mode)


@exports("slice_update")
def _slice_update(w: GraphWriter, op: Any, x: X, v: X) -> X:
    """A scatter to the places of the box."""
    ranges = [np.arange(a, b, s) for a, b, s in zip(op.starts, op.stops, op.steps, strict=True)]
    if not ranges:
        return w.one("Identity", [v], v.type)
    grid = np.stack(np.meshgrid(*ranges, indexing="ij"), -1).astype(np.int64)
    return w.one("ScatterND", [x, w.constant(grid), v], x.type)


# -- creation ----------------------------------------------------------------------------------


@exports("full", "extent", "iota", "eye")
def _created(w: GraphWriter, op: Op) -> X:
    return w.constant(np.asarray(op.reference()))
