"""Translations of matrix products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino.table import Output, both, floats, ints, translates
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.ops import adaptive_pool, conv, matmul, pool


def numbers(x: Output) -> list[int]:
    """The extents of a value.

    Raises:
        ShapeError: some are open.
    """
    shape = x.get_partial_shape()
    if shape.is_dynamic:
        raise ShapeError("openvino", f"a number is needed for the extents {shape}")
    return list(shape.to_shape())


@translates(matmul.Matmul)
def _matmul(op: matmul.Matmul, x: Output, y: Output) -> Output:
    return opset.matmul(x, y, op.transpose_x, op.transpose_y)


@translates(conv.Conv)
def convolve(op: conv.Convolution, x: Output, weight: Output) -> Output:
    """A convolution; with groups their number becomes the first axis of the weight."""
    before, after = zip(*op.padding, strict=True)
    strides, dilation = list(op.strides), list(op.dilation)
    pads = list(map(int, before)), list(map(int, after))
    if op.groups == 1:
        return opset.convolution(x, weight, strides, *pads, dilation)
    return opset.group_convolution(x, grouped(weight, op.groups), strides, *pads, dilation)


def grouped(weight: Output, groups: int) -> Output:
    """[O, C/groups, *K] as [groups, O/groups, C/groups, *K]."""
    first, *rest = numbers(weight)
    return opset.reshape(weight, ints([groups, first // groups, *rest]), False)


@translates(conv.ConvGradInput)
def _transposed(op: conv.ConvGradInput, dy: Output, weight: Output) -> Output:
    before, after = zip(*op.padding, strict=True)
    pads = list(map(int, before)), list(map(int, after))
    strides, dilation = list(op.strides), list(op.dilation)
    extra = _extra(op, numbers(dy), numbers(weight))
    if op.groups == 1:
        make = opset.convolution_backprop_data
    else:
        make, weight = opset.group_convolution_backprop_data, grouped(weight, op.groups)
    return make(dy, weight, strides, None, *pads, dilation, "explicit", extra)


def _extra(op: conv.ConvGradInput, dy: Sequence[int], weight: Sequence[int]) -> list[int]:
    """Return by how much the result is larger than the smallest one that has so many positions."""
    found = []
    for n, p, s, (low, high), d, k in zip(
        op.spatial, dy[2:], op.strides, op.padding, op.dilation, weight[2:], strict=True
    ):
        found.append(int(n) - (s * (p - 1) + d * (k - 1) + 1 - int(low) - int(high)))
    return found


def _whole_windows(op: Any, types: Sequence[TensorType]) -> Support:
    if op.ceil_mode:
        return no("attribute", "pooling with an incomplete last window")
    return yes()


@translates(pool.MaxPool, when=both(floats, _whole_windows))
def _max_pool(op: pool.MaxPool, x: Output) -> Output:
    before, after = zip(*op.padding, strict=True)
    pads = list(map(int, before)), list(map(int, after))
    made = opset.max_pool(
        x, list(op.strides), list(op.dilation), *pads, list(op.kernel), "floor", None
    )
    return made.output(0)


@translates(pool.AvgPool, when=both(floats, _whole_windows))
def _avg_pool(op: pool.AvgPool, x: Output) -> Output:
    before, after = zip(*op.padding, strict=True)
    pads = list(map(int, before)), list(map(int, after))
    exclude = not op.count_include_pad
    return opset.avg_pool(x, list(op.strides), *pads, list(op.kernel), exclude, "floor")


@translates(adaptive_pool.AdaptiveAvgPool)
def _adaptive(op: adaptive_pool.AdaptiveAvgPool, x: Output) -> Output:
    return opset.adaptive_avg_pool(x, ints(op.output_shape))
