"""Translations of ops that move elements, pick them, or make them of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import openvino as ov
from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino.table import MOVED, Output, both, floats, ints, moved, translates
from treadle.base import dtype as dt
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.base.types import TensorType
from treadle.ops import cumulative, gather, gather_along, movement, slicing
from treadle.ops.op import Op

Types = Sequence[TensorType]
_END = -(2**31)
"""A stop before the first element, for slices with negative steps."""


@translates(movement.Reshape, when=moved, typed=True)
def _reshape(op: movement.Reshape, types: Types, x: Output) -> Output:
    before, after = types[0].shape, op.shape
    kept = [isinstance(d, Expr) and d is e for d, e in zip_longest(after, before)][: len(after)]
    others = [d for d, yes in zip(after, kept, strict=True) if isinstance(d, Expr) and not yes]
    if not any(kept) and not others:
        return opset.reshape(x, ints(after), special_zero=False)
    # A shape of numbers tells OpenVINO more: 0 is the operand's own extent, -1 what is left.
    shape: list[Dim] = [0 if yes else d for d, yes in zip(after, kept, strict=True)]
    if len(others) == 1:
        shape = [-1 if isinstance(d, Expr) else d for d in shape]
    return opset.reshape(x, ints(shape), special_zero=True)


@translates(movement.Transpose, when=moved)
def _transpose(op: movement.Transpose, x: Output) -> Output:
    return opset.transpose(x, ints(op.permutation)) if op.permutation else x


@translates(movement.Broadcast, when=moved, typed=True)
def _broadcast(op: movement.Broadcast, types: Types, x: Output) -> Output:
    shape = types[0].shape
    if len(shape) == len(op.shape) and all(map(is_identical, shape, op.shape)):
        return x  # OpenVINO cannot broadcast to no axes.
    if all(isinstance(d, int) for d in op.shape):
        return opset.broadcast(x, ints(op.shape))
    new = len(op.shape) - len(shape)
    own = [i >= new and is_identical(shape[i - new], d) for i, d in enumerate(op.shape)]
    grown = [1 if yes else d for d, yes in zip(op.shape, own, strict=True)]
    return opset.broadcast(x, ints(grown), broadcast_spec="BIDIRECTIONAL")


@translates(movement.Concat, when=moved)
def _concat(op: movement.Concat, *xs: Output) -> Output:
    return opset.concat(list(xs), op.axis)


@translates(movement.Flip, when=moved)
def _flip(op: movement.Flip, x: Output) -> Output:
    for axis in op.axes:
        x = opset.slice(x, ints([-1]), ints([_END]), ints([-1]), ints([axis]))
    return x


@translates(movement.Roll, when=moved)
def _roll(op: movement.Roll, x: Output) -> Output:
    return opset.roll(x, ints(op.shifts), ints(op.axes)) if op.axes else x


def _known_ends(op: Any, types: Sequence[TensorType]) -> Support:
    if any(s < 0 and isinstance(d, Expr) for s, d in zip(op.steps, op.stops, strict=True)):
        return no("dynamic-shape", "slice with a negative step to an open stop")  # It may be -1.
    return yes()


@translates(slicing.Slice, when=both(moved, _known_ends), typed=True)
def _slice(op: slicing.Slice, types: Types, x: Output) -> Output:
    extents = types[0].shape
    whole = [
        isinstance(d, Expr) and d is stop and step == 1 and isinstance(start, int) and start == 0
        for d, start, stop, step in zip(extents, op.starts, op.stops, op.steps, strict=True)
    ]
    axes = [i for i, yes in enumerate(whole) if not yes]
    if not axes:
        return x
    starts, stops, steps = ([n[i] for i in axes] for n in (op.starts, op.stops, op.steps))
    stops = [_END if isinstance(n, int) and n < 0 else n for n in stops]
    return opset.slice(x, ints(starts), ints(stops), ints(steps), ints(axes))


@translates(slicing.Pad, when=floats)
def _pad(op: slicing.Pad, x: Output) -> Output:
    if not op.widths:
        return x
    before, after = zip(*op.widths, strict=True)
    value = opset.constant(op.value, ov.Type.f32)
    return opset.pad(x, ints(before), ints(after), op.mode, value)


def _indexed(op: Op, types: Sequence[TensorType]) -> Support:
    if types[0].dtype not in MOVED:
        return no("dtype", f"{op.name} of {types[0].dtype.name}")
    return yes()


@translates(gather.Take, when=_indexed)
def _take(op: gather.Take, x: Output, index: Output) -> Output:
    return opset.gather(x, index, opset.constant(op.axis, ov.Type.i64))


@translates(gather_along.TakeAlongAxis, when=_indexed)
def _take_along(op: Any, x: Output, index: Output) -> Output:
    return opset.gather_elements(x, index, op.axis)


@translates(cumulative.CumSum, when=floats)
def _cum_sum(op: Any, x: Output) -> Output:
    axis = opset.constant(op.axis, ov.Type.i64)
    return opset.cum_sum(x, axis, op.exclusive, op.reverse)


def _one_hot_check(op: Op, types: Sequence[TensorType]) -> Support:
    return yes() if types[0].dtype is dt.int32 else no("dtype", "one_hot of other than int32")


@translates(gather.OneHot, when=both(_one_hot_check))
def _one_hot(op: gather.OneHot, x: Output) -> Output:
    depth = opset.constant(op.num_classes, ov.Type.i64)
    on, off = opset.constant(1, ov.Type.i32), opset.constant(0, ov.Type.i32)
    return opset.one_hot(x, depth, on, off, -1)
