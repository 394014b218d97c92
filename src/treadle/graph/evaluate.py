"""Runs graphs with the oracles of their ops: the meaning of a graph, and slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.base.errors import GraphError, ShapeError
from treadle.base.symbol import Expr, Symbol
from treadle.base.symbol import evaluate as evaluate_extent
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value, symbols_of
from treadle.ops.op import Array, Op, as_tuple

Observe = Callable[[Node, tuple[Array, ...]], None]


def evaluate(
    graph: Graph, arrays: Sequence[Array], observe: Observe | None = None
) -> tuple[Array, ...]:
    """The outputs for the given inputs.

    Symbolic extents take their values from the shapes of the arrays.

    Args:
        graph: what to run.
        arrays: one per input, of its element type and shape.
        observe: called with every node and its results, in order.

    Raises:
        ShapeError, GraphError: the arrays do not fit the inputs, or break a guard.
    """
    given = [np.asarray(a) for a in arrays]
    if symbols_of(graph):
        graph = specialize(graph, bind(graph, given))
    _check_arguments(graph, given)
    if observe is None:
        return graph.evaluate(given)
    known: dict[Value, Array] = dict(zip(graph.inputs, given, strict=True))
    for node in graph.nodes:
        results = as_tuple(node.op.reference(*[known[v] for v in node.inputs]))
        observe(node, results)
        known.update(zip(node.outputs, results, strict=True))
    return tuple(known[v] for v in graph.outputs)


def _check_arguments(graph: Graph, arrays: Sequence[Array]) -> None:
    where = f"graph {graph.name}"
    if len(arrays) != len(graph.inputs):
        raise GraphError(where, f"takes {len(graph.inputs)} inputs, got {len(arrays)}")
    for i, (type_, array) in enumerate(zip(graph.input_types, arrays, strict=True)):
        if array.dtype != type_.dtype.numpy or array.shape != type_.shape:
            seen = f"{array.dtype}[{','.join(map(str, array.shape))}]"
            raise ShapeError(where, f"input {i} should be {type_}, got {seen}")


def bind(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """Values of the symbols, read off the extents that are a symbol alone; guards are checked."""
    values: dict[str, int] = {}
    for value, array in zip(graph.inputs, arrays, strict=False):
        for extent, actual in zip(value.type.shape, array.shape, strict=False):
            symbol = _as_symbol(extent)
            if symbol is not None:
                _check_range(graph, symbol, values.setdefault(symbol.name, actual))
    for guard in graph.guards:
        if not guard.holds(values):
            raise ShapeError(f"graph {graph.name}", f"the guard {guard} fails", saw=str(values))
    return values


def _as_symbol(extent: object) -> Symbol | None:
    if isinstance(extent, Expr) and len(extent.terms) == 1:
        (monomial, coefficient) = extent.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def _check_range(graph: Graph, symbol: Symbol, value: int) -> None:
    high = value if symbol.high is None else symbol.high
    if not symbol.low <= value <= high or value % symbol.multiple:
        raise ShapeError(
            f"graph {graph.name}", f"the extent {symbol.name} cannot be {value}", saw=str(symbol)
        )


def specialize(graph: Graph, values: Mapping[str, int]) -> Graph:
    """The graph for given values of its symbolic extents, in types, attributes and regions."""
    renamed: dict[Value, Value] = {}
    for value in graph.inputs:
        renamed[value] = Value(_substitute(value.type, values), None, value.index, value.name)
    inputs = tuple(renamed.values())
    nodes = []
    for node in graph.nodes:
        op = substitute_attributes(node.op, lambda v: _substitute(v, values))
        made = Node(op, tuple(renamed[v] for v in node.inputs), node.loc, node.names)
        renamed.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    return Graph(graph.name, inputs, tuple(nodes), tuple(renamed[v] for v in graph.outputs))


def substitute_attributes(op: Op, change: Callable[[Any], Any]) -> Op:
    """The op with `change` applied to every attribute; itself where nothing changes."""
    if not op._fields:
        return op
    before = op.attributes
    after = {name: change(value) for name, value in before.items()}
    if all(after[name] is before[name] for name in after):
        return op
    return dataclasses.replace(op, **after)  # type: ignore[type-var]


def _substitute(value: Any, values: Mapping[str, int]) -> Any:
    if isinstance(value, Expr):
        return evaluate_extent(value, values)
    if isinstance(value, TensorType):
        return value.with_shape(_substitute(value.shape, values))
    if isinstance(value, Graph):
        return specialize(value, values)
    if isinstance(value, tuple):
        return tuple(_substitute(v, values) for v in value)
    return value
