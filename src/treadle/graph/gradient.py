"""Reverse-mode differentiation of graphs, control flow included.

Source of the loop rule: Griewank and Walther, Evaluating Derivatives, 2nd ed., chapter 4: run
forward and keep the state of every turn, then walk the turns backwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from treadle.base import dtype as dt
from treadle.base.errors import NoGradient
from treadle.base.guards import asking_nothing
from treadle.base.symbol import Dim, is_identical, symbol, symbols_of
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand, reordered
from treadle.graph.ir import Graph, Node, Value, symbols_in
from treadle.graph.silent import silent
from treadle.ops.control import (
    Cond,
    FindingCond,
    FindingWhile,
    FindingWhileGradient,
    Scan,
    While,
)
from treadle.ops.creation import Iota
from treadle.ops.gather import Take, numbering
from treadle.ops.op import Op, Pullback
from treadle.ops.reverse import TapeEntry, backpropagate

Operands = tuple[GraphOperand, ...]


def value_and_gradient(graph: Graph, wanted: Sequence[int] | None = None) -> Graph:
    """The graph's outputs followed by the gradient of its first output.

    Args:
        graph: its first output is a 0-d float.
        wanted: positions of the inputs to differentiate by; None: all floating ones.

    Raises:
        NoGradient: the first output is not a 0-d float, or an op on the way has no gradient.
    """
    _check_scalar(graph)
    builder, inside = _continued(graph)
    first = inside[graph.outputs[0]]
    seeds: dict[Hashable, GraphOperand] = {graph.outputs[0]: first.constant(1.0)}
    places = _float_inputs(graph) if wanted is None else tuple(wanted)
    grads = _gradients(graph, inside, seeds, [graph.inputs[i] for i in places])
    builder.output(*(inside[v] for v in graph.outputs), *grads)
    return builder.build()


def pullback(
    graph: Graph,
    needs: Sequence[bool] | None = None,
    cotangents: Sequence[TensorType] | None = None,
) -> Graph:
    """The vector-Jacobian product of a graph, as a graph.

    Its inputs are those of the graph, then one cotangent per floating output; its outputs are the
    cotangents of the inputs for which `needs` holds (None: all floating ones), zero where
    nothing depends on them. What it computes of the graph once more is not printed again.

    Args:
        graph: what is differentiated.
        needs: for each input, whether its cotangent is wanted.
        cotangents: types of the cotangents of floating outputs, where extents that the graph finds
            have other names in them; None: those of the outputs.
    """
    graph = silent(graph)
    builder, inside = _continued(graph)
    seeds: dict[Hashable, GraphOperand] = {}
    floating = [v for v in graph.outputs if is_differentiable(v.type)]
    given = [v.type for v in floating] if cotangents is None else cotangents
    inputs = [
        builder.input(type_, "d_" + value.name if value.name else "")
        for value, type_ in zip(floating, given, strict=True)
    ]
    chosen = [is_differentiable(t) for t in graph.input_types] if needs is None else needs
    wanted = [v for v, need in zip(graph.inputs, chosen, strict=True) if need]
    with asking_nothing():  # As in type rules: data may decide extents in it.
        for value, dy in zip(floating, inputs, strict=True):
            seed = _sized(dy, value.type)
            seeds[value] = seeds[value] + seed if value in seeds else seed
        builder.output(*_gradients(graph, inside, seeds, wanted))
    return builder.build()


def _sized(dy: GraphOperand, wanted: TensorType) -> GraphOperand:
    """A cotangent whose extents are called as those of a type, which they equal."""
    for axis, extent in enumerate(wanted.shape):
        if not is_identical(dy.type.shape[axis], extent):
            (every,) = dy.apply(Iota(0, 1, extent, dt.int32), ())
            dy = Take(axis)(dy, every)
    return dy


def is_differentiable(type_: TensorType) -> bool:
    """Return whether values of this type carry gradients."""
    return type_.dtype.is_inexact


def _check_scalar(graph: Graph) -> None:
    if not graph.outputs or graph.outputs[0].type.shape != ():
        raise NoGradient(
            f"graph {graph.name}",
            "the first output is not one number",
            saw=", ".join(map(str, graph.output_types)),
            hint="sum the result, or use pullback() with a cotangent",
        )
    if not is_differentiable(graph.outputs[0].type):
        raise NoGradient(f"graph {graph.name}", "the first output is not a floating-point number")


def _float_inputs(graph: Graph) -> tuple[int, ...]:
    return tuple(i for i, t in enumerate(graph.input_types) if is_differentiable(t))


def _continued(graph: Graph) -> tuple[GraphBuilder, dict[Value, GraphOperand]]:
    """A builder that holds a copy of the graph, and the graph's values in it."""
    builder = GraphBuilder(graph.name)
    inside = {v: builder.input(v.type, v.name) for v in graph.inputs}
    for node in graph.nodes:
        inputs = tuple(inside[v].value for v in node.inputs)
        outputs = builder.copy(node, inputs).outputs
        inside.update((v, builder.operand(o)) for v, o in zip(node.outputs, outputs, strict=True))
    return builder, inside


def _gradients(
    graph: Graph,
    inside: dict[Value, GraphOperand],
    seeds: dict[Hashable, GraphOperand],
    wanted: Sequence[Value],
) -> list[GraphOperand]:
    steps = [_step(node, inside) for node in graph.nodes]
    found = backpropagate(steps, seeds, wanted)
    return [found[v] if v in found else zeros(inside[v]) for v in wanted]


def _step(node: Node, inside: dict[Value, GraphOperand]) -> TapeEntry[GraphOperand]:
    def values() -> tuple[Operands, Operands]:
        operand = inside[node.outputs[0]]
        operand.builder.loc = node.loc
        return tuple(inside[v] for v in node.inputs), tuple(inside[v] for v in node.outputs)

    inputs = tuple(v if is_differentiable(v.type) else None for v in node.inputs)
    return TapeEntry(differentiable(node.op), inputs, node.outputs, values)


def zeros(like: Any) -> Any:
    """Zeros of an operand's type."""
    return like.constant(0.0).broadcast_to(like.type.shape)


# -- control flow ------------------------------------------------------------------------------


def differentiable(op: Op) -> Op:
    """The op with its gradient rule, where that needs graphs; any other op itself."""
    if type(op) is Cond:
        return _Cond(op.then, op.otherwise)
    if type(op) is FindingCond:
        return _FindingCond(op.then, op.otherwise, op.found)
    if type(op) is FindingWhile:
        return _FindingWhile(op.condition, op.body, op.found)
    if type(op) is Scan:
        return _Scan(op.body, op.n_carried, op.length, op.backwards)
    if type(op) is While:
        return _While(op.condition, op.body)
    return op


def undifferentiable(op: Op) -> Op:
    """The op as it stands in graphs: what `differentiable` was given."""
    if type(op) in (_Cond, _FindingCond, _FindingWhile, _Scan, _While):
        plain: Op = type(op).__bases__[0](*[getattr(op, name) for name in op._fields])
        return plain
    return op


class _Cond(Cond):
    """A branch is differentiated by differentiating both and taking the same one."""

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        then, otherwise = _region(self, self.then), _region(self, self.otherwise)
        predicate, *xs = at.inputs
        needs = at.needs[1:]
        op = Cond(pullback(then, needs), pullback(otherwise, needs))
        given = (predicate, *xs, *_cotangents(at.outputs, at.dys))
        return None, *_spread(_outputs(op, given), needs)


class _FindingCond(FindingCond):
    """As `_Cond`: in each branch the cotangents are called as what that branch finds."""

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        predicate, *xs = at.inputs
        needs, dys = at.needs[1:], _cotangents(at.outputs, at.dys)
        types = [_unplaced(y.type) for y in dys]
        then, otherwise = (
            pullback(_region(self, r), needs, types) for r in (self.then, self.otherwise)
        )
        return None, *_spread(_outputs(Cond(then, otherwise), (predicate, *xs, *dys)), needs)


class _FindingWhile(FindingWhile):
    """The turns are run once more, keeping the state of every turn, then walked backwards."""

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        condition, body = _region(self, self.condition), silent(_region(self, self.body))
        carried = [is_differentiable(t) for t in body.input_types]
        known = {s.name for s in symbols_in(body.input_types)}
        later: dict[Dim, Dim] = {}
        for extent in (body.output_types[i].shape[axis] for i, axis in self.found):
            if extent not in later and not symbols_of(extent) <= known:
                later[extent] = symbol(f"later{numbering().fresh()}", 0)
        types = [
            _unplaced(t).with_shape(tuple(later.get(d, d) for d in t.shape))
            for t in body.output_types
            if is_differentiable(t)
        ]
        back = pullback(body, carried, types)
        op = FindingWhileGradient(silent(condition), body, self.found, back, tuple(later.values()))
        results = _outputs(op, (*at.inputs, *_cotangents(at.outputs, at.dys)))
        return tuple(
            x if need else None for x, need in zip(_spread(results, carried), at.needs, strict=True)
        )


class _Scan(Scan):
    """A loop is run once more keeping what every turn changes, then walked backwards."""

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        body, n = _region(self, self.body), self.n_carried
        stacked = at.inputs[n:]
        passed = [i for i in range(n) if body.outputs[i] is body.inputs[i]]
        changing = [i for i in range(n) if i not in passed]
        keeping = Scan(_keeping(body, changing), n, self.length, self.backwards)
        states = _outputs(keeping, at.inputs)[len(at.outputs) :]
        # A state needs its cotangent on every turn, whoever asked for the first one.
        carried = [is_differentiable(t) for t in body.input_types[:n]]
        needs = [*carried, *at.needs[n:]]
        first, count = sum(carried), len(body.inputs)
        # A turn backwards carries the cotangents of the state, and what no turn changes: those
        # come before the rest.
        order = [*range(count, count + first), *passed, *changing, *range(n, count)]
        region = reordered(pullback(body, needs), order)
        after = first + len(passed)
        outputs = *region.outputs[:first], *region.inputs[first:after], *region.outputs[first:]
        turned = Scan(
            region.with_nodes(region.nodes, outputs), after, self.length, not self.backwards
        )
        dys = _cotangents(at.outputs, at.dys)
        same = [at.inputs[i] for i in passed]
        results = _outputs(turned, (*dys[:first], *same, *states, *stacked, *dys[first:]))
        d_state = _spread(results[:first], carried)
        return *d_state, *_spread(results[after:], at.needs[n:])


class _While(While):
    """As `_FindingWhile`: Python keeps the states, as many as there are turns."""

    def vjp(self, at: Pullback[Any]) -> tuple[Any, ...]:
        return _FindingWhile(self.condition, self.body, ()).vjp(at)


def _outputs(op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Apply an op; on Tensors so that an outer tape can differentiate it again."""
    in_graph = any(isinstance(x, GraphOperand) for x in operands)
    return (op if in_graph else differentiable(op)).outputs(*operands)


def _region(op: Op, region: object) -> Graph:
    if not isinstance(region, Graph):
        raise NoGradient(op.name, "its region is a Python function, not a graph")
    return region


def _cotangents(outputs: Sequence[Any], dys: Sequence[Any]) -> list[Any]:
    """One cotangent per floating output, zeros for those that are missing."""
    return [
        zeros(y) if dy is None else dy
        for y, dy in zip(outputs, dys, strict=True)
        if is_differentiable(y.type)
    ]


def _spread(found: Sequence[Any], needs: Sequence[bool]) -> list[Any]:
    """The cotangents at the places that need one, None elsewhere."""
    left = iter(found)
    return [next(left) if need else None for need in needs]


def _keeping(body: Graph, states: Sequence[int]) -> Graph:
    """The body with states it was given, by number, as further results."""
    body = silent(body)
    more = [body.inputs[i] for i in states]
    return Graph(body.name, body.inputs, body.nodes, (*body.outputs, *more), body.guards)


def _unplaced(type_: TensorType) -> TensorType:
    """The type without a device: regions run where their op does."""
    return TensorType(type_.dtype, type_.shape)
