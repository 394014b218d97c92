"""Scales and shifts of normalizations folded into frozen weights of convolutions.

In inference a batch norm is one scale and one shift per channel. Where it follows a convolution
whose weight is frozen, as they are, the weight is multiplied by the scale once, and what is left is
one addition:

    (conv(x, w) + b) s + t = conv(x, s w) + (s b + t)

Every weight is rounded once more: relative to the sum of magnitudes of its products, a result
changes by at most the unit roundoff, besides the roundings that both ways have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from treadle.base.shape import size_of
from treadle.graph.frozen import fixed_values
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.conv import Conv, ConvGradInput
from treadle.ops.elementwise import Add, Mul, Neg, Sub
from treadle.ops.movement import Reshape
from treadle.ops.op import Op

AFFINE: tuple[type[Op], ...] = (Mul, Add, Sub)
"""Ops that chains are made of."""

Notes = Counter[tuple[str, str, str]]


def fold_scales(
    graph: Graph, frozen: Collection[Value], *, narrow: bool = False
) -> tuple[Graph, Notes]:
    """The graph with scales in the weights they can be folded into, and what is to be reported.

    Args:
        graph: what `prepare` made.
        frozen: inputs that keep their contents from run to run.
        narrow: also in weights of 16 bits, which keep few digits.
    """
    fixed = fixed_values(graph, frozen)
    users = _users(graph)
    found: dict[Node, _Chain] = {}
    for node in graph.nodes:
        if _is_candidate(node, fixed, narrow):
            chain = _chain(node, users, fixed)
            if any(isinstance(n.op, Mul) for n in chain):
                found[chain[-1]] = _Chain(node, chain)
    if not found:
        return graph, Counter()
    notes = Counter((_subject(c.anchor), "scale in its weight", "") for c in found.values())
    return _rewritten(graph, found), notes


def _subject(node: Node) -> str:
    return f"{node.op.name} -> {node.output.type}"


@dataclass(frozen=True, slots=True)
class _Chain:
    """A convolution and the scales and shifts behind it, each of which alone reads the last."""

    anchor: Node
    nodes: Sequence[Node]


def _users(graph: Graph) -> Mapping[Value, list[Node]]:
    """Return the readers of each value; the results of the graph are read twice, and so by no one
    alone.
    """
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    for value in graph.outputs:
        producer = value.producer
        if producer is not None:
            users.setdefault(value, []).extend((producer, producer))
    return users


def _is_candidate(node: Node, fixed: Collection[Value], narrow: bool) -> bool:
    op = node.op
    if type(op) not in (Conv, ConvGradInput) or node.group:
        return False
    if isinstance(op, ConvGradInput) and op.groups != 1:
        return False
    data, weight = node.inputs
    if weight not in fixed or data in fixed or not node.output.type.is_static:
        return False
    return narrow or node.output.type.dtype.itemsize > 2


def _chain(
    anchor: Node, users: Mapping[Value, list[Node]], fixed: Collection[Value]
) -> Sequence[Node]:
    """Scales and shifts by frozen numbers per channel, up to the last scale or the shift after."""
    value, chain = anchor.output, list[Node]()
    while len(users.get(value, ())) == 1:
        (node,) = users[value]
        if not isinstance(node.op, AFFINE) or node.output.type != value.type or node.group:
            break
        first, second = node.inputs
        if first is not value and isinstance(node.op, Sub):
            break
        operand = second if first is value else first
        if operand not in fixed or not _is_per_channel(operand, value):
            break
        chain.append(node)
        value = node.output
    return chain


def _is_per_channel(operand: Value, value: Value) -> bool:
    """Return whether an operand has one number for each channel, or one for all."""
    if operand.type.dtype != value.type.dtype:
        return False
    shape = (*(1,) * (value.type.ndim - operand.type.ndim), *operand.type.shape)
    return shape[0] == 1 and shape[1] in (1, value.type.shape[1]) and set(shape[2:]) <= {1}


# -- rewriting ---------------------------------------------------------------------------------


def _rewritten(graph: Graph, found: Mapping[Node, _Chain]) -> Graph:
    """The graph with new convolutions where the chains end; what they replace is left out."""
    gone = {n for c in found.values() for n in (c.anchor, *c.nodes)}
    renamed: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in found:
            made = _folded(found[node], renamed)
            nodes += made
            renamed[node.output] = made[-1].output
        elif node not in gone:
            inputs = tuple([renamed.get(v, v) for v in node.inputs])
            if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
                made_again = remake(node, node.op, inputs)
                renamed.update(zip(node.outputs, made_again.outputs, strict=True))
                node = made_again
            nodes.append(node)
    return graph.with_nodes(nodes, (renamed.get(v, v) for v in graph.outputs))


def _folded(chain: _Chain, renamed: Mapping[Value, Value]) -> list[Node]:
    """Nodes that compute what a chain does, the result last."""
    anchor, nodes = chain.anchor, list[Node]()

    def emit(op: Op, *inputs: Value, loc: Node = anchor) -> Value:
        nodes.append(Node(op, inputs, loc.loc))
        return nodes[-1].output

    scale, shift = None, None
    value = anchor.output
    for node in chain.nodes:
        first, second = node.inputs
        given = second if first is value else first
        count = size_of(given.type.shape)
        operand = emit(Reshape((count,)), renamed.get(given, given), loc=node)
        if isinstance(node.op, Mul):
            scale = operand if scale is None else emit(Mul(), scale, operand, loc=node)
            shift = None if shift is None else emit(Mul(), shift, operand, loc=node)
        elif shift is None:
            shift = emit(Neg(), operand, loc=node) if isinstance(node.op, Sub) else operand
        else:
            shift = emit(node.op, shift, operand, loc=node)
        value = node.output
    data, weight = (renamed.get(v, v) for v in anchor.inputs)
    if scale is not None:
        weight = emit(Mul(), weight, emit(Reshape(_along(anchor, scale)), scale))
    nodes.append(remake(anchor, anchor.op, (data, weight)))
    result = nodes[-1].output
    if shift is not None:
        ones = (1,) * (result.type.ndim - 2)
        column = emit(Reshape((1, *shift.type.shape, *ones)), shift)
        emit(Add(), result, column, loc=chain.nodes[-1])
    return nodes


def _along(anchor: Node, scale: Value) -> tuple[int, ...]:
    """The shape of a scale beside the weight: along the axis of output channels."""
    axis = 0 if isinstance(anchor.op, Conv) else 1
    shape = [1] * anchor.inputs[1].type.ndim
    shape[axis] = int(scale.type.shape[0])
    return tuple(shape)
