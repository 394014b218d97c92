"""Scope of one traced `forward`: which node each value of it is."""

from __future__ import annotations

from typing import Any

from treadle.base.errors import TraceError
from treadle.module.module import Module
from treadle.tensor import Parameter, Tensor
from treadle.traced_module.expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    GetAttr,
)
from treadle.traced_module.extent import HostNumber, plain
from treadle.traced_module.graph import InternalGraph, fresh_name
from treadle.traced_module.node import ModuleNode, Node, TensorNode


class Scope:
    """One graph in the making.

    Args:
        graph: where expressions go.
        module: the module whose `forward` runs.
        exprs: the list they are added to, the graph's if left out.
    """

    def __init__(
        self, graph: InternalGraph, module: Module, exprs: list[Expr] | None = None
    ) -> None:
        self.graph = graph
        self.module = module
        self.exprs = graph._exprs if exprs is None else exprs
        self._names = {node.name for node in graph._all_nodes()}
        # Values are kept, so that no other object gets their id.
        self._nodes: dict[int, tuple[Any, Node]] = {}
        self._paths: dict[int, str] = _paths_of(module)

    # -- naming and adding -----------------------------------------------------------------

    def add(self, expr: Expr, name: str) -> None:
        """Append an expression, whose outputs are named after `name`."""
        for node in expr.outputs:
            node._name = fresh_name(name, self._names)
            self._names.add(node._name)
            node.qualname = f"{self.graph.qualname}.[{node._name}]"
        self.graph._adopt(expr)
        self.exprs.append(expr)

    def bind(self, value: Any, node: Node) -> None:
        """Record that a node stands for a value from now on."""
        self._nodes[id(value)] = (value, node)

    def made(self, expr: Expr, value: Any, name: str) -> None:
        """Append an expression with one output, which stands for a value."""
        node = TensorNode(expr)
        node.describe(value)
        expr.return_val = node
        self.add(expr, name)
        self.bind(value, node)

    def take_names(self) -> None:
        """Name the results of calls as the module named the tensors."""
        for value, node in self._nodes.values():
            given = getattr(value, "name", "") if isinstance(value, Tensor) else ""
            if given and isinstance(node.expr, (CallFunction, CallMethod, Apply)):
                self._names.discard(node.name)
                node._name = fresh_name(given, self._names)
                self._names.add(node._name)

    # -- finding ---------------------------------------------------------------------------

    def known(self, value: Any) -> Node | None:
        """The node a value is, if it has one already."""
        found = self._nodes.get(id(value))
        return None if found is None else found[1]

    def path(self, value: Any) -> str | None:
        """Return the path of a tensor or module below the module; None if it is not there."""
        found = self._paths.get(id(value))
        if found is None and isinstance(value, (Parameter, Module)):
            self._paths.update(_paths_of(self.module))  # made while `forward` ran
            found = self._paths.get(id(value))
        return found

    def node(self, value: Any) -> Node:
        """The node a value is: known, an attribute of the module, computed of extents, or fixed."""
        found = self.known(value)
        if found is not None:
            return found
        if isinstance(value, HostNumber):
            return self._extent(value)
        path = self.path(value)
        if path is not None:
            return self._attribute(value, path)
        expr = Constant(value, "const")
        self.add(expr, "const")
        self.bind(value, expr.outputs[0])
        return expr.outputs[0]

    def is_dynamic(self, value: Any) -> bool:
        """Return whether an extent can be replayed: it was computed from tensors of this scope."""
        if not isinstance(value, HostNumber):
            return isinstance(value, Tensor)
        if self.known(value) is not None:
            return True
        if value.origin is None:
            return False
        args = [a for a in value.origin[1] if isinstance(a, (HostNumber, Tensor))]
        return all(
            self.is_dynamic(a) if isinstance(a, HostNumber) else self._reaches(a) for a in args
        )

    def _reaches(self, tensor: Tensor) -> bool:
        return self.known(tensor) is not None or self.path(tensor) is not None

    def _extent(self, value: HostNumber) -> Node:
        if value.origin is None:
            raise TraceError("traced_module", "an extent of a finished trace was used in another")
        func, args = value.origin
        expr = CallFunction(func)
        dynamic = [
            self.node(a) if isinstance(a, Tensor) or self.is_dynamic(a) else plain(a) for a in args
        ]
        expr.set_args_kwargs(*dynamic)
        self.made(expr, value, func.__name__)
        return expr.outputs[0]

    def _attribute(self, value: Any, path: str) -> Node:
        module = self.graph._inputs[0]
        expr = GetAttr(module, path)  # type: ignore[arg-type]
        self.get(expr, value)
        return expr.outputs[0]

    def get(self, expr: GetAttr, value: Any) -> None:
        """Append the look-up of an attribute whose value is known."""
        node: Node = ModuleNode(expr) if isinstance(value, Module) else TensorNode(expr)
        if isinstance(node, TensorNode):
            node.describe(value)
        expr.return_val = node
        self.add(expr, expr.name.replace(".", "_"))
        node.qualname = f"{expr.inputs[0].qualname}.{expr.name}"
        self.bind(value, node)

    def attributes(self) -> dict[str, Tensor]:
        """Tensors that are attributes of the module itself."""
        return {k: v for k, v in vars(self.module).items() if isinstance(v, Tensor)}


def _paths_of(module: Module) -> dict[int, str]:
    found = {id(tensor): name for name, tensor in module.named_tensors()}
    found.update({id(child): name for name, child in module.named_modules() if name})
    return found
