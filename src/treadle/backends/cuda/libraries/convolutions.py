"""Convolutions of images as matrix products over columns.

With X the columns of an image [C k, P], W the weight [O, C k] and dY a gradient [O, P]: the result
is W X, the gradient in the columns is W^T dY, that in the weight is dY X^T, summed over images. For
the last one images lie side by side, so that one product does the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backends.api import Support, no
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import extents
from treadle.backends.cuda.libraries.columns import TYPES, Windows, from_columns, to_columns
from treadle.backends.cuda.libraries.joining import Joining
from treadle.backends.cuda.libraries.products import Sizes, View, calls_of
from treadle.backends.program import Ref
from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.graph.ir import Node
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, Convolution
from treadle.ops.movement import Transpose

MOST_BYTES = 1 << 30
"""Bytes that columns take at most; larger convolutions are left to generated kernels."""


def lower_convolution(
    anchor: Node, sources: Sequence[Ref], result: Ref, joining: Joining, target: Target
) -> Support | None:
    """Add a convolution's launches; why there are none."""
    op, dtype = anchor.op, anchor.output.type.dtype
    if not isinstance(op, Convolution) or op.groups != 1 or len(op.strides) != 2:
        return no("attribute", "only convolutions of images in one group are products")
    if dtype not in TYPES:
        return no("dtype", f"columns are not made of {dtype.name}")
    maps, other = (extents(v.type.shape) for v in anchor.inputs)
    made = extents(anchor.output.type.shape)
    if isinstance(op, Conv):
        windows = _windows(op, maps, other[2:], made[2:])
        return _forward(windows, dtype, sources, result, joining, made[1])
    if isinstance(op, ConvGradInput):
        windows = _windows(op, made, other[2:], maps[2:])
        return _to_input(windows, dtype, sources, result, joining, maps[1])
    if isinstance(op, ConvGradWeight):
        windows = _windows(op, maps, made[2:], other[2:])
        return _to_weight(windows, dtype, sources, result, joining, other[1], target)
    return no("op", f"cuBLASLt does not compute {op.name}")


def _windows(
    op: Convolution, maps: tuple[int, ...], kernel: tuple[int, ...], places: tuple[int, ...]
) -> Windows:
    images, channels, height, width = maps
    return Windows(
        images,
        channels,
        height,
        width,
        kernel=(kernel[0], kernel[1]),
        places=(places[0], places[1]),
        strides=(op.strides[0], op.strides[1]),
        dilation=(op.dilation[0], op.dilation[1]),
        before=(op.padding[0][0], op.padding[1][0]),
    )


def _is_too_large(windows: Windows, dtype: DType) -> Support | None:
    nbytes = windows.images * windows.rows * windows.columns * dtype.itemsize
    return no("size-limit", f"columns take {nbytes} bytes") if nbytes > MOST_BYTES else None


def _forward(
    windows: Windows,
    dtype: DType,
    sources: Sequence[Ref],
    result: Ref,
    joining: Joining,
    outputs: int,
) -> Support | None:
    x, weight = sources
    rows, columns = windows.rows, windows.columns
    sizes = Sizes(outputs, columns, rows, (windows.images,))
    step = rows * columns
    calls = calls_of(dtype, sizes, View(0, rows, 1, (0,)), View(0, columns, 1, (step,)))
    refusal = calls if isinstance(calls, Support) else _is_too_large(windows, dtype)
    if isinstance(calls, Support) or refusal is not None:
        return refusal
    if not windows.is_image:
        made = joining.workspace(windows.images * step * dtype.itemsize)
        joining.launches.append(to_columns(windows, dtype, x, made, (step, columns)))
        x = made
    joining.multiply(calls, weight, x, result, dtype)
    return None


def _to_input(
    windows: Windows,
    dtype: DType,
    sources: Sequence[Ref],
    result: Ref,
    joining: Joining,
    outputs: int,
) -> Support | None:
    dy, weight = sources
    rows, columns = windows.rows, windows.columns
    sizes = Sizes(rows, columns, outputs, (windows.images,))
    given = View(0, columns, 1, (outputs * columns,))
    calls = calls_of(dtype, sizes, View(0, 1, rows, (0,)), given)
    refusal = calls if isinstance(calls, Support) else _is_too_large(windows, dtype)
    if isinstance(calls, Support) or refusal is not None:
        return refusal
    if windows.is_image:
        joining.multiply(calls, weight, dy, result, dtype)
        return None
    made = joining.workspace(windows.images * rows * columns * dtype.itemsize)
    joining.multiply(calls, weight, dy, made, dtype)
    joining.launches.append(from_columns(windows, dtype, made, result))
    return None


def _to_weight(
    windows: Windows,
    dtype: DType,
    sources: Sequence[Ref],
    result: Ref,
    joining: Joining,
    outputs: int,
    target: Target,
) -> Support | None:
    x, dy = sources
    rows, columns, images = windows.rows, windows.columns, windows.images
    beside = images * columns
    sizes = Sizes(outputs, rows, beside, ())
    calls = calls_of(dtype, sizes, View(0, beside, 1, ()), View(0, 1, beside, ()))
    refusal = calls if isinstance(calls, Support) else _is_too_large(windows, dtype)
    if isinstance(calls, Support) or refusal is not None:
        return refusal
    if images > 1:
        of = TensorType(dtype, (images, outputs, columns))
        turning = lower(Transpose((1, 0, 2)), (of,), (), target)
        if isinstance(turning, Support):
            return turning
        turned = joining.workspace(of.nbytes)
        refusal = joining.add(turning, [dy], [turned])
        if refusal is not None:
            return refusal
        dy = turned
    if images > 1 or not windows.is_image:
        made = joining.workspace(rows * beside * dtype.itemsize)
        joining.launches.append(to_columns(windows, dtype, x, made, (columns, beside)))
        x = made
    joining.multiply(calls, dy, x, result, dtype)
    return None
