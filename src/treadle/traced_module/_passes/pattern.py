"""Patterns of expressions: what a pass looks for, written as the calls it is made of.

x = is_var()
is_op(F.relu)(is_op(M.Conv2d)(x))      # relu of a convolution layer of anything
(is_op("__mul__") | is_op(F.mul))(x, is_const())
"""

from __future__ import annotations

from typing import Any

from treadle.tensor import Tensor
from treadle.traced_module.expr import (
    Apply,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    is_call_module,
)
from treadle.traced_module.node import ModuleNode, Node, TensorNode


class ExprPattern:
    """Pattern of a call's argument, or of the call that makes it.

    Called with patterns of arguments it is a pattern of calls; `|` makes alternatives; arithmetic
    of patterns is a pattern of the tensors' operators.
    """

    def __init__(self) -> None:
        self.checks_users = True

    def check_users(self, check: bool = True) -> ExprPattern:
        """Return whether what matches may have no user outside of the match; it may not
        by default.
        """
        self.checks_users = check
        return self

    def accepts(self, value: Any) -> bool:
        """Return whether a node or constant argument is what this pattern says, arguments
        left out.
        """
        raise NotImplementedError

    def __call__(self, *args: Any) -> ExprPattern:
        return CallPattern(self, tuple(_as_pattern(arg) for arg in args))

    def __or__(self, other: ExprPattern) -> ExprPattern:
        return Alternatives((self, other))

    def __add__(self, other: Any) -> ExprPattern:
        return is_op("__add__")(self, other)

    def __sub__(self, other: Any) -> ExprPattern:
        return is_op("__sub__")(self, other)

    def __mul__(self, other: Any) -> ExprPattern:
        return is_op("__mul__")(self, other)

    def __truediv__(self, other: Any) -> ExprPattern:
        return is_op("__truediv__")(self, other)

    def __radd__(self, other: Any) -> ExprPattern:
        return is_op("__radd__")(self, other)

    def __rsub__(self, other: Any) -> ExprPattern:
        return is_op("__rsub__")(self, other)

    def __rmul__(self, other: Any) -> ExprPattern:
        return is_op("__rmul__")(self, other)

    def __rtruediv__(self, other: Any) -> ExprPattern:
        return is_op("__rtruediv__")(self, other)


class OpPattern(ExprPattern):
    """The result of a function, of a method, of a layer of a class, or of a low-level op."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.target = target
        self.attributes: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}

    def has_attr(self, **attrs: Any) -> OpPattern:
        """Match layers alone that have attributes of these values."""
        self.attributes |= attrs
        return self

    def has_params(self, **params: Any) -> OpPattern:
        """Match calls of functions alone whose arguments, by name, have these values."""
        self.parameters |= params
        return self

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Node) and self.accepts_expr(value.expr) and self._has(value.expr)

    def _has(self, expr: Expr) -> bool:
        if self.attributes:
            owner = expr.inputs[0].owner if is_call_module(expr) else None  # type: ignore[attr-defined]
            if any(getattr(owner, k, None) != v for k, v in self.attributes.items()):
                return False
        if not self.parameters:
            return True
        given = expr.named_args if isinstance(expr, CallFunction) else {}
        return all(k in given and given[k] == v for k, v in self.parameters.items())

    def accepts_expr(self, expr: Expr) -> bool:
        """Return whether an expression is such a call."""
        if isinstance(expr, CallFunction):
            return bool(expr.func is self.target)
        if isinstance(expr, Apply):
            return type(expr.opdef) is self.target
        if not isinstance(expr, CallMethod):
            return False
        if isinstance(expr.inputs[0], ModuleNode):
            return expr.method == "__call__" and expr.inputs[0].module_type is self.target
        return bool(expr.method == self.target)


class CallPattern(ExprPattern):
    """A call with arguments that match patterns, in order; a call may have more arguments."""

    def __init__(self, op: ExprPattern, args: tuple[ExprPattern, ...]) -> None:
        super().__init__()
        self.op = op
        self.args = args

    def accepts(self, value: Any) -> bool:
        return self.op.accepts(value)


class ConstPattern(ExprPattern):
    """A constant: a number, or a tensor that the graph holds."""

    def accepts(self, value: Any) -> bool:
        if isinstance(value, Node):
            return isinstance(value, TensorNode) and isinstance(value.expr, Constant)
        return isinstance(value, (int, float, Tensor))


class VarPattern(ExprPattern):
    """A tensor of any origin."""

    def accepts(self, value: Any) -> bool:
        return isinstance(value, TensorNode)


class AnyPattern(ExprPattern):
    """Anything: a tensor, a module, a constant."""

    def accepts(self, value: Any) -> bool:
        return True


class Exactly(ExprPattern):
    """A constant argument equal to a value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def accepts(self, value: Any) -> bool:
        return not isinstance(value, Node) and bool(value == self.value)


class Alternatives(ExprPattern):
    """Any of several patterns."""

    def __init__(self, choices: tuple[ExprPattern, ...]) -> None:
        super().__init__()
        self.choices = choices

    def accepts(self, value: Any) -> bool:
        return any(choice.accepts(value) for choice in self.choices)


def _as_pattern(value: Any) -> ExprPattern:
    return value if isinstance(value, ExprPattern) else Exactly(value)


def is_op(target: Any) -> ExprPattern:
    """The result of a call.

    Args:
        target: a function (`F.relu`), the name of a method of tensors (`"__add__"`), a class of
            built-in layers (`M.Conv2d`), or a class of ops.

    Raises:
        TypeError: it is none of these.
    """
    if not isinstance(target, str) and not callable(target):
        raise TypeError(f"is_op takes a function, a method's name or a class, got {target!r}")
    return OpPattern(target)


def is_const() -> ExprPattern:
    """A number or a constant tensor."""
    return ConstPattern().check_users(False)


def is_var() -> ExprPattern:
    """Any tensor."""
    return VarPattern().check_users(False)


def any_node() -> ExprPattern:
    """Return a pattern that matches any node."""
    return AnyPattern().check_users(False)


__all__ = ["ExprPattern", "any_node", "is_const", "is_op", "is_var"]
