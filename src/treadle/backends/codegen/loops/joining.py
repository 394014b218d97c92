"""Bodies cut at reductions: what computes them, and what goes on from their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.backends.codegen.loops.plan import weight
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.cells import is_scalar_op, reduces
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.creation import Extent, Iota
from treadle.ops.elementwise import Minimum
from treadle.ops.families import Reduce
from treadle.ops.logic import IsFinite
from treadle.ops.reduce import Mean, Sum
from treadle.ops.select import Where
from treadle.ops.slicing import Slice
from treadle.ops.unary import Square


@dataclass(frozen=True, slots=True)
class Lengths:
    """Elements that the parts of a reduction have: `each`, and the last one what is left of all."""

    parts: Dim
    each: Dim
    total: Dim

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of elements of every part; empty where only a call knows them."""
        if isinstance(self.total, Expr) or isinstance(self.each, Expr):
            return ()
        each, total = self.each, self.total
        return tuple(min(each, total - i) for i in range(0, total, each))


@dataclass(frozen=True, slots=True)
class Parts:
    """A reduction of which partial results lie one after the other.

    Each is of the compute type of the operand. Those of a mean are sums, but for a mean that sums
    of squares are `about`: there the parts are means, and the squares are about these.

    Attributes:
        node: the reduction.
        lengths: elements that each part has reduced.
        about: the mean that squares are about.
        means: the parts are means.
    """

    node: Node
    lengths: Lengths
    about: Node | None = None
    means: bool = False

    @property
    def type(self) -> TensorType:
        """Type of the parts together."""
        dtype = compute_dtype(self.node.inputs[0].type.dtype)
        return TensorType(dtype, (self.lengths.parts, product(self.node.output.type.shape)))


def joining_body(body: Graph, parts: Sequence[Parts], numbers: Sequence[int]) -> Graph:
    """The outputs of these numbers, computed from the parts of reductions.

    Its inputs are the parts, then the inputs of the body.
    """
    builder = GraphBuilder(body.name, share=True)
    given = {p.node: builder.input(p.type) for p in parts}
    known: dict[Value, Value] = {}
    for p in parts:
        found = _join(given, p)
        wanted = p.node.output.type
        known[p.node.output] = found.astype(wanted.dtype).reshape(wanted.shape).value
    return _continued(builder, body, known, numbers)


def _join(given: Mapping[Node, GraphOperand], parts: Parts) -> GraphOperand:
    """The complete reduction, in the compute type and without the axes that are gone."""
    x, op = given[parts.node], parts.node.op
    if parts.means:
        return _mean(x, parts.lengths)
    if parts.about is not None:
        means = given[parts.about]
        between = Square()(means - _mean(means, parts.lengths))
        x = x + between * _counts(means, parts.lengths)
    if isinstance(op, Mean):
        return Sum((0,))(x) / _number(x, parts.lengths.total, x.type.dtype)
    if isinstance(op, Reduce):
        return op.replace(axes=(0,), keepdims=False)(x)
    raise TypeError(f"{op.name} is not a reduction")


def _mean(means: GraphOperand, lengths: Lengths) -> GraphOperand:
    """The mean of all from the means of parts: the first one, and the mean difference from it.

    Of equal means it is exactly the same, so that squares about it are 0.
    """
    kept = means.type.shape[1]
    (first,) = means.apply(Slice((0, 0), (1, kept), (1, 1)), (means,))
    first = Where()(IsFinite()(first), first, first.constant(0.0))
    ahead = means - first
    if len(set(lengths.numbers)) == 1:
        return first.reshape((kept,)) + Mean((0,))(ahead)
    shares = _counts(means, lengths) / _number(means, lengths.total, means.type.dtype)
    return first.reshape((kept,)) + Sum((0,))(ahead * shares)


def _counts(x: GraphOperand, lengths: Lengths) -> GraphOperand:
    """Elements of each part, to be multiplied with the parts."""
    numbers = lengths.numbers
    if len(set(numbers)) == 1:
        return x.constant(float(numbers[0]))
    if numbers:
        return x.constant(np.array(numbers, x.type.dtype.numpy).reshape(-1, 1))
    (order,) = x.apply(Iota(0, 1, lengths.parts, dt.int64), ())
    total, each = (_number(order, n, dt.int64) for n in (lengths.total, lengths.each))
    found = Minimum()(total - order * each, each)
    return found.astype(x.type.dtype).reshape((lengths.parts, 1))


def _number(x: GraphOperand, count: Dim, dtype: DType) -> GraphOperand:
    """A count of elements as an operand."""
    if isinstance(count, int):
        return x.constant(float(count) if dtype.is_float else count)
    (found,) = x.apply(Extent(count, dtype), ())
    return found


def rest_of(body: Graph, done: Sequence[Value], numbers: Sequence[int]) -> Graph:
    """The outputs of these numbers, where some values of the body are computed already.

    Its inputs are those values, then the inputs of the body.
    """
    builder = GraphBuilder(body.name)
    known = {v: builder.input(v.type).value for v in done}
    return _continued(builder, body, known, numbers)


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


def settled(body: Graph, done: Sequence[Node]) -> list[Value]:
    """Return values per row that are known after some reductions, as far as others read them."""
    size = product(done[0].output.type.shape)
    most = estimate(size)
    small = {v for v in body.inputs if estimate(product(v.type.shape)) <= most}
    ready: dict[Value, None] = {}
    for node in body.nodes:
        follows = node in done or _is_costly(node) or any(v in ready for v in node.inputs)
        if node not in done:
            count = product(node.outputs[0].type.shape)
            fits = is_identical(count, size) if follows else estimate(count) <= most
            if reduces(node) or not fits or not small.issuperset(node.inputs):
                continue
        small.update(node.outputs)
        if follows:
            ready.update(dict.fromkeys(node.outputs))
    read = {v for n in body.nodes if n.outputs[0] not in ready for v in n.inputs}
    return [v for v in ready if v in read or v in body.outputs]


def _is_costly(node: Node) -> bool:
    return is_scalar_op(node.op) and weight(node.op) >= COSTLY


COSTLY = 5.0
"""Weight of an op from which on its result is kept: that of a division."""
