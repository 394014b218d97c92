"""Products and convolutions in programs: calls, and generated kernels for what goes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.shared.body import anchor_of
from treadle.backends.codegen.loops import lower_loops
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import extents, strided_input
from treadle.backends.cuda.libraries import convolutions
from treadle.backends.cuda.libraries.cudnn import convolutions as whole
from treadle.backends.cuda.libraries.cudnn.convolutions import Accepts
from treadle.backends.cuda.libraries.joining import Joining
from treadle.backends.cuda.libraries.products import Sizes, View, calls_of
from treadle.backends.program import Lowered, Ref
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.conv import Conv, ConvGradInput, ConvGradWeight
from treadle.ops.fused import Fused
from treadle.ops.matmul import Matmul
from treadle.ops.op import Op

CONVOLUTIONS = (Conv, ConvGradInput, ConvGradWeight)


@dataclass(frozen=True, slots=True)
class Offers:
    """Libraries that are there.

    Attributes:
        products: whether cuBLASLt computes products.
        accepts: which calls cuDNN has a plan for; None where it is not installed.
    """

    products: bool
    accepts: Accepts | None


def lower_product(
    op: Op, types: Sequence[TensorType], target: Target, offers: Offers
) -> Lowered | Support:
    """A product or convolution, alone or in a group, by a library; or why it is not."""
    if isinstance(op, (Matmul, *CONVOLUTIONS)):
        body = trace_body(op, types, op.name)
    elif isinstance(op, Fused) and op.kind == "contraction" and isinstance(op.body, Graph):
        body = op.body
    else:
        return no("op", f"no library computes {op.name}")
    if not all(v.type.is_static for v in body.inputs):
        return no("dynamic-shape", "an operand has symbolic extents")
    anchor = anchor_of(body)
    if isinstance(anchor, Support):
        return anchor
    joining = Joining()
    is_alone = body.outputs == (anchor.output,)
    result = Ref("output", 0) if is_alone else joining.workspace(anchor.output.type.nbytes)
    refusal = _anchored(body, anchor, joining, result, target, offers)
    if refusal is not None:
        return refusal
    if not is_alone:
        rest = lower_loops.lower_body(_rest(body, anchor), target)
        if isinstance(rest, Support):
            return rest
        inputs = [Ref("input", i) for i in range(len(body.inputs))]
        outputs = [Ref("output", i) for i in range(len(body.outputs))]
        refusal = joining.add(rest, [*inputs, result], outputs)
    return joining.lowered() if refusal is None else refusal


def _anchored(
    body: Graph, anchor: Node, joining: Joining, result: Ref, target: Target, offers: Offers
) -> Support | None:
    """Add what computes the anchor; why that is not done."""
    if isinstance(anchor.op, CONVOLUTIONS):
        return _convolution(body, anchor, joining, result, target, offers)
    if not offers.products:
        return no("policy", "cuBLASLt is not installed")
    return _product(body, anchor, joining, result)


def _convolution(
    body: Graph, anchor: Node, joining: Joining, result: Ref, target: Target, offers: Offers
) -> Support | None:
    """Lower a convolution to cuDNN, or to a product over columns; return a refusal, if any."""
    found = [strided_input(body, v) for v in anchor.inputs]
    views = [v for v in found if v is not None]
    if len(views) < len(found):
        return no("layout", "a map or weight is computed within the group")
    refusal: Support | None = no("policy", "neither cuDNN nor cuBLASLt is installed")
    if offers.accepts is not None:
        refusal = whole.lower_convolution(anchor, views, result, joining, offers.accepts)
    if refusal is None or not offers.products:
        return refusal
    if not all(v.is_dense for v in views):
        return no("layout", "a map or weight is not dense")
    if any(v.offset for v in views):
        return no("layout", "a map or weight is a part of another array")
    sources = [Ref("input", v.index) for v in views]
    return convolutions.lower_convolution(anchor, sources, result, joining, target)


def _product(body: Graph, anchor: Node, joining: Joining, result: Ref) -> Support | None:
    """Lower a matrix product to cuBLASLt; return a refusal, if any."""
    op = anchor.op
    if not isinstance(op, Matmul):
        return no("op", f"cuBLASLt does not compute {op.name}")
    *batch, m, n = extents(anchor.output.type.shape)
    made, sources, k = [], [], 0
    for value, turned in zip(anchor.inputs, (op.transpose_x, op.transpose_y), strict=True):
        view = strided_input(body, value)
        if view is None:
            return no("layout", "an operand is computed within the group")
        k = k or view.shape[-2 if turned else -1]
        whole = view.broadcast_to((*batch, *view.shape[-2:]))
        row, column = whole.strides[-2:][:: -1 if turned else 1]
        made.append(View(whole.offset, row, column, whole.strides[:-2]))
        sources.append(Ref("input", view.index))
    dtype = anchor.output.type.dtype
    calls = calls_of(dtype, Sizes(m, n, k, tuple(batch)), made[0], made[1])
    if isinstance(calls, Support):
        return calls
    joining.multiply(calls, sources[0], sources[1], result, dtype)
    return None


def _rest(body: Graph, anchor: Node) -> Graph:
    """Return what a group does with its anchor's result, which becomes the last input."""
    builder = GraphBuilder(body.name)
    known: dict[Value, Value] = {v: builder.input(v.type).value for v in body.inputs}
    known[anchor.output] = builder.input(anchor.output.type).value
    needed = _needed(body, anchor)
    for node in body.nodes:
        if node in needed:
            made = builder.add(node.op, tuple(known[v] for v in node.inputs))
            known |= zip(node.outputs, made.outputs, strict=True)
    builder.output(*(builder.operand(known[v]) for v in body.outputs))
    return builder.build()


def _needed(body: Graph, anchor: Node) -> set[Node]:
    """Nodes that the results depend on, those left out that only the anchor does."""
    found: set[Node] = set()
    waiting = list(body.outputs)
    while waiting:
        producer = waiting.pop().producer
        if producer is not None and producer is not anchor and producer not in found:
            found.add(producer)
            waiting += producer.inputs
    return found
