"""Convolution, pooling, resizing."""

from __future__ import annotations

from typing import Any

from treadle.base.errors import UnsupportedOp
from treadle.interop.onnx.exporters.elementwise import cast
from treadle.interop.onnx.writer import GraphWriter, OnnxOperand, exports
from treadle.ops.movement import Concat
from treadle.ops.reduce import Max, Mean
from treadle.ops.slicing import Slice

X = OnnxOperand


def _pads(padding: tuple[tuple[int, int], ...]) -> list[int]:
    return [*(low for low, _ in padding), *(high for _, high in padding)]


@exports("conv", "wide_conv", "int_conv")
def _conv(w: GraphWriter, op: Any, x: X, weight: X) -> X:
    kind = op.infer(x.type, weight.type)[0]
    if op.name == "int_conv" and x.type.dtype.itemsize > 1:
        raise UnsupportedOp("int_conv", "ONNX has no convolution of 16-bit integers")
    if op.name == "wide_conv":
        x, weight = cast(w, x, kind.dtype), cast(w, weight, kind.dtype)
    return w.one(
        "ConvInteger" if op.name == "int_conv" else "Conv",
        [x, weight],
        kind,
        kernel_shape=list(weight.extents[2:]),
        strides=list(op.strides),
        pads=_pads(op.padding),
        dilations=list(op.dilation),
        group=op.groups,
    )


@exports("conv_grad_input")
def _conv_transpose(w: GraphWriter, op: Any, dy: X, weight: X) -> X:
    kind = op.infer(dy.type, weight.type)[0]
    kernel = weight.extents[2:]
    extra = []
    for i, (low, high) in enumerate(op.padding):
        reach = op.dilation[i] * (kernel[i] - 1) + 1
        natural = (dy.extents[2 + i] - 1) * op.strides[i] + reach - low - high
        extra.append(int(op.spatial[i]) - natural)
    return w.one(
        "ConvTranspose",
        [dy, weight],
        kind,
        kernel_shape=list(kernel),
        strides=list(op.strides),
        pads=_pads(op.padding),
        dilations=list(op.dilation),
        output_padding=extra,
        group=op.groups,
    )


@exports("max_pool", "avg_pool")
def _pool(w: GraphWriter, op: Any, x: X) -> X:
    average = op.name == "avg_pool"
    return w.one(
        "AveragePool" if average else "MaxPool",
        [x],
        op.infer(x.type)[0],
        kernel_shape=list(op.kernel),
        strides=list(op.strides),
        pads=_pads(op.padding),
        ceil_mode=int(op.ceil_mode),
        dilations=None if average else list(op.dilation),
        count_include_pad=int(op.count_include_pad) if average else None,
    )


@exports("adaptive_avg_pool", "adaptive_max_pool")
def _adaptive(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    average, spatial = op.name == "adaptive_avg_pool", x.extents[2:]
    if all(o == 1 for o in op.output_shape):
        return w.one("GlobalAveragePool" if average else "GlobalMaxPool", [x], kind)
    if any(n % o for n, o in zip(spatial, op.output_shape, strict=True)):
        for axis, cells in enumerate(op.output_shape, 2):
            x = _by_cells(x, axis, cells, average)
        return x
    kernel = [n // o for n, o in zip(spatial, op.output_shape, strict=True)]
    name = "AveragePool" if average else "MaxPool"
    return w.one(name, [x], kind, kernel_shape=kernel, strides=kernel)


def _by_cells(x: X, axis: int, cells: int, average: bool) -> X:
    """One axis pooled to a number of cells whose windows differ in extent, each cut out by itself.

    The mean of a rectangle is that of its rows' means, and its maximum that of their maxima.
    """
    extents = x.extents
    found: list[X] = []
    for i in range(cells):
        n = extents[axis]
        starts = tuple(i * n // cells if a == axis else 0 for a in range(len(extents)))
        stops = tuple(-(-(i + 1) * n // cells) if a == axis else e for a, e in enumerate(extents))
        (piece,) = x.apply(Slice(starts, stops, (1,) * len(extents)), (x,))
        reduce = Mean((axis,), True) if average else Max((axis,), True)
        found += x.apply(reduce, (piece,))
    return x.apply(Concat(axis), tuple(found))[0]


@exports("batch_norm_infer")
def _batch_norm(w: GraphWriter, op: Any, x: X, weight: X, bias: X, mean: X, var: X) -> X:
    return w.one("BatchNormalization", [x, weight, bias, mean, var], x.type, epsilon=op.eps)


@exports("resize")
def _resize(w: GraphWriter, op: Any, x: X) -> X:
    kind = op.infer(x.type)[0]
    down = op.coordinates == "asymmetric"
    return w.one(
        "Resize",
        [x, None, None, w.ints(*x.extents[:2], *op.sizes)],
        kind,
        mode=op.mode,
        coordinate_transformation_mode=op.coordinates,
        nearest_mode=("floor" if down else "round_prefer_ceil") if op.mode == "nearest" else None,
        cubic_coeff_a=-0.75 if op.mode == "cubic" else None,
    )
