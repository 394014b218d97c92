"""Checks while tracing: every expression run again, and the graphs run at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.errors import TraceError
from treadle.module.module import Module
from treadle.tensor import Tensor
from treadle.traced_module.catalog import is_builtin
from treadle.traced_module.expr import CallFunction, CallMethod, Expr
from treadle.traced_module.node import ModuleNode


class Switches:
    """Switches of checks, for the whole process."""

    def __init__(self) -> None:
        self.each_expr = False
        self.graphs = True


SWITCHES = Switches()
_RANDOM = frozenset({"dropout"})


def enable_expr_checker() -> None:
    """Run each expression a second time while tracing, from now on, and compare the results.

    A difference is a `TraceError` that names the expression. What draws random numbers, changes
    tensors in place, or is in training mode is not run again.
    """
    SWITCHES.each_expr = True


def disable_default_checker() -> None:
    """Stop checking finished graphs for nodes that nothing makes."""
    SWITCHES.graphs = False


def check_expr(expr: Expr, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Run an expression again on what it was recorded with, if that is switched on."""
    if not SWITCHES.each_expr or _has_effects(expr, inputs):
        return
    again = expr.interpret(*inputs)
    for node, before, now in zip(expr.outputs, outputs, again, strict=True):
        if not _same(before, now):
            raise TraceError(
                f"trace_module: {expr}",
                f"{node.name} differs when the expression runs again",
                saw=f"{_short(before)}, then {_short(now)}",
                hint="the module or function depends on more than its arguments",
            )


def _has_effects(expr: Expr, inputs: Sequence[Any]) -> bool:
    if expr._disable_remove or not expr.inputs:
        return True
    if isinstance(expr, CallFunction):
        home = expr.func.__module__
        training = expr.kwargs.get("training", False)
        return expr.func.__name__ in _RANDOM or home.startswith("treadle.random") or bool(training)
    # The expressions of a module that is looked into were checked one by one.
    if isinstance(expr, CallMethod) and isinstance(expr.inputs[0], ModuleNode):
        module = inputs[0]
        return not isinstance(module, Module) or module.training or not is_builtin(module)
    return False


def _same(before: Any, now: Any) -> bool:
    if not isinstance(before, Tensor) or not isinstance(now, Tensor):
        return bool(before == now)
    x, y = before.numpy(), now.numpy()
    return x.dtype == y.dtype and bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))


def _short(value: Any) -> str:
    return str(value.type) if isinstance(value, Tensor) else repr(value)
