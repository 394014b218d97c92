"""Inserting expressions into a graph by calling functions on nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from treadle.base.errors import EditError
from treadle.module.module import Module
from treadle.module.path import set_at
from treadle.tensor import Tensor
from treadle.traced_module import order, recording
from treadle.traced_module.build import Builder
from treadle.traced_module.expr import Constant, Expr, GetAttr, Input
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import ModuleNode, Node, TensorNode
from treadle.traced_module.patch import detours
from treadle.traced_module.scope import Scope
from treadle.traced_module.tracer import Tracer


class Inserter(Tracer):
    """A tracer whose outermost scope is a graph that exists, and whose user handles nodes.

    Each node has a stand-in, a tensor of zeros of its shape and type, on which calls really run.
    """

    def __init__(self, graph: InternalGraph) -> None:
        super().__init__()
        self.exprs: list[Expr] = []
        self.scopes.append(Scope(graph, graph.owner, self.exprs))
        self._stand_ins: dict[Node, Any] = {}

    @property
    def inserting(self) -> bool:
        """True if the user handles nodes: not inside modules that are looked into."""
        return len(self.scopes) == 1 and self.listening

    # -- nodes and stand-ins ---------------------------------------------------------------

    def _value(self, node: Node) -> Any:
        if node.top_graph is not self.scope.graph:
            raise EditError(
                f"node {node.name}", f"it is not in graph {self.scope.graph.name}", hint=_OTHER
            )
        if node not in self._stand_ins:
            value = node.owner if isinstance(node, ModuleNode) else _stand_in(node)
            self._stand_ins[node] = value
            self.scope.bind(value, node)
        return self._stand_ins[node]

    def stands_for(self, node: Node) -> Any:
        """The value on which calls of a node really ran; None if nothing was called on it."""
        return self._stand_ins.get(node)

    def _values(self, given: Any) -> Any:
        return _mapped(given, lambda x: self._value(x) if isinstance(x, Node) else x)

    def _nodes(self, returned: Any) -> Any:
        def node_of(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            node = self.scope.node(x)
            self._stand_ins.setdefault(node, x)
            return node

        return _mapped(returned, node_of)

    # -- calls -----------------------------------------------------------------------------

    def call_function(self, func: Any, run: Callable[..., Any], args: Any, kwargs: Any, /) -> Any:
        """Record a call on nodes; it returns nodes."""
        if len(self.scopes) > 1:
            return super().call_function(func, run, args, kwargs)
        values = self._values((args, kwargs))
        return self._nodes(super().call_function(func, run, *values))

    def call_method(self, name: str, run: Callable[..., Any], args: Any, kwargs: Any, /) -> Any:
        """Record a call of a method, which may have nodes among its arguments."""
        values = self._values((args, kwargs))
        returned = super().call_method(name, run, *values)
        touched = any(new is not old for new, old in zip(values[0], args, strict=True))
        return self._nodes(returned) if touched else returned

    def call_definition(self, op: Any, inputs: Any, /) -> list[Any]:
        """Record the application of an op's definition to nodes; it returns nodes."""
        returned = super().call_definition(op, self._values(inputs))
        nodes: list[Any] = self._nodes(returned)
        return nodes

    def call_node(self, node: Any, method: str, args: Any, kwargs: Any, /) -> Any:
        """Call what a node stands for."""
        target = self._value(node)
        plain, named = self._values((args, kwargs))
        return self._nodes(getattr(target, method)(*plain, **named))

    def attribute(self, node: Any, name: str, /) -> Any:
        """An attribute of what a node stands for: a node for modules and tensors."""
        if isinstance(node, TensorNode):
            found = getattr(self._value(node), name)
            if not callable(found):
                return self._nodes(found)
            return lambda *args, **kwargs: self.call_node(node, name, args, kwargs)
        owner = self._value(node)
        held = vars(owner).get(name)
        return self._attribute_node(node, name, getattr(owner, name) if held is None else held)

    def _attribute_node(self, node: ModuleNode, path: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            items = enumerate(value)
            return [self._attribute_node(node, f"{path}.{i}", item) for i, item in items]
        if isinstance(value, dict):
            return {k: self._attribute_node(node, f"{path}.{k}", v) for k, v in value.items()}
        if not isinstance(value, (Module, Tensor)):
            return value
        known = self.scope.known(value)
        if known is None:
            expr = GetAttr(node, path)
            self.scope.get(expr, value)
            known = expr.outputs[0]
        self._stand_ins[known] = value
        return known


_OTHER = "edit each graph on its own, or call flatten() first"


def _stand_in(node: Any) -> Tensor:
    if isinstance(node.expr, Constant) and isinstance(node.expr.value, Tensor):
        held: Tensor = node.expr.value
        return held
    if node.shape is None or node.dtype is None:
        raise EditError(
            f"node {node.name}",
            "its shape or type is not known, so nothing can be inserted behind it",
            hint="set node.shape and node.dtype",
        )
    return Tensor(np.zeros(node.shape), dtype=node.dtype, device=node.device)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A nested value with every leaf changed."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_mapped(item, change) for item in value])
    if kind is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    if kind is slice:
        return slice(*(_mapped(v, change) for v in (value.start, value.stop, value.step)))
    return change(value)


class InsertExprs:
    """The context that `InternalGraph.insert_exprs` returns."""

    def __init__(self, graph: InternalGraph, expr: Expr | None) -> None:
        inside = expr is None or expr in graph._exprs
        if not inside and not (isinstance(expr, Input) and expr.top_graph is graph):
            raise EditError("insert_exprs", f"{expr} is not in graph {graph.name}", hint=_OTHER)
        if recording.SLOT.recorder is not None:
            raise EditError("insert_exprs", "something is being traced or inserted already")
        self._graph = graph
        self._after = expr
        self._inserter = Inserter(graph)
        self._stack = ExitStack()

    def __enter__(self) -> InsertExprs:
        outermost = self._graph
        while outermost.top_graph is not None:
            outermost = outermost.top_graph
        nodes, exprs = outermost._total_ids
        Node._set_next_id(nodes)
        Expr._set_next_id(exprs)
        self._stack.enter_context(detours(self._inserter))
        self._stack.enter_context(self._inserter.hooked())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stack.close()
        if kind is None:
            self._splice()
        else:
            self._discard()

    def _discard(self) -> None:
        for expr in self._inserter.exprs:
            expr._take([])

    def _splice(self) -> None:
        graph, new = self._graph, self._inserter.exprs
        before = list(graph._exprs)
        place = self._place()
        graph._exprs[place:place] = new
        try:
            order.check(graph)
        except EditError:
            graph._exprs[:] = before
            self._discard()
            raise
        self._set_modules()

    def _place(self) -> int:
        """Return the index behind the expression that was named, else behind everything needed."""
        exprs = self._graph._exprs
        if self._after is not None:
            return exprs.index(self._after) + 1 if self._after in exprs else 0
        index = {id(expr): i for i, expr in enumerate(exprs)}
        needed = [index.get(id(n.expr), -1) for e in self._inserter.exprs for n in e.inputs]
        return max(needed, default=-1) + 1

    def _set_modules(self) -> None:
        """Modules that were looked into become traced modules where they are attributes."""
        owner = self._graph.owner
        builder = Builder(self._inserter.traced)
        modules = {id(module) for module, _ in self._inserter.traced.values()}
        places = [(path, m) for path, m in owner.named_modules() if id(m) in modules]
        made = [(path, builder.build(module)) for path, module in places]
        for expr in self._inserter.exprs:
            if isinstance(expr, GetAttr):
                builder.hold(self._inserter.stands_for(expr.inputs[0]), expr.name)
        tops: tuple[str, ...] = ()
        for path, module in made:  # What is below one of them has come with it.
            if not path.startswith(tops):
                set_at(owner, path, module)
                tops += (f"{path}.",)
        owner.attach()


recording.OPENER.open = InsertExprs
