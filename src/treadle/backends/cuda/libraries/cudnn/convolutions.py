"""Choice of the convolutions that are cuDNN's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from treadle.backends.api import Support, no
from treadle.backends.codegen.views import Strided, extents
from treadle.backends.cuda.libraries import products
from treadle.backends.cuda.libraries.cudnn.calls import Call, Convolution, CudnnOperand, Side, dense
from treadle.backends.cuda.libraries.cudnn.graphs import TYPES
from treadle.backends.cuda.libraries.joining import Joining
from treadle.backends.program import Launch, Ref
from treadle.base.dtype import DType
from treadle.graph.ir import Node
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight
from treadle.ops.conv import Convolution as AnyConvolution

Accepts = Callable[[Call], Support]
"""True if the library has a plan for a call, and if not, why."""
ALIGNED = 16
"""Bytes that the library takes addresses of arrays to be multiples of."""
_SIDES: dict[type[AnyConvolution], Side] = {
    Conv: "forward",
    ConvGradInput: "input",
    ConvGradWeight: "weight",
}


def lower_convolution(
    anchor: Node, views: Sequence[Strided], result: Ref, joining: Joining, accepts: Accepts
) -> Support | None:
    """Add the call for a convolution of operands that lie as `views` say; why there is none."""
    op, dtype = anchor.op, anchor.output.type.dtype
    side = _SIDES.get(type(op)) if isinstance(op, AnyConvolution) else None
    if side is None or not isinstance(op, AnyConvolution):
        return no("op", f"cuDNN does not compute {op.name}")
    if dtype not in TYPES:
        return no("dtype", f"cuDNN is not used for {dtype.name}")
    made = extents(anchor.output.type.shape)
    shapes = (made, *(v.shape for v in views))
    if not all(math.prod(s) for s in shapes) or max(map(max, shapes)) > products.MOST:
        return no("shape", "an operand is empty or too large")
    if any(v.offset * dtype.itemsize % ALIGNED or min(v.strides) < 1 for v in views):
        return no("layout", "an operand is turned, repeated, or a part at an odd place")
    count = _multiplications(side, shapes)
    if count < products.LEAST:
        return no("size-limit", f"{count} multiplications are too few")
    before, after = ([pad[end] for pad in op.padding] for end in (0, 1))
    line = len(op.strides) == 1
    arrays = [dense(made, dtype), *(_array(v, dtype) for v in views)]
    to, first, second = (_flat(a) for a in arrays) if line else arrays
    call = Convolution(
        side,
        to,
        first,
        second,
        strides=(1, *op.strides) if line else tuple(op.strides),
        before=(0, *before) if line else tuple(before),
        after=(0, *after) if line else tuple(after),
        dilation=(1, *op.dilation) if line else tuple(op.dilation),
    )
    answer = accepts(call)
    if not answer:
        return answer
    sources = [Ref("input", v.index, v.offset * dtype.itemsize) for v in views]
    nbytes = sum(math.prod(s) for s in shapes) * dtype.itemsize
    joining.launches.append(Launch(call, (result, *sources), flops=2 * count, nbytes=nbytes))
    return None


def _multiplications(side: Side, shapes: Sequence[tuple[int, ...]]) -> int:
    """Every element of the convolution's result times the cells of a window."""
    made, first, second = shapes
    maps, weight = {
        "forward": (made, second),
        "input": (first, second),
        "weight": (second, made),
    }[side]
    return math.prod(maps) * math.prod(weight[1:])


def _array(view: Strided, dtype: DType) -> CudnnOperand:
    """A view; along axes of one position any step will do, and the library likes the dense one."""
    if view.is_dense:
        return dense(view.shape, dtype)
    return CudnnOperand(view.shape, tuple(view.strides), dtype.name)


def _flat(array: CudnnOperand) -> CudnnOperand:
    """Lines as images of one row: the library has no convolution of one axis."""
    (n, c, w), (batch, channel, cell) = array.shape, array.strides
    return CudnnOperand((n, c, 1, w), (batch, channel, cell * w, cell), array.dtype)
