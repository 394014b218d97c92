"""Contractions, alone or with what is applied to their results, as launches."""

from __future__ import annotations

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction import table
from treadle.backends.codegen.contraction.api import LoweringRequest
from treadle.backends.codegen.contraction.shared.body import anchor_of
from treadle.backends.codegen.loops import lower_loops
from treadle.backends.codegen.lowering import LOWERINGS, lowers
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.ir import Graph
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight, Convolution, IntConv, WideConv
from treadle.ops.fused import Fused
from treadle.ops.matmul import ExactMatmul, IntMatmul, Matmul, MatrixProduct, WideMatmul
from treadle.ops.winograd import WinogradConv, WinogradConvGradWeight


@lowers(
    *(Matmul, WideMatmul, IntMatmul, Conv, WideConv, ConvGradInput, ConvGradWeight, IntConv),
    *(WinogradConv, WinogradConvGradWeight),
)
def lower_contraction(
    op: MatrixProduct | Convolution,
    types: tuple[TensorType, ...],
    frozen: tuple[bool, ...],
    target: Target,
) -> Lowered | Support:
    """A product or convolution by itself."""
    body = trace_body(op, types, op.name)
    return lower_body(body, types, frozen, target)


@lowers(ExactMatmul)
def lower_exact(
    op: ExactMatmul, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """A product of integers of any width, as a loop nest."""
    return lower_loops.lower_body(trace_body(op.terms, types, op.name), target)


def lower_body(
    body: Graph, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """A body around one contraction: movement before it, elementwise ops after it."""
    anchor = anchor_of(body)
    if isinstance(anchor, Support):
        return anchor
    return table.lower(LoweringRequest(body, anchor, frozen, target))


def _lower_fused(
    op: Fused, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    if not isinstance(op.body, Graph):
        return no("op", "the body of the group is not a graph")
    return lower_body(op.body, types, frozen, target)


LOWERINGS["fused.contraction"] = _lower_fused
