"""Attention that was written out: products and a softmax become one op, and so does its gradient.

A composite that engines have a kernel for is worth finding: the scores of all queries and keys are
then never stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.shape import can_broadcast
from treadle.graph.analysis import users
from treadle.graph.builder import GraphBuilder
from treadle.graph.cleanup import DeadCode
from treadle.graph.ir import Graph, Node, Value, constant_of
from treadle.graph.passes import register
from treadle.graph.regions import map_regions
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.elementwise import Add, Div, Mul, Sub
from treadle.ops.matmul import Matmul
from treadle.ops.reduce import Sum
from treadle.ops.select import Where
from treadle.ops.softmax import Softmax

Readers = Mapping[Value, list[Node | None]]
"""The nodes that read each value; None stands for the results of the graph."""


@register
@dataclass(frozen=True, slots=True)
class FindAttention:
    """Replaces softmax(q k^T * scale + mask) v, and its gradient where there is one."""

    name: ClassVar[str] = "find_attention"

    def __call__(self, graph: Graph, /) -> Graph:
        """The graph with attention ops in place of what computes the same."""
        graph = map_regions(graph, self)
        if not any(isinstance(n.op, Softmax) for n in graph.nodes):
            return graph
        readers: Readers = {v: [u.node for u in uses] for v, uses in users(graph).items()}
        found = [_match(n, readers) for n in graph.nodes if isinstance(n.op, Softmax)]
        matches = [m for m in found if m is not None]
        return _replaced(graph, matches) if matches else graph


@dataclass(frozen=True, slots=True)
class _Backward:
    """The values that the gradient consists of."""

    dy: Value
    dq: Value
    dk: Value
    dv: Value

    @property
    def made(self) -> tuple[Value, ...]:
        """The results of the gradient op, in its order."""
        return self.dq, self.dk, self.dv


@dataclass(frozen=True, slots=True)
class _Match:
    """One attention: its operands, its result, and its gradient if there is one."""

    q: Value
    k: Value
    v: Value
    mask: tuple[Value, ...]
    causal: bool
    scale: float
    result: Value
    backward: _Backward | None


@dataclass(frozen=True, slots=True)
class _Scores:
    """q k^T, times `scale`, under `mask`; `factor` is the op that scaled."""

    q: Value
    k: Value
    mask: tuple[Value, ...]
    scale: float


def _match(softmax: Node, readers: Readers) -> _Match | None:
    weights = softmax.output
    if softmax.op.attributes["axis"] != weights.type.ndim - 1 or weights.type.ndim < 2:
        return None
    scores = _scores(softmax.inputs[0], readers)
    products = [n for n in readers[weights] if _is_product(n, weights, 0, False, False)]
    if scores is None or len(products) != 1 or products[0] is None:
        return None
    product = products[0]
    v = product.inputs[1]
    if not _fits(scores, v, weights):
        return None
    others = [n for n in readers[weights] if n is not product]
    backward = _backward(weights, scores, v, others, readers) if others else None
    if others and backward is None:
        return None
    causal = any(_is_causal(m) for m in scores.mask)
    mask = () if causal else scores.mask
    return _Match(scores.q, scores.k, v, mask, causal, scores.scale, product.output, backward)


HIDDEN = -1e8
"""A number this low, added to a score, leaves nothing of its weight."""


def _is_causal(mask: Value) -> bool:
    """Return whether a mask is a constant that hides all later keys and no others."""
    data = constant_of(mask)
    if data is None or not data.is_present or data.array.size == 0 or data.array.ndim < 2:
        return False
    rows, columns = data.shape[-2:]
    if rows != columns or rows * columns != data.array.size:
        return False
    array = data.array.reshape(rows, columns)
    seen = np.tri(rows, dtype=np.bool_)
    if array.dtype == np.bool_:
        return bool((array == seen).all())
    return bool((array[seen] == 0).all() and (array[~seen] <= HIDDEN).all())


def _fits(scores: _Scores, v: Value, weights: Value) -> bool:
    """Return whether nothing is broadcast but the mask, and the mask is one that the op takes."""
    batch = {x.type.shape[:-2] for x in (scores.q, scores.k, v, weights)}
    dtype = scores.q.type.dtype
    masks = all(
        m.type.dtype in (dt.bool_, dtype) and can_broadcast(m.type.shape, weights.type.shape)
        for m in scores.mask
    )
    return len(batch) == 1 and masks and dtype in (dt.float32, dt.float64)


def _scores(value: Value, readers: Readers) -> _Scores | None:
    """Return the parts of a softmax's operand, seen from its end: a mask, a factor, a product."""
    mask: tuple[Value, ...] = ()
    node = _only(value, readers)
    if node is not None and isinstance(node.op, Where) and _is_infinite(node.inputs[2]):
        mask, value = (node.inputs[0],), node.inputs[1]
    elif node is not None and isinstance(node.op, Add):
        inner = [x for x in node.inputs if _core(x, readers) is not None]
        if len(inner) != 1 or node.inputs[0] is node.inputs[1]:
            return None
        mask = tuple(x for x in node.inputs if x is not inner[0])
        value = inner[0]
    core = _core(value, readers)
    if core is None:
        return None
    product, scale = core
    return _Scores(product.inputs[0], product.inputs[1], mask, scale)


def _core(value: Value, readers: Readers) -> tuple[Node, float] | None:
    """A product q k^T and the number it is multiplied by."""
    scale = 1.0
    node = _only(value, readers)
    if node is not None and isinstance(node.op, (Mul, Div)):
        numbers = [_number(x) for x in node.inputs]
        at = 1 if numbers[1] is not None or isinstance(node.op, Div) else 0
        number = numbers[at]
        if number is None or not math.isfinite(number) or number == 0:
            return None
        scale = number if isinstance(node.op, Mul) else 1 / number
        node = _only(node.inputs[1 - at], readers)
    if node is None or node.op != Matmul(False, True):
        return None
    return node, scale


def _only(value: Value, readers: Readers) -> Node | None:
    """The node that made a value, if it has one reader."""
    return value.producer if len(readers[value]) == 1 else None


def _number(value: Value) -> float | None:
    data = constant_of(value)
    if data is None or not data.is_present or data.array.size != 1 or data.array.ndim:
        return None
    return float(data.array)


def _is_infinite(value: Value) -> bool:
    return _number(value) == -math.inf


def _is_product(node: Node | None, x: Value, place: int, *flags: bool) -> bool:
    return node is not None and node.op == Matmul(*flags) and node.inputs[place] is x


# -- the gradient ------------------------------------------------------------------------------


def _backward(
    weights: Value, scores: _Scores, v: Value, others: list[Node | None], readers: Readers
) -> _Backward | None:
    """dv = w^T dy, ds = w dw - w sum(w dw) with dw = dy v^T, dq = ds k, dk = ds^T q."""
    transposed = [n for n in others if _is_product(n, weights, 0, True, False)]
    weighted = [n for n in others if n is not None and isinstance(n.op, Mul)]
    if len(transposed) != 1 or len(weighted) != 2 or len(others) != 3:
        return None
    first = next((n for n in weighted if _dw(n, weights, v, readers) is not None), None)
    if first is None or transposed[0] is None:
        return None
    dy = _dw(first, weights, v, readers)
    second = next(n for n in weighted if n is not first)
    difference = _difference(first, second, weights, readers)
    if dy is None or dy is not transposed[0].inputs[1] or difference is None:
        return None
    dscores = _descaled(_unmasked(difference, scores.mask, readers), scores.scale, readers)
    if dscores is None:
        return None
    made = readers[dscores]
    dq = [n for n in made if _is_product(n, dscores, 0, False, False) and n.inputs[1] is scores.k]  # type: ignore[union-attr]
    dk = [n for n in made if _is_product(n, dscores, 0, True, False) and n.inputs[1] is scores.q]  # type: ignore[union-attr]
    if len(dq) != 1 or len(dk) != 1 or len(made) != 2 or dq[0] is None or dk[0] is None:
        return None
    return _Backward(dy, dq[0].output, dk[0].output, transposed[0].output)


def _dw(node: Node, weights: Value, v: Value, readers: Readers) -> Value | None:
    """dy, where the node is w times dy v^T."""
    (other,) = [x for x in node.inputs if x is not weights][:1] or (weights,)
    source = _only(other, readers)
    if source is None or source.op != Matmul(False, True) or source.inputs[1] is not v:
        return None
    return source.inputs[0]


def _difference(first: Node, second: Node, weights: Value, readers: Readers) -> Value | None:
    """first - second, where the second is w times the row sums of the first."""
    (total,) = [x for x in second.inputs if x is not weights][:1] or (weights,)
    source = _only(total, readers)
    last = weights.type.ndim - 1
    if source is None or source.op != Sum((last,), True) or source.inputs[0] is not first.output:
        return None
    readers_of_first = [n for n in readers[first.output] if n is not source]
    if len(readers_of_first) != 1 or len(readers[second.output]) != 1:
        return None
    node = readers_of_first[0]
    if node is None or node.op != Sub() or node.inputs != (first.output, second.output):
        return None
    return node.output


def _unmasked(value: Value, mask: tuple[Value, ...], readers: Readers) -> Value:
    """The difference behind a choice that makes it 0 where a key is hidden, as it is anyway."""
    node = readers[value][0] if len(readers[value]) == 1 else None
    if node is None or not isinstance(node.op, Where) or node.inputs[:2] != (*mask, value):
        return value
    return node.output if _number(node.inputs[2]) == 0 else value


def _descaled(value: Value, scale: float, readers: Readers) -> Value | None:
    """The difference behind its factor; a cotangent that is used otherwise cannot be dropped."""
    if scale == 1.0:
        return value
    node = readers[value][0] if len(readers[value]) == 1 else None
    if node is None or not isinstance(node.op, (Mul, Div)):
        return None
    numbers = [_number(x) for x in node.inputs]
    number = numbers[1] if numbers[1] is not None else numbers[0]
    if number is None or (isinstance(node.op, Div) and numbers[1] is None):
        return None
    found = number if isinstance(node.op, Mul) else 1 / number
    return node.output if math.isclose(found, scale, rel_tol=1e-6) else None


# -- replacing ---------------------------------------------------------------------------------


def _replaced(graph: Graph, matches: list[_Match]) -> Graph:
    """The graph with ops for the matches; what they replace is left without readers.

    A gradient's three values are all made where the first of them was: each depends on dy, so
    that all the op reads is there.
    """
    forward = {m.result: m for m in matches}
    backward = {v: m.backward for m in matches if m.backward for v in m.backward.made}
    operands = {m.backward: m for m in matches if m.backward}
    builder = GraphBuilder(graph.name)
    builder.adopt(graph.inputs, as_inputs=True)
    inside: dict[Value, Value] = {v: v for v in graph.inputs}
    for node in graph.nodes:
        value = node.outputs[0]
        made = node.outputs
        if value in forward:
            m = forward[value]
            read = (m.q, m.k, m.v, *m.mask)
            copy = builder.add(Attention(m.causal, m.scale), _known(inside, read), (), node.loc)
        elif value not in backward:
            copy = builder.copy(node, _known(inside, node.inputs))
        elif value in inside:
            continue
        else:
            m, made = operands[backward[value]], backward[value].made
            read = (m.q, m.k, m.v, backward[value].dy, *m.mask)
            copy = builder.add(AttentionGrad(m.causal, m.scale), _known(inside, read), (), node.loc)
        inside.update(zip(made, copy.outputs, strict=True))
    done = graph.with_nodes(builder.build().nodes, (inside[v] for v in graph.outputs))
    return DeadCode()(done)


def _known(inside: Mapping[Value, Value], values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(inside[v] for v in values)
