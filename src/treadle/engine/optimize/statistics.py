"""Statistics of batch norms, taken by the convolutions whose results they are of.

A convolution that has just stored some rows of its result, channels last, leaves their means and
squared deviations beside it; what joins these reads a fiftieth of what the result takes. It stands
in the graph as an op, `ColumnMoments`, which contraction groups take in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from treadle.base.estimates import estimate
from treadle.base.shape import size_of
from treadle.base.types import TensorType
from treadle.engine.optimize.bodies import Trial
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.conv import Conv
from treadle.ops.elementwise import Add, Mul, Sub
from treadle.ops.fused import Fused
from treadle.ops.logic import IsFinite
from treadle.ops.movement import Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.reduce import Mean, Sum
from treadle.ops.select import Where
from treadle.ops.slicing import Slice
from treadle.ops.unary import Square

LEAST = 8 << 20
"""Bytes of a result from which reading it once less was measured to be worth anything: less of it
is still in the last cache, whose share is some megabytes per core."""
ROWS = 96
"""Rows of a block: those that a product goes through at once, whatever the machine."""

Notes = Counter[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class _Norm:
    """A mean over all axes but the last, and that of the squares about it."""

    mean: Node
    variance: Node


def with_statistics(graph: Graph, trial: Trial) -> tuple[Graph, Notes]:
    """The graph with statistics left by convolutions, and what is to be reported.

    Args:
        graph: in the layouts that it is to run in.
        trial: asks the compiler, whose kernels have to take statistics.
    """
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            users.setdefault(value, []).append(node)
    found: dict[Value, _Norm] = {}
    for node in graph.nodes:
        norm = _norm(node, users)
        if norm is None:
            continue
        value = norm.mean.inputs[0]
        if estimate(value.type.open_nbytes) >= LEAST and _is_taken(value, trial):
            found[value] = norm
    if not found:
        return graph, Counter()
    notes = Counter(
        (f"statistics of {value.type}", "taken by the convolution", "") for value in found
    )
    return _rewritten(graph, found), notes


def _norm(node: Node, users: Mapping[Value, list[Node]]) -> _Norm | None:
    """The pair that a mean begins."""
    if not _is_by_column(node):
        return None
    (x,) = node.inputs
    for deviation in users.get(node.output, ()):
        if not isinstance(deviation.op, Sub) or deviation.inputs != (x, node.output):
            continue
        for square in users.get(deviation.output, ()):
            if not isinstance(square.op, Square):
                continue
            for variance in users.get(square.output, ()):
                if variance.op == node.op:
                    return _Norm(node, variance)
    return None


def _is_by_column(node: Node) -> bool:
    if not isinstance(node.op, Mean) or not node.inputs[0].type.is_static:
        return False
    rank = node.inputs[0].type.ndim
    return node.op.keepdims and rank > 1 and tuple(node.op.axes) == tuple(range(rank - 1))


def _is_taken(value: Value, trial: Trial) -> bool:
    """Return whether the compiler's convolution leaves statistics of its result."""
    chain: list[Node] = []
    node = value.producer
    if node is not None and isinstance(node.op, Add):
        # A bias per channel; the convolution is the operand of the result's shape.
        chain.append(node)
        whole = [v for v in node.inputs if v.type.shape == value.type.shape]
        node = whole[0].producer if len(whole) == 1 else None
    if node is None or not isinstance(node.op, Transpose):
        return False
    conv = node.inputs[0].producer
    if conv is None or type(conv.op) is not Conv:
        return False
    return bool(trial(*_question(conv, (node, *chain))))


def _question(conv: Node, chain: tuple[Node, ...]) -> tuple[Op, list[TensorType]]:
    """The group of a convolution, what moves its operands, and what its result becomes."""
    builder = GraphBuilder("contraction")
    known: dict[Value, Value] = {}
    types: list[TensorType] = []

    def read(value: Value) -> Value:
        if value not in known:
            types.append(TensorType(value.type.dtype, value.type.shape))
            known[value] = builder.input(types[-1]).value
        return known[value]

    before = [v.producer for v in conv.inputs]
    moves = [n for n in before if n is not None and isinstance(n.op, Transpose)]
    for node in (*moves, conv, *chain):
        made = builder.copy(node, tuple([read(v) for v in node.inputs]), named=False)
        known.update(zip(node.outputs, made.outputs, strict=True))
    result = known[chain[-1].output]
    measured = builder.add(ColumnMoments(ROWS), (result,))
    builder.output(*(builder.operand(v) for v in (result, *measured.outputs)))
    return Fused("contraction", builder.build()), types


# -- rewriting ---------------------------------------------------------------------------------


def _rewritten(graph: Graph, found: Mapping[Value, _Norm]) -> Graph:
    """The graph in which means and variances come from the statistics of blocks."""
    means = {norm.mean: value for value, norm in found.items()}
    variances = {norm.variance for norm in found.values()}
    renamed: dict[Value, Value] = {}
    ready: dict[Node, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in means:
            made, results = _join(node, renamed.get(means[node], means[node]))
            nodes += made
            renamed[node.output] = results[0]
            ready[found[means[node]].variance] = results[1]
        elif node in variances:
            renamed[node.output] = ready[node]
        else:
            inputs = tuple([renamed.get(v, v) for v in node.inputs])
            made_again = node
            if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
                made_again = remake(node, node.op, inputs)
                renamed.update(zip(node.outputs, made_again.outputs, strict=True))
            nodes.append(made_again)
    return graph.with_nodes(nodes, (renamed.get(v, v) for v in graph.outputs))


def _join(mean: Node, value: Value) -> tuple[list[Node], tuple[Value, Value]]:
    """Nodes that compute a mean and the variance about it from statistics of blocks.

    The mean is summed about that of the first block, where this is finite: sums then have the size
    of the deviations, however large the mean.
    """
    nodes: list[Node] = []

    def emit(op: Op, *inputs: Value) -> Value:
        nodes.append(Node(op, inputs, mean.loc))
        return nodes[-1].output

    def constant(array: object) -> Value:
        return emit(Constant(ArrayData(np.asarray(array, value.type.dtype.numpy))))

    count = size_of(value.type.shape[:-1])
    lengths = np.minimum(ROWS, count - np.arange(0, count, ROWS))
    weights = constant(lengths[:, None] / count)
    emit(ColumnMoments(ROWS), value)
    means, squares = nodes[-1].outputs
    columns = int(value.type.shape[-1])
    first = emit(Slice((0, 0), (1, columns), (1, 1)), means)
    first = emit(Where(), emit(IsFinite(), first), first, constant(0.0))
    apart = emit(Sum((0,), keepdims=True), emit(Mul(), emit(Sub(), means, first), weights))
    middle = emit(Add(), first, apart)
    between = emit(Mul(), emit(Square(), emit(Sub(), means, middle)), weights)
    within = emit(Mul(), squares, constant(1.0 / count))
    variance = emit(Sum((0,), keepdims=True), emit(Add(), between, within))
    shape = Reshape(mean.output.type.shape)
    return nodes, (emit(shape, middle), emit(shape, variance))
