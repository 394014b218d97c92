"""Orders of expressions: dependencies, sorting, checks; and graphs as flat lists.

Expressions refer to one another through nodes, in chains as long as the model is deep, which
copying and pickling cannot follow recursively; so graphs are copied as flat lists.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

from treadle.base.errors import EditError
from treadle.traced_module.expr import Expr, Input
from treadle.traced_module.node import Node


def needed_for(nodes: Iterable[Node]) -> set[int]:
    """Ids of all expressions that some nodes depend on."""
    seen: set[int] = set()
    waiting = [node.expr for node in nodes]
    while waiting:
        expr = waiting.pop()
        if id(expr) not in seen:
            seen.add(id(expr))
            waiting += [node.expr for node in expr.inputs]
    return seen


def last_uses(graph: Any) -> dict[int, list[Node]]:
    """Return for each expression, by id, the nodes that nothing needs after it."""
    last: dict[Node, Expr] = {}
    for expr in graph._exprs:
        for node in (*expr.inputs, *expr.outputs):
            last[node] = expr
    for node in graph._outputs:
        last.pop(node, None)
    found: dict[int, list[Node]] = {}
    for node, expr in last.items():
        found.setdefault(id(expr), []).append(node)
    return found


def renumber_doubles(graph: Any) -> None:
    """Number nodes and expressions anew where two have one number, sub-graphs included."""
    numbers = [node._id for node in graph.nodes()], [expr._id for expr in graph.exprs()]
    if any(len(set(each)) < len(each) for each in numbers):
        graph._reset_ids()


def count_users(graph: Any) -> None:
    """Count every node's users anew, after expressions were changed by hand."""
    for expr in graph._all_exprs():
        for node in expr.outputs:
            node.users = []
    for expr in graph._exprs:
        for node in expr.inputs:
            node.users.append(expr)


def check(graph: Any) -> None:
    """Raise `EditError` where an expression uses a node before it is made, or one of elsewhere."""
    made: set[Node] = set(graph._inputs)
    there = {node for expr in graph._exprs for node in expr.outputs}
    for expr in graph._exprs:
        for node in expr.inputs:
            if node not in made:
                raise _unmade(graph, node, str(expr), node in there)
        made.update(expr.outputs)
    for node in graph._outputs:
        if node not in made:
            raise _unmade(graph, node, "what the graph returns", False)


def _unmade(graph: Any, node: Node, user: str, later: bool) -> EditError:
    if later:
        problem = f"node {node.name} is used before it is made"
        hint = "call graph.compile(), which sorts, or insert its expression earlier"
    else:
        problem = f"node {node.name} is used, and nothing in the graph makes it"
        hint = "insert its expression, or replace the node with replace_node()"
    return EditError(f"graph {graph.name}", problem, saw=f"used by {user}", hint=hint)


def sorted_exprs(graph: Any) -> list[Expr]:
    """The expressions with every node made before it is used, else in their present order.

    Raises:
        EditError: expressions depend on one another in a circle, or on nodes of elsewhere.
    """
    exprs: list[Expr] = graph._exprs
    place = {id(expr): i for i, expr in enumerate(exprs)}
    waits = [len({id(n.expr) for n in expr.inputs if id(n.expr) in place}) for expr in exprs]
    users: dict[int, set[int]] = {}
    for i, expr in enumerate(exprs):
        for node in expr.inputs:
            if id(node.expr) in place:
                users.setdefault(id(node.expr), set()).add(i)
    ready = [i for i, count in enumerate(waits) if not count]
    found: list[Expr] = []
    while ready:
        expr = exprs[heapq.heappop(ready)]
        found.append(expr)
        for i in users.get(id(expr), ()):
            waits[i] -= 1
            if not waits[i]:
                heapq.heappush(ready, i)
    if len(found) < len(exprs):
        circle = next(e for i, e in enumerate(exprs) if waits[i])
        raise EditError(
            f"graph {graph.name}",
            "expressions depend on one another in a circle",
            saw=str(circle),
            hint="undo the last set_arg or replace_inputs",
        )
    before, graph._exprs[:] = list(exprs), found
    try:
        check(graph)
    except EditError:
        graph._exprs[:] = before
        raise
    return found


# -- flat forms ----------------------------------------------------------------------------------

GRAPH_FIELDS = ("_name", "qualname", "arg_def", "out_def", "variant")
_SKIPPED = frozenset({"inputs", "outputs", "top_graph"})
_NODE_SKIPPED = frozenset({"expr", "users", "_graph"})


def flat(graph: Any) -> dict[str, Any]:
    """A graph as a dict of plain containers; expressions refer to nodes by position."""
    exprs = list(graph._all_exprs())
    nodes = [node for expr in exprs for node in expr.outputs]
    index = {node: i for i, node in enumerate(nodes)}
    check(graph)
    return {
        "fields": {name: getattr(graph, name) for name in GRAPH_FIELDS},
        "nodes": [(type(n), _fields(n, _NODE_SKIPPED)) for n in nodes],
        "exprs": [
            (
                type(e),
                _fields(e, _SKIPPED),
                [index[n] for n in e.inputs],
                [index[n] for n in e.outputs],
            )
            for e in exprs
        ],
        "inputs": [index[n] for n in graph._inputs],
        "outputs": [index[n] for n in graph._outputs],
    }


def _fields(thing: Any, skipped: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in vars(thing).items() if key not in skipped}


def unflatten_into(graph: Any, state: dict[str, Any]) -> None:
    """Fill an empty graph with what `flat` made."""
    vars(graph).update(state["fields"])
    nodes: list[Node] = []
    for cls, fields in state["nodes"]:
        node = cls.__new__(cls)
        vars(node).update(fields, users=[], expr=None)
        nodes.append(node)
    for cls, fields, inputs, outputs in state["exprs"]:
        expr = cls.__new__(cls)
        vars(expr).update(fields, inputs=[], outputs=[nodes[i] for i in outputs])
        expr._take([nodes[i] for i in inputs])
        graph._adopt(expr)
        for node in expr.outputs:
            node.expr = expr
        if not isinstance(expr, Input):
            graph._exprs.append(expr)
    graph._inputs[:] = [nodes[i] for i in state["inputs"]]
    graph._outputs[:] = [nodes[i] for i in state["outputs"]]
