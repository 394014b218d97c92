"""Bodies cut at reductions: what computes them, and what goes on from their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.families import Reduce
from treadle.ops.reduce import Mean, Sum


@dataclass(frozen=True, slots=True)
class Parts:
    """A reduction of which `count` partial results lie one after the other.

    Each is of the compute type of the operand; `reduced` elements were reduced in all.
    """

    node: Node
    count: int
    reduced: int

    @property
    def type(self) -> TensorType:
        """Type of the parts together."""
        dtype = compute_dtype(self.node.inputs[0].type.dtype)
        return TensorType(dtype, (self.count, size_of(self.node.output.type.shape)))


def joining_body(body: Graph, parts: Sequence[Parts], numbers: Sequence[int]) -> Graph:
    """The outputs of these numbers, computed from the parts of reductions.

    Its inputs are the parts, then the inputs of the body.
    """
    builder = GraphBuilder(body.name)
    joined = [_join(builder.input(p.type), p) for p in parts]
    known = {p.node.output: x.value for p, x in zip(parts, joined, strict=True)}
    return _continued(builder, body, known, numbers)


def rest_of(body: Graph, done: Sequence[Value]) -> Graph:
    """The body where some of its values are computed already.

    Its inputs are those values, then the inputs of the body.
    """
    builder = GraphBuilder(body.name)
    known = {v: builder.input(v.type).value for v in done}
    return _continued(builder, body, known, range(len(body.outputs)))


def only(body: Graph, values: Sequence[Value]) -> Graph:
    """The part of a body that computes some of its values."""
    needed = _above(values, dict.fromkeys(body.inputs))
    return body.with_nodes((n for n in body.nodes if n in needed), values)


def _continued(
    builder: GraphBuilder, body: Graph, known: dict[Value, Value], numbers: Sequence[int]
) -> Graph:
    """Outputs of a body as far as they are not known."""
    known.update((v, builder.input(v.type, v.name).value) for v in body.inputs)
    needed = _above([body.outputs[i] for i in numbers], known)
    for node in body.nodes:
        if node in needed:
            made = builder.copy(node, tuple(known[v] for v in node.inputs))
            known.update(zip(node.outputs, made.outputs, strict=True))
    builder.output(*(builder.operand(known[body.outputs[i]]) for i in numbers))
    return builder.build()


def _join(x: GraphOperand, parts: Parts) -> GraphOperand:
    """The complete reduction, in the type and shape of its node's result."""
    op, wanted = parts.node.op, parts.node.output.type
    if isinstance(op, Mean):
        total = Sum((0,))(x) / float(parts.reduced)
    elif isinstance(op, Reduce):
        total = op.replace(axes=(0,), keepdims=False)(x)
    else:
        raise TypeError(f"{op.name} is no reduction")
    return total.astype(wanted.dtype).reshape(wanted.shape)


def _above(values: Sequence[Value], known: Mapping[Value, object]) -> set[Node]:
    """The nodes that some values are computed with, as far as they are not known."""
    found: set[Node] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        node = value.producer
        if value not in known and node is not None and node not in found:
            found.add(node)
            waiting += node.inputs
    return found
