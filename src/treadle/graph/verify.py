"""Checks that a graph is well formed; the errors name the node and its line in the text."""

from __future__ import annotations

from treadle.base.errors import GraphError, TreadleError
from treadle.base.guards import granted, recording_guards
from treadle.base.symbol import Relation
from treadle.graph.analysis import live_nodes, topological_order
from treadle.graph.ir import (
    Graph,
    Node,
    Value,
    differ_in_new_symbols,
    regions_of,
    result_types,
    symbols_of,
)
from treadle.graph.printer import node_lines, to_text
from treadle.graph.spec import CAPTURED, StageRules


def verify(graph: Graph, spec: StageRules = CAPTURED) -> None:
    """Raise `GraphError` unless the graph, its regions included, is well formed.

    Checked: every value is defined once and before it is used, results have the types their ops
    infer, guards cover what the type rules need, symbols have one range each, and every node is
    legal after the stage of `spec`.
    """
    _check_inputs(graph)
    defined: set[Value] = set(graph.inputs)
    seen: set[Node] = set()
    guards = set(graph.guards)
    with recording_guards() as needed:
        for node in graph.nodes:
            if node in seen:
                raise _error(graph, node, "the node appears twice")
            seen.add(node)
            _check_uses(graph, node, defined)
            _check_outputs(graph, node, defined)
            _check_types(graph, node)
            _check_guards(graph, node, guards, needed)
            reason = spec.refuse(node)
            if reason:
                raise _error(graph, node, f"illegal after {spec.name}: {reason}")
            for region in regions_of(node.op):
                _check_region(graph, node, region, spec)
    for i, value in enumerate(graph.outputs):
        if value not in defined:
            raise GraphError(f"graph {graph.name}", f"output {i} is not defined in the graph")
    _check_symbols(graph)
    if spec.no_dead_nodes:
        _check_alive(graph, spec)


def _check_inputs(graph: Graph) -> None:
    where = f"graph {graph.name}"
    if len(set(graph.inputs)) != len(graph.inputs):
        raise GraphError(where, "an input appears twice")
    for i, value in enumerate(graph.inputs):
        if value.producer is not None or value.index != i:
            raise GraphError(where, f"input {i} is not an input value of position {i}")


def _check_uses(graph: Graph, node: Node, defined: set[Value]) -> None:
    for i, value in enumerate(node.inputs):
        if value in defined:
            continue
        # A cycle also shows as a use before a definition, and deserves the better message.
        topological_order(graph.nodes, graph.name)
        inside = value.producer in graph.nodes
        problem = "is used before it is defined" if inside else "is not defined in the graph"
        raise _error(graph, node, f"input {i} {problem}")


def _check_outputs(graph: Graph, node: Node, defined: set[Value]) -> None:
    for i, value in enumerate(node.outputs):
        if value in defined:
            raise _error(graph, node, f"output {i} is defined twice")
        if value.producer is not node or value.index != i:
            raise _error(graph, node, f"output {i} does not point back at the node")
        defined.add(value)


def _check_types(graph: Graph, node: Node) -> None:
    try:
        types = result_types(node.op, node.inputs)
    except TreadleError as problem:
        raise _error(graph, node, f"{problem.problem}; {problem.saw}") from problem
    found = tuple(v.type for v in node.outputs)
    if types != found and not differ_in_new_symbols(node.op, node.inputs, types, found):
        expected, actual = ", ".join(map(str, types)), ", ".join(map(str, found))
        raise _error(graph, node, f"has type {actual}, but the op infers {expected}")


def _check_guards(
    graph: Graph, node: Node, guards: set[Relation], needed: dict[Relation, None]
) -> None:
    """Raise unless the guards cover what the node's type rule asked for just now."""
    for relation in needed:
        if relation not in guards and not granted(relation):
            raise _error(graph, node, f"needs the guard {relation}, which the graph lacks")
    needed.clear()


def _check_region(graph: Graph, node: Node, region: Graph, spec: StageRules) -> None:
    try:
        verify(region, spec)
    except GraphError as problem:
        inside = f"in region {region.name}: {problem.problem}"
        raise _error(graph, node, inside) from problem


def _check_symbols(graph: Graph) -> None:
    ranges: dict[str, object] = {}
    for symbol in symbols_of(graph):
        if ranges.setdefault(symbol.name, symbol) != symbol:
            raise GraphError(
                f"graph {graph.name}",
                f"the extent {symbol.name} has two ranges",
                hint="use one symbol, or give the second another name",
            )


def _check_alive(graph: Graph, spec: StageRules) -> None:
    live = live_nodes(graph)
    for node in graph.nodes:
        if node not in live:
            raise _error(graph, node, f"illegal after {spec.name}: nothing depends on the node")


def _error(graph: Graph, node: Node, problem: str) -> GraphError:
    """An error that shows the node as the text form does."""
    where = f"graph {graph.name}"
    try:
        line = node_lines(graph)[node]
        text = to_text(graph).splitlines()[line - 1].strip()
    except TreadleError:  # What cannot be printed can still be named.
        return GraphError(where, f"{node!r}: {problem}", at=node.loc)
    return GraphError(where, f"line {line}: {problem}", saw=text, at=node.loc)
