"""Algorithms of convolutions as they were measured, where that was done (`treadle bench --tune`).

Ways are timed on values that lie channels-last, as the layout stage has them around convolutions.
"""

from __future__ import annotations

from treadle.backends.program import Way
from treadle.base.types import TensorType
from treadle.engine.optimize.bodies import Trial
from treadle.graph.builder import trace_body
from treadle.graph.ir import Node
from treadle.ops.conv import ConvGradInput, Convolution
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.winograd import TILES, WinogradConv

_TO_FRONT, _TO_BACK = (0, 3, 1, 2), (0, 2, 3, 1)


def measured_tile(
    node: Node, op: Convolution, trial: Trial, modelled: int, frozen: bool
) -> int | None:
    """Results per axis of the fastest algorithm, 0 for the direct one; None if none was measured.

    Args:
        node: a convolution that could be computed in tiles, or a gradient.
        op: of the node.
        trial: asks the compiler.
        modelled: what the model chooses.
        frozen: whether the weight never changes.
    """
    x, weight = (TensorType(v.type.dtype, v.type.shape) for v in node.inputs)
    last = TensorType(x.dtype, tuple(x.shape[axis] for axis in _TO_BACK))

    def ways() -> list[Way]:
        others = [tile for tile in (0, *TILES) if tile != modelled]
        return [
            Way(tile, _laid_out(in_tiles(op, tile), last, weight)) for tile in (modelled, *others)
        ]

    extents = ["x".join(map(str, t.shape)) for t in (x, weight)]
    sides = ",".join(f"{low}+{high}" for low, high in op.padding)
    kind = "frozen" if frozen else "weights"
    question = f"{op.name} {' '.join(extents)} padding {sides} {kind}"
    return trial.recorded(question, (last, weight), (False, frozen), ways)


def in_tiles(op: Convolution, tile: int) -> Convolution:
    """The same convolution or gradient in tiles of so many results per axis; 0 is the op itself."""
    if not tile:
        return op
    back = isinstance(op, ConvGradInput)
    return WinogradConv(op.strides, op.padding, op.dilation, op.groups, tile, back)


def _laid_out(op: Convolution, x: TensorType, weight: TensorType) -> Fused:
    """The op from and to values that lie channels-last."""
    to_front, to_back = Transpose(_TO_FRONT), Transpose(_TO_BACK)
    body = trace_body(lambda x, w: to_back(op(to_front(x), w)), (x, weight), op.name)
    return Fused("contraction", body)
