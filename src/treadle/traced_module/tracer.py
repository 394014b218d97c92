"""The tracer: runs a module once and writes down what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from treadle.base import modes
from treadle.base.errors import TraceError
from treadle.module.module import Module
from treadle.module.qat import QATModule
from treadle.tensor import Tensor, execute, wrap
from treadle.traced_module import catalog, checker
from treadle.traced_module.argspec import argspec_of, source_of
from treadle.traced_module.expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    Input,
    SetAttr,
    is_mutating,
)
from treadle.traced_module.extent import HostNumber, settled
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.hazard import Hazards
from treadle.traced_module.node import ModuleNode, Node, TensorNode
from treadle.traced_module.pytree import TreeDef, is_container, tree_flatten
from treadle.traced_module.scope import Scope


class Tracer:
    """Sees the calls a module makes, and keeps them as expressions of graphs.

    Functions, methods and built-in modules that are called by the user's code become one
    expression each; what they call in turn is not looked at. Calls of other modules open a scope
    of their own. An op that runs outside of all of them becomes an `Apply`.

    Attributes:
        traced: for the id of each module that was looked into, the module and its graphs.
    """

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.traced: dict[int, tuple[Module, list[InternalGraph]]] = {}
        self._depth = 0
        self._extents: list[HostNumber] = []
        self._seen: dict[int, tuple[Any, Scope]] = {}
        self._born: dict[int, Tensor] = {}
        self._hazards = Hazards()
        self._outer: modes.Hook | None = None

    # -- the hook for single ops -----------------------------------------------------------

    @property
    def listening(self) -> bool:
        """True if a call made now is the user's."""
        return not self._depth and bool(self.scopes)

    @property
    def inserting(self) -> bool:
        """True if nodes, not tensors, are what the user handles."""
        return False

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Record what runs inside as part of a call that is recorded as a whole."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Observe single ops of this thread in the block; whoever saw them before still does."""
        self._outer = modes.install(self)
        try:
            yield
        finally:
            modes.install(self._outer)
            for extent in self._extents:
                extent.origin = None

    def apply(self, op: Any, inputs: tuple[Any, ...], /) -> tuple[Any, ...]:
        """Run an op; record it unless a recorded call is what runs it."""
        heard = self.listening
        with self.unheard():
            outer = self._outer
            outputs = execute(op, inputs) if outer is None else outer.apply(op, inputs)
        if heard:
            self.record(Apply(op), op.name, inputs, {}, outputs)
        return outputs

    def binary(self, op: Any, launch: Any, kind: Any, x: Any, y: Any, /) -> Any:
        """The same for an arithmetic operator whose launch is known."""
        if self._outer is not None and not self.listening:
            return self._outer.binary(op, launch, kind, x, y)
        return self.apply(op, (x, y))[0]

    # -- calls -----------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """The innermost scope."""
        return self.scopes[-1]

    def call_function(self, func: Any, run: Callable[..., Any], args: Any, kwargs: Any, /) -> Any:
        """Run a function and record the call."""
        returned = self._run(run, args, kwargs)
        # What users wrap may return anything, and no tensor may get lost in it.
        if _has_tensor(returned) or (catalog.is_wrapped(func) and _results(returned)[0]):
            expr = CallFunction(func)
            self.record(expr, func.__name__, args, kwargs, returned)
        return returned

    def call_method(self, name: str, run: Callable[..., Any], args: Any, kwargs: Any, /) -> Any:
        """Run a method of a tensor and record the call."""
        before = [self._mutated(args[0])] if is_mutating(name) else []
        returned = self._run(run, args, kwargs)
        result = args[0] if is_mutating(name) else returned
        if _has_tensor(result):
            expr = CallMethod(before[0] if before else self.scope.graph._inputs[0], name)
            self.record(expr, name.strip("_"), args, kwargs, result)
        return returned

    def call_definition(self, op: Any, inputs: Any, /) -> list[Any]:
        """Apply the definition of an op to tensors and record that."""
        returned = list(self._run(op, inputs, {}))
        self.record(Apply(op), type(op).__name__.lower(), inputs, {}, tuple(returned))
        return returned

    def _mutated(self, tensor: Tensor) -> Node:
        """The node of a tensor that is about to change."""
        with self.unheard():
            node = self._node(tensor)
        if isinstance(node.expr, Constant) and id(tensor) in self._born:
            # The module makes it anew at each call, so no run may see what another one left.
            node.expr.value, node.expr.fresh = wrap(tensor._data, tensor._kind), True
        return node

    def born(self, tensor: Tensor) -> None:
        """A tensor was made of host data."""
        self._born[id(tensor)] = tensor

    def construct(self, made: Tensor, init: Callable[..., None], args: Any, kwargs: Any) -> None:
        """`Tensor(other)`: run the constructor and record the copy."""
        with self.unheard():
            init(made, *args, **kwargs)
        self.record(CallFunction(Tensor), "tensor", args, kwargs, made)

    def _run(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self.unheard():
            return run(*settled(args), **settled(kwargs))

    def record(
        self, expr: Expr, name: str, args: Any, kwargs: Mapping[str, Any], returned: Any
    ) -> None:
        """Append the expression of a call that was made."""
        with self.unheard():
            leaves, expr.arg_def = self._flattened((tuple(args), dict(kwargs)))
            expr._take([self._node(leaf) for leaf in leaves])
            values, expr.out_def = _results(returned)
            for value in values:
                node = TensorNode(expr)
                node.describe(value)
                expr.outputs.append(node)
            self.scope.add(expr, name if isinstance(expr, Apply) else f"{name}_out")
            for value, made in zip(values, expr.outputs, strict=True):
                self._bind(value, made)
            checker.check_expr(expr, leaves, values)

    def _flattened(self, value: Any) -> tuple[list[Any], TreeDef]:
        """Leaves that nodes stand for, and the tree; extents that cannot be replayed are fixed."""
        plain = settled(value, self.scope.is_dynamic)
        return tree_flatten(plain, lambda leaf: isinstance(leaf, (Tensor, Module, HostNumber)))

    def _bind(self, value: Any, node: Node) -> None:
        self.scope.bind(value, node)
        self._seen[id(value)] = (value, self.scope)

    def _node(self, value: Any) -> Node:
        """The node of a value in the innermost scope."""
        scope = self.scope
        known = scope.known(value)
        if known is not None:
            return known
        elsewhere = self._seen.get(id(value))
        if elsewhere is not None and elsewhere[1] is not scope and scope.path(value) is None:
            raise TraceError(
                f"trace_module: {scope.graph.qualname}",
                "a tensor that another module computed is used without being passed",
                saw=str(value.type) if isinstance(value, Tensor) else repr(value),
                hint="pass it as an argument, or return it, so that the graph shows where it goes",
            )
        return scope.node(value)

    # -- what cannot be replayed -----------------------------------------------------------

    def met(self, tensor: Tensor) -> None:
        """The shape of a tensor is looked at: let it have a node."""
        with self.unheard():
            if self.scope.known(tensor) is None and self.scope.path(tensor) is not None:
                self.scope.node(tensor)

    def remember(self, extent: HostNumber) -> None:
        """Forget, when the trace is over, where an extent came from."""
        self._extents.append(extent)

    def host_read(self, source: Any, name: str) -> None:
        """Python looks at the value of a tensor: what depends on it is fixed by the trace."""
        if not isinstance(source, Tensor) or self.scope.known(source) is not None:
            self._hazards.report(source, name)

    # -- modules ---------------------------------------------------------------------------

    def call_module(
        self, module: Module, run: Callable[..., Any], args: Any, kwargs: Any, /
    ) -> Any:
        """Run a module: as one call if it is built in, else in a scope of its own."""
        if module is self.scope.module:
            return run(module, *args, **kwargs)  # its own `__call__`, or recursion
        node = self.scope.known(module)
        path = self.scope.path(module)
        if node is None and path is None and not catalog.is_builtin(module):
            return run(module, *args, **kwargs)  # of elsewhere: as if its code stood here
        name = node.name if node is not None else (path or type(module).__name__)
        spelled = argspec_of(module).bind(name, args, kwargs)
        if catalog.is_builtin(module):
            returned = self._run(run, (module, *args), kwargs)
            variant = 0
        else:
            returned, variant = self.look_into(module, run, *spelled)
        expr = CallMethod(self._node(module))
        expr.variant = variant
        name = expr.inputs[0].name
        self.record(expr, name, (module, *spelled[0]), spelled[1], returned)
        for made in expr.outputs:
            tail = ".[out]" if len(expr.outputs) == 1 else f".[{made.name}]"
            made.qualname = expr.inputs[0].qualname + tail
            if isinstance(module, QATModule) and isinstance(made, TensorNode):
                made.qparams = module.get_activation_qparams()
        return returned

    def look_into(
        self, module: Module, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> tuple[Any, int]:
        """Run a module in a scope of its own; returns the result and which graph it made."""
        outer = self.scopes[-1] if self.scopes else None
        names = argspec_of(module).names(args, kwargs)
        if outer is None:
            leaves, tree = tree_flatten(((args), dict(kwargs)))
            name = qualname = module.name or source_of(module)
        else:
            leaves, tree = self._flattened((args, dict(kwargs)))
            for leaf in leaves:
                if isinstance(leaf, Module):
                    raise TraceError(
                        f"trace_module: {outer.graph.qualname}",
                        "a module is passed to another module as an argument",
                        saw=type(leaf).__name__,
                        hint="make it an attribute of the module that uses it",
                    )
                self._node(leaf)
            node = self._node(module)
            name, qualname = f"{outer.graph.name}_{node.name}", node.qualname
        leaves = _distinct(leaves)
        graph = InternalGraph(name, qualname)
        graph.arg_def = _with_self(tree)
        _add_inputs(graph, names, leaves)
        scope = Scope(graph, module)
        self.scopes.append(scope)
        try:
            scope.bind(module, graph._inputs[0])
            for leaf, made in zip(leaves, graph._inputs[1:], strict=True):
                self._bind(leaf, made)
            returned = self._traced_run(scope, run, tree.unflatten(leaves))
        finally:
            self.scopes.pop()
        return returned, self._keep(module, graph)

    def _traced_run(self, scope: Scope, run: Callable[..., Any], call: Any) -> Any:
        before = scope.attributes()
        returned = run(scope.module, *call[0], **call[1])
        values, out_def = self._outputs(scope, returned)
        for name, value in scope.attributes().items():
            if before.get(name) is not value and scope.known(value) is not None:
                expr = SetAttr(scope.graph._inputs[0], name, scope.node(value))
                scope.add(expr, name)
        scope.take_names()
        scope.graph.out_def = out_def
        scope.graph._outputs[:] = [self._node(value) for value in values]
        return returned

    def _outputs(self, scope: Scope, returned: Any) -> tuple[list[Any], TreeDef]:
        return _results(settled(returned, scope.is_dynamic))

    def _keep(self, module: Module, graph: InternalGraph) -> int:
        """Add a graph to those of a module, unless it has the like; returns its variant."""
        graph.compile()
        _, graphs = self.traced.setdefault(id(module), (module, []))
        same = [g for g in graphs if g.arg_def == graph.arg_def]
        for known in same:
            if _text(known) == _text(graph):
                return known.variant
        graph.variant = len(same)
        graphs.append(graph)
        return graph.variant


def _has_tensor(returned: Any) -> bool:
    if isinstance(returned, Tensor):
        return True
    if returned is None or returned is NotImplemented or not is_container(type(returned)):
        return False
    return bool(tree_flatten(returned)[0])


def _results(returned: Any) -> tuple[list[Any], TreeDef]:
    return tree_flatten(returned, lambda leaf: isinstance(leaf, (Tensor, HostNumber)))


def _with_self(tree: TreeDef) -> TreeDef:
    args, kwargs = tree.children
    _, first = tree_flatten(0, lambda leaf: True)
    return TreeDef(tuple, None, (TreeDef(tuple, None, (first, *args.children)), kwargs))


def _add_inputs(graph: InternalGraph, names: list[str], leaves: list[Any]) -> None:
    """The module's node, and a named node for each value among the arguments."""
    owner = Input.make(graph, "self", ModuleNode, graph.qualname)
    graph._inputs.append(owner)
    args, kwargs = graph.arg_def.children
    trees = [*args.children[1:], *kwargs.children]
    values = iter(leaves)
    for name, tree in zip(names, trees, strict=True):
        for path in tree.paths(name):
            node = Input.make(graph, graph._fresh(path), TensorNode)
            node.qualname = f"{graph.qualname}.[{node.name}]"
            node.describe(next(values))
            graph._inputs.append(node)


def _distinct(leaves: list[Any]) -> list[Any]:
    """The same values, none of them the same object twice: each has a node of its own."""
    seen: set[int] = set()
    found: list[Any] = []
    for leaf in leaves:
        if id(leaf) in seen and isinstance(leaf, Tensor):
            leaf = wrap(leaf._data, leaf._kind, leaf._trace)
        seen.add(id(leaf))
        found.append(leaf)
    return found


def _text(graph: InternalGraph) -> str:
    """Return a text of the graph's computation that does not depend on how nodes are numbered."""
    lines = [repr(expr).partition(": ")[2] for expr in graph._exprs]
    values = [id(e.value) for e in graph._exprs if isinstance(e, Constant)]
    return "\n".join([*lines, repr(graph.out_def.unflatten(graph._outputs)), repr(values)])
