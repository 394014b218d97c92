"""Inlining the graphs of called modules into the graph that calls them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from treadle.traced_module.expr import CallMethod, Expr, GetAttr, Input, SetAttr
from treadle.traced_module.graph import InternalGraph, fresh_name
from treadle.traced_module.node import ModuleNode, Node

_OWN = frozenset({"inputs", "outputs", "top_graph", "arg_def", "_id"})


def flatten(module: Any) -> Any:
    """A copy of a traced module with all graphs of sub-modules inlined."""
    made = copy.deepcopy(module)
    graphs = [_Inliner(graph).run() for graph in vars(made)["_graphs"]]
    for graph in graphs:
        graph.owner = made
    kept = {id(each) for graph in graphs for called in _called(graph) for each in called.modules()}
    for inner in made.modules():
        # Editing the one graph there is now must not leave others that half follow.
        if "_graphs" in vars(inner) and id(inner) not in kept:
            vars(inner)["_graphs"][:] = []
    vars(made)["_graphs"][:] = graphs
    made.attach()
    return made


def _called(graph: InternalGraph) -> Iterator[Any]:
    """Traced modules that a flattened graph goes on calling."""
    for expr in graph._exprs:
        if isinstance(expr, CallMethod) and expr.graph is not None:
            yield expr.graph.owner


def renumber(graph: InternalGraph) -> None:
    """Number nodes and expressions, sub-graphs included, from 0 in order."""
    count = 0
    for i, expr in enumerate(graph.exprs()):
        expr._id = i
        for node in expr.outputs:
            node._id = count
            count += 1


class _Inliner:
    """Writes one graph, and those it calls, into a new one.

    While it goes, a module is known by its path from the outermost one, everything else by its
    new node.
    """

    def __init__(self, graph: InternalGraph) -> None:
        self._source = graph
        self._made = InternalGraph(graph.name, graph.qualname)
        self._known: dict[Node, Node | str] = {}
        self._attributes: dict[str, Node] = {}
        self._names: set[str] = set()

    def run(self) -> InternalGraph:
        """The new graph."""
        source, made = self._source, self._made
        made.arg_def, made.out_def, made.variant = source.arg_def, source.out_def, source.variant
        for node in source._inputs:
            new = self._copied(node, Input(), node.name)
            new.expr.return_val = new
            made._adopt(new.expr)
            made._inputs.append(new)
            self._known[node] = new
        self._known[source._inputs[0]] = ""
        self._inline(source, "")
        made._outputs[:] = [self._node(node) for node in source._outputs]
        renumber(made)
        return made

    def _inline(self, graph: InternalGraph, prefix: str) -> None:
        for expr in graph._exprs:
            called = expr.graph if isinstance(expr, CallMethod) else None
            if called is not None and not called.owner.is_qat:
                self._call(expr, called)
            elif isinstance(expr, GetAttr):
                self._attribute(expr)
            elif isinstance(expr, SetAttr):
                path = _join(self._path(expr.inputs[0]), expr.name)
                self._add(SetAttr(self._made._inputs[0], path, self._node(expr.inputs[1])))
            else:
                self._clone(expr, prefix)

    def _call(self, expr: Expr, called: InternalGraph) -> None:
        for inner, outer in zip(called._inputs, expr.inputs, strict=True):
            self._known[inner] = self._known[outer]
        path = self._known[expr.inputs[0]]
        self._inline(called, path.replace(".", "_") if isinstance(path, str) else "")
        for mine, theirs in zip(expr.outputs, called._outputs, strict=True):
            self._known[mine] = self._known[theirs]

    def _attribute(self, expr: GetAttr) -> None:
        """Modules are only remembered; a tensor is fetched from the outermost module."""
        node = expr.outputs[0]
        path = _join(self._path(expr.inputs[0]), expr.name)
        self._known[node] = path
        if not isinstance(node, ModuleNode):
            self._known[node] = self._fetched(path, node)

    def _path(self, node: Node) -> str:
        found = self._known[node]
        return found if isinstance(found, str) else ""

    def _node(self, node: Node) -> Node:
        """The new node of an old one; a module that is used is fetched now."""
        found = self._known[node]
        return self._fetched(found, node) if isinstance(found, str) else found

    def _fetched(self, path: str, like: Node) -> Node:
        if not path:
            return self._made._inputs[0]
        if path not in self._attributes:
            expr = GetAttr(self._made._inputs[0], path)  # type: ignore[arg-type]
            node = self._copied(like, expr, path.replace(".", "_"))
            expr.return_val = node
            self._add(expr)
            self._attributes[path] = node
        return self._attributes[path]

    def _clone(self, expr: Expr, prefix: str) -> None:
        new = type(expr).__new__(type(expr))
        vars(new).update({k: v for k, v in vars(expr).items() if k not in _OWN})
        vars(new).update(inputs=[], outputs=[], arg_def=expr.arg_def, _id=0)
        new._take([self._node(node) for node in expr.inputs])
        before = f"{prefix}_" if prefix else ""
        new.outputs = [self._copied(node, new, before + node.name) for node in expr.outputs]
        self._known.update(zip(expr.outputs, new.outputs, strict=True))
        self._add(new)

    def _copied(self, node: Node, expr: Expr, name: str) -> Node:
        new = type(node).__new__(type(node))
        vars(new).update(vars(node))
        vars(new).update(expr=expr, users=[], _graph=None)
        new._name = fresh_name(name, self._names)
        self._names.add(new._name)
        return new

    def _add(self, expr: Expr) -> None:
        self._made._adopt(expr)
        self._made._exprs.append(expr)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
