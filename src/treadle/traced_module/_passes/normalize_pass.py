"""One spelling for arithmetic with constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import treadle.functional as F
from treadle.traced_module._passes.pass_base import (
    ExprPass,
    add_method,
    as_argument,
    constant_value,
    is_float,
    register_pass,
    replace,
)
from treadle.traced_module.expr import CallFunction, CallMethod, Expr
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import ModuleNode, Node, TensorNode

_FUNCTIONS: dict[Any, str] = {
    F.add: "__add__",
    F.sub: "__sub__",
    F.mul: "__mul__",
    F.div: "__truediv__",
    F.neg: "__neg__",
}
_REFLECTED = {
    "__radd__": "__add__",
    "__rsub__": "__sub__",
    "__rmul__": "__mul__",
    "__rtruediv__": "__truediv__",
}
Spelling = Callable[[Any], tuple[str, Any]]
_RIGHT: dict[str, Spelling] = {
    "__sub__": lambda c: ("__add__", -np.asarray(c)),
    "__truediv__": lambda c: ("__mul__", 1 / np.asarray(c)),
}


def operation(expr: Expr) -> tuple[str, tuple[Any, ...]] | None:
    """The operator and operands of an arithmetic call, reflected ones turned round."""
    if isinstance(expr, CallFunction):
        method = _FUNCTIONS.get(expr.func)
        plain = len(expr.args) + len(expr.kwargs) == (1 if method == "__neg__" else 2)
        if method is None or not plain:
            return None
        return method, tuple(expr.named_args.values())
    if not isinstance(expr, CallMethod) or isinstance(expr.inputs[0], ModuleNode):
        return None
    if expr.method in _REFLECTED:
        x, y = expr.args
        return _REFLECTED[expr.method], (y, x)
    return (expr.method, expr.args) if expr.method in _FUNCTIONS.values() else None


@register_pass
class NormElemWise(ExprPass):
    """Sums, differences, products and quotients with a constant become `x + c` and `x * c`.

    `F.add(c, x)` and `c + x` become `x.__add__(c)`; `x - c`, `x / c`, `-x` and `c - x` become sums
    and products, which may change the last bit. Tensors of integers are left alone.
    """

    name: ClassVar[str] = "NormElemWise"

    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Respell an expression."""
        found = operation(expr)
        if found is None or not is_float(expr.outputs[0]):
            return False
        method, operands = found
        if not all(isinstance(x, Node) or constant_value(x) is not None for x in operands):
            return False
        new = _respelled(graph, expr, method, operands)
        if new is None:
            return False
        replace(graph, expr.outputs[0], new)
        return True


def _respelled(
    graph: InternalGraph, expr: Expr, method: str, operands: tuple[Any, ...]
) -> TensorNode | None:
    """The result of the same, spelled normally; None if it is spelled so already."""
    like: Any = expr.outputs[0]

    def call(method: str, x: Any, c: Any) -> TensorNode:
        return add_method(graph, expr, method, (x, as_argument(graph, expr, c, like)), like)

    x = operands[0]
    if method == "__neg__":
        return call("__mul__", x, -1.0) if is_float(x) else None
    y = operands[1]
    left, right = constant_value(x), constant_value(y)
    if right is not None and left is None and is_float(x):
        if method in _RIGHT:
            return call(*_swap(x, _RIGHT[method](right)))
    elif left is not None and right is None and is_float(y):
        if method in ("__add__", "__mul__"):
            return call(method, y, left)
        if method == "__sub__":
            negative = add_method(graph, expr, "__mul__", (y, -1.0), y)
            return call("__add__", negative, left)
    if isinstance(expr, CallFunction) and isinstance(x, Node):
        return add_method(graph, expr, method, operands, like)
    return None


def _swap(x: Any, spelled: tuple[str, Any]) -> tuple[str, Any, Any]:
    return spelled[0], x, spelled[1]
