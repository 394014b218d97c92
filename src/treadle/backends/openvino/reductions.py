"""Translations of reductions, softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino.table import Output, both, floats, ints, of_types, scalar, translates
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops import attention, norm, reduce, softmax
from treadle.ops.op import Op

_REDUCE: dict[type[Op], Any] = {
    reduce.Sum: opset.reduce_sum,
    reduce.Mean: opset.reduce_mean,
    reduce.Max: opset.reduce_max,
    reduce.Min: opset.reduce_min,
    reduce.Prod: opset.reduce_prod,
}
_QUANTIFY: dict[type[Op], Any] = {
    reduce.All: opset.reduce_logical_and,
    reduce.Any: opset.reduce_logical_or,
}


@translates(*_REDUCE)
def _reduced(op: Any, x: Output) -> Output:
    return _REDUCE[type(op)](x, ints(op.axes), op.keepdims) if op.axes else x


@translates(*_QUANTIFY, when=of_types(dt.bool_))
def _quantified(op: Any, x: Output) -> Output:
    return _QUANTIFY[type(op)](x, ints(op.axes), op.keepdims) if op.axes else x


@translates(softmax.Softmax)
def _softmax(op: softmax.Softmax, x: Output) -> Output:
    return opset.softmax(x, op.axis)


@translates(softmax.LogSoftmax)
def _log_softmax(op: softmax.LogSoftmax, x: Output) -> Output:
    return opset.log_softmax(x, op.axis)


@translates(norm.LayerNorm)
def _layer_norm(op: norm.LayerNorm, x: Output, *affine: Output) -> Output:
    axes = ints(op.axes(x.get_partial_shape().rank.get_length()))
    y = opset.mvn(x, axes, True, op.eps, "inside_sqrt")
    for make, operand in zip((opset.multiply, opset.add), affine, strict=False):
        y = make(y, operand)
    return y


def _plain(op: Any, types: Sequence[TensorType]) -> Support:
    """One stack of matrices per operand, no mask, and queries that number as many as keys."""
    q, k, v = types[:3]
    if len(types) > 3 or q.ndim != 4 or not q.shape[:2] == k.shape[:2] == v.shape[:2]:
        return no("shape", "attention with a mask, or over stacks of different shapes")
    if op.causal and q.shape[-2] != k.shape[-2]:
        return no("shape", "causal attention with fewer queries than keys")
    return yes()


@translates(attention.Attention, when=both(floats, _plain))
def _attention(op: attention.Attention, q: Output, k: Output, v: Output) -> Output:
    if op.scale is not None:  # It divides by the root of the last extent.
        q = opset.multiply(q, scalar(op.scale * math.sqrt(q.get_partial_shape()[-1].get_length())))
    return opset.scaled_dot_product_attention(q, k, v, causal=op.causal)
