"""Passes about constants."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from treadle.tensor import Tensor
from treadle.traced_module._passes.pass_base import (
    ExprPass,
    add_expr,
    register_pass,
    replace,
    substitute,
)
from treadle.traced_module.expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    GetAttr,
)
from treadle.traced_module.extent import extent
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import ModuleNode, Node, TensorNode

_ARITHMETIC = {
    getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg")
}


def _replace(graph: InternalGraph, expr: Expr, value: Any) -> None:
    """A constant in place of an expression with one output."""
    old = expr.outputs[0]
    new = add_expr(graph, expr, Constant(value), old.name)
    new.qualname = old.qualname
    replace(graph, old, new)


@register_pass
class AttrToConstant(ExprPass):
    """Parameters and buffers that the graph fetches become constants of the graph."""

    name: ClassVar[str] = "AttrToConstant"

    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Replace the look-up of a tensor."""
        if not isinstance(expr, GetAttr) or isinstance(expr.outputs[0], ModuleNode):
            return False
        value = expr.value_of(expr.outputs[0])
        if not isinstance(value, Tensor) or _is_rebound(graph, expr.outputs[0]):
            return False
        _replace(graph, expr, value)
        return True


def _is_rebound(graph: InternalGraph, node: Node) -> bool:
    """Return whether the run changes a tensor, which a constant must not."""
    return any(user._disable_remove for user in node.users)


@register_pass
class FixInputShape(ExprPass):
    """Extents of tensors become the numbers they had in the trace."""

    name: ClassVar[str] = "FixInputShape"

    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Replace an extent, or arithmetic on numbers, by the number."""
        if not isinstance(expr, CallFunction) or expr.outputs[0] in graph.outputs:
            return False
        args = expr.args
        if expr.func is extent:
            node, axis = args
            if not isinstance(node, TensorNode) or node.shape is None:
                return False
            value: Any = node.shape[axis]
        elif expr.func in _ARITHMETIC and not any(isinstance(a, Node) for a in args):
            value = expr.func(*args)
        else:
            return False
        substitute(graph, expr.outputs[0], value)
        return True


@register_pass
class FlodConstant(ExprPass):
    """Expressions of constants alone are computed now; the spelling is MegEngine's."""

    name: ClassVar[str] = "FlodConstant"
    required_pass: ClassVar[tuple[str, ...]] = ("AttrToConstant",)

    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Replace a computation by its result."""
        computes = isinstance(expr, (CallFunction, CallMethod, Apply)) and expr.inputs
        if not computes or expr._disable_remove or len(expr.outputs) != 1 or _draws(expr):
            return False
        if not all(isinstance(node.expr, Constant) for node in expr.inputs):
            return False
        if any(isinstance(node, ModuleNode) for node in expr.inputs):
            return False
        (value,) = expr.interpret(*(node.expr.value for node in expr.inputs))
        if isinstance(value, Tensor):
            _replace(graph, expr, value)
        else:
            substitute(graph, expr.outputs[0], value)
        return True


def _draws(expr: Expr) -> bool:
    """Return whether a call gives something else each time."""
    if not isinstance(expr, CallFunction):
        return False
    random = expr.func.__module__.startswith("treadle.random") or expr.func.__name__ == "dropout"
    return random or bool(expr.kwargs.get("training", False))
