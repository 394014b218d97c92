"""Algorithms of convolutions as they were measured, where that was done (`treadle bench --tune`).

Ways are timed on values that lie channels-last, as the layout stage has them around convolutions.
"""

from __future__ import annotations

from typing import Any

from treadle.backends.program import Way
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine.optimize.bodies import Trial
from treadle.graph.builder import trace_body
from treadle.graph.ir import Node
from treadle.ops.conv import Convolution, WideConv
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.winograd import TILES, WinogradConv, WinogradConvGradWeight

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
    types = [TensorType(v.type.dtype, v.type.shape) for v in node.inputs]
    maps = 2 if op.side == "weight" else 1
    held = *(_held_last(t) for t in types[:maps]), *types[maps:]

    def ways() -> list[Way]:
        others = [tile for tile in (0, *TILES) if tile != modelled]
        return [Way(tile, _laid_out(in_tiles(op, tile), held)) for tile in (modelled, *others)]

    extents = ["x".join(map(str, t.shape)) for t in types]
    sides = ",".join(f"{low}+{high}" for low, high in op.padding)
    kind = "frozen" if frozen else "weights"
    if types[0].dtype is not dt.float32:
        kind = f"{kind} {types[0].dtype}"
    question = f"{op.name} {' '.join(extents)} padding {sides} {kind}"
    return trial.recorded(question, held, (False, frozen), ways)


def in_tiles(op: Convolution, tile: int) -> Convolution:
    """The same convolution or gradient in tiles of so many results per axis; 0 is the op itself."""
    if not tile:
        return op
    shared = op.strides, op.padding, op.dilation, op.groups
    if op.side == "weight":
        return WinogradConvGradWeight(*shared, tile)
    return WinogradConv(*shared, tile, op.side == "input", isinstance(op, WideConv))


def _held_last(maps: TensorType) -> TensorType:
    return maps.with_shape(tuple(maps.shape[axis] for axis in _TO_BACK))


def _laid_out(op: Convolution, held: tuple[TensorType, ...]) -> Fused:
    """The op from and to values that lie channels-last, apart from weights and their gradients."""
    to_front, to_back = Transpose(_TO_FRONT), Transpose(_TO_BACK)

    def gradient(x: Any, dy: Any) -> Any:
        return op(to_front(x), to_front(dy))

    def forward(x: Any, weight: Any) -> Any:
        return to_back(op(to_front(x), weight))

    body = gradient if op.side == "weight" else forward
    return Fused("contraction", trace_body(body, held, op.name))
