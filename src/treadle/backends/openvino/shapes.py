"""Translations of ops that move elements, pick them, or make them of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov
from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino.table import MOVED, Output, both, floats, ints, moved, translates
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops import cumulative, gather, gather_along, movement, slicing
from treadle.ops.op import Op

_END = -(2**31)
"""A stop before the first element, for slices with negative steps."""


@translates(movement.Reshape, when=moved)
def _reshape(op: movement.Reshape, x: Output) -> Output:
    return opset.reshape(x, ints(op.shape), special_zero=False)


@translates(movement.Transpose, when=moved)
def _transpose(op: movement.Transpose, x: Output) -> Output:
    return opset.transpose(x, ints(op.permutation)) if op.permutation else x


@translates(movement.Broadcast, when=moved)
def _broadcast(op: movement.Broadcast, x: Output) -> Output:
    if list(op.shape) == list(x.get_shape()):  # OpenVINO cannot broadcast to no axes.
        return x
    return opset.broadcast(x, ints(op.shape))


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


@translates(slicing.Slice, when=moved)
def _slice(op: slicing.Slice, x: Output) -> Output:
    axes = range(len(op.starts))
    if not axes:
        return x
    stops = [_END if stop < 0 else stop for stop in map(int, op.stops)]
    return opset.slice(x, ints(op.starts), ints(stops), ints(op.steps), ints(axes))


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
