"""Runs graphs with the oracles of their ops: the meaning of a graph, and slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import GraphError, ShapeError, TreadleError
from treadle.base.extent import Symbol
from treadle.base.shape import Shape, format_shape
from treadle.base.symbol import Dim, Expr, Relation, always, extent_of
from treadle.base.symbol import evaluate as evaluate_extent
from treadle.base.symbol import symbols_of as symbols_of_extent
from treadle.base.types import TensorType
from treadle.graph.ir import (
    Graph,
    Node,
    Value,
    is_open_op,
    lone_symbol,
    retyped,
    symbols_in,
    with_types,
)
from treadle.ops.op import Op, as_tuple

Observe = Callable[[Node, tuple[Array, ...]], None]


def evaluate(
    graph: Graph, arrays: Sequence[Array], observe: Observe | None = None
) -> tuple[Array, ...]:
    """The outputs for the given inputs.

    Symbolic extents take their values from the shapes of inputs and results.

    Args:
        graph: what to run.
        arrays: one per input, of its element type and shape.
        observe: called with every node and its results, in order.

    Raises:
        ShapeError, GraphError: the arrays do not fit the inputs, or break a guard.
    """
    given = [np.asarray(a) for a in arrays]
    if len(given) != len(graph.inputs):
        raise GraphError(_name(graph), f"takes {len(graph.inputs)} inputs, got {len(given)}")
    extents = extents_of(graph, given)
    known: dict[Value, Array] = dict(zip(graph.inputs, given, strict=True))
    for node in graph.nodes:
        op = node.op
        if extents:
            op = substitute_attributes(op, lambda v: _substitute(v, extents))
        results = _results(op, node, [known[v] for v in node.inputs])
        for value, result in zip(node.outputs, results, strict=True):
            known[value] = result
            bind(graph, value.type, result, extents)
        if observe is not None:
            observe(node, results)
    return tuple(known[v] for v in graph.outputs)


def _results(op: Op, node: Node, arrays: list[Array]) -> tuple[Array, ...]:
    """Run one node; what its oracle refuses is reported with the op and the user's line."""
    try:
        return as_tuple(op.reference(*arrays))
    except TreadleError:
        raise
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        saw = ", ".join(f"{a.dtype}{format_shape(a.shape)}" for a in arrays)
        raise ShapeError(op.name, str(error), saw=saw, at=node.loc or None) from error


def _name(graph: Graph) -> str:
    return f"graph {graph.name}"


def _check_argument(
    graph: Graph, i: int, type_: TensorType, array: Array, extents: Mapping[str, int]
) -> None:
    wanted = _substitute(type_, extents)
    if array.dtype != type_.dtype.numpy or array.shape != wanted.shape:
        seen = f"{array.dtype}{format_shape(array.shape)}"
        raise ShapeError(_name(graph), f"input {i} should be {wanted}, got {seen}")


def _check_guards(graph: Graph, extents: Mapping[str, int]) -> None:
    guard = broken_guard(graph.guards, extents)
    if guard is not None:
        raise ShapeError(_name(graph), f"the guard {guard} fails", saw=str(dict(extents)))


def broken_guard(guards: Iterable[Relation], extents: Mapping[str, int]) -> Relation | None:
    """Return the first guard that extents, by symbol, break; None if there is none.

    Guards on other extents are left out: data decide those, and they are looked at when it runs.
    """
    known = (g for g in guards if symbols_of_extent(g.expr) <= extents.keys())
    return next((g for g in known if not g.holds(extents)), None)


def bind(graph: Graph, type_: TensorType, array: Any, extents: dict[str, int]) -> None:
    """Read the values of new symbols off the extents of an array that has the given type."""
    if type_.is_static or len(type_.shape) != len(array.shape):
        return
    for extent, actual in zip(type_.shape, array.shape, strict=True):
        symbol = lone_symbol(extent)
        if symbol is not None and symbol.name not in extents:
            _check_range(graph, symbol, actual)
            extents[symbol.name] = actual


def extents_of(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """Read the values of a graph's symbols off arrays for its inputs.

    Raises:
        ShapeError: an extent is out of its range, or another one than an expression of symbols
            says, or a guard fails.
    """
    extents: dict[str, int] = {}
    for i, (type_, array) in enumerate(zip(graph.input_types, arrays, strict=True)):
        bind(graph, type_, array, extents)
        _check_argument(graph, i, type_, array, extents)
    _check_guards(graph, extents)
    return extents


def _check_range(graph: Graph, symbol: Symbol, value: int) -> None:
    high = value if symbol.high is None else symbol.high
    if not symbol.low <= value <= high or value % symbol.multiple:
        problem = f"the extent {symbol.name} cannot be {value}"
        raise ShapeError(_name(graph), problem, saw=repr(symbol))


def bound_extents(pairs: Iterable[tuple[Shape, Shape]]) -> dict[str, int] | None:
    """Values of the symbols in shapes, given the extents that the shapes are, most often numbers.

    None where a shape is another one: it has other axes, a number differs, or a symbol is two.
    """
    found: dict[str, Any] = {}
    for shape, numbers in pairs:
        if len(shape) != len(numbers):
            return None
        for extent, number in zip(shape, numbers, strict=True):
            given = number if isinstance(number, Expr) else int(number)
            symbol = lone_symbol(extent)
            known = extent if symbol is None else found.setdefault(symbol.name, given)
            if known is not number and known != number:
                return None
    return found


def op_at(op: Op, values: Mapping[str, Dim]) -> Op:
    """The op with given values of symbolic extents in its attributes."""
    return substitute_attributes(op, _Substitution(values)) if is_open_op(op) else op


def specialize(graph: Graph, values: Mapping[str, Dim]) -> Graph:
    """The graph for given values of its symbolic extents, in types, attributes and regions.

    Guards on extents that are left are kept; the others must hold.
    """
    return _specialized(graph, _Substitution(values))


def _specialized(graph: Graph, change: _Substitution) -> Graph:
    renamed: dict[Value, Value] = {}
    for value in graph.inputs:
        renamed[value] = Value(change.type(value.type), None, value.index, value.name)
    inputs = tuple(renamed.values())
    nodes = []
    for node in graph.nodes:
        op = substitute_attributes(node.op, change) if is_open_op(node.op) else node.op
        given = tuple([renamed[v] for v in node.inputs])
        types = tuple([change.type(v.type) for v in node.outputs])
        if change.numbers and all(t.is_static for t in types):
            made = retyped(node, op, given, types)
        else:  # What data decide, or what is symbolic still, has narrower ranges now.
            made = with_types(Node(op, given, node.loc, node.names, node.group), types)
            change.follow(node, types, made)
        renamed.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    guards = (Relation(g.kind, change(g.expr)) for g in graph.guards)
    left = tuple(dict.fromkeys(g for g in guards if isinstance(g.expr, Expr) and not always(g)))
    outputs = tuple([renamed[v] for v in graph.outputs])
    return Graph(graph.name, inputs, tuple(nodes), outputs, left)


class _Substitution:
    """Puts values in the place of extents; every expression and type once.

    Attributes:
        numbers: whether all values are: rules of static types say the same at all extents.
    """

    def __init__(self, values: Mapping[str, Dim]) -> None:
        self._values = values
        self.numbers = all(isinstance(v, int) for v in values.values())
        self._extents: dict[Expr, Dim] = {}
        self._types: dict[int, TensorType] = {}

    def follow(self, node: Node, types: Sequence[TensorType], made: Node) -> None:
        """Put symbols that a node has invented in the place of those that it had.

        Those of its operands stay: a rule that gives 3 for one of them states a guard.
        """
        for before, value in zip(types, made.outputs, strict=True):
            for old, new in zip(before.shape, value.type.shape, strict=True):
                named = lone_symbol(old) if old is not new else None
                if named is None or named.name in self._values:
                    continue
                if named in symbols_in(tuple(v.type for v in node.inputs)):
                    continue
                self._values = {**self._values, named.name: new}
                self._extents.clear()
                self._types.clear()

    def type(self, before: TensorType) -> TensorType:
        """A type of the graph, which outlives this, with values."""
        if before.is_static:
            return before
        found = self._types.get(id(before))
        if found is None:
            found = self._types[id(before)] = before.with_shape(self(before.shape))
        return found

    def __call__(self, value: Any) -> Any:
        """An attribute with values."""
        if isinstance(value, Expr):
            found = self._extents.get(value)
            if found is None:
                found = self._extents[value] = _extent(value, self._values)
            return found
        if isinstance(value, tuple):
            return value if all(type(v) is int for v in value) else tuple(map(self, value))
        if isinstance(value, Graph):
            return _specialized(value, self)
        return self.type(value) if isinstance(value, TensorType) else value


def substitute_attributes(op: Op, change: Callable[[Any], Any]) -> Op:
    """The op with `change` applied to every attribute; itself where nothing changes."""
    if not op._fields:
        return op
    before = op.attributes
    after = {name: change(value) for name, value in before.items()}
    if all(after[name] is before[name] for name in after):
        return op
    return op.replace(**after)


def _substitute(value: Any, values: Mapping[str, Dim]) -> Any:
    if isinstance(value, Expr):
        return _extent(value, values)
    if isinstance(value, TensorType):
        return value.with_shape(_substitute(value.shape, values))
    if isinstance(value, Graph):
        return specialize(value, values)
    if isinstance(value, tuple) and not all(type(v) is int for v in value):
        return tuple(_substitute(v, values) for v in value)
    return value


def _extent(extent: Expr, values: Mapping[str, Dim]) -> Dim:
    """The extent's value; symbols that have none yet stay in it."""
    own = symbols_in(extent)
    if all([s.name in values for s in own]):
        return evaluate_extent(extent, values)
    if not any([s.name in values for s in own]):
        return extent
    left = {s.name: extent_of(s) for s in own if s.name not in values}
    return evaluate_extent(extent, {**values, **left})
