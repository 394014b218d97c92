"""Helpers that passes of MegEngine over traced modules share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from treadle.traced_module.expr import Expr, is_constant, is_getattr
from treadle.traced_module.node import Node, TensorNode

T = TypeVar("T")


def register_obj(objs: Any, _dict: dict[Any, Any]) -> Callable[[T], T]:
    """Decorator: enter what it decorates in a table, under a key or a list of them."""

    def register(found: T) -> T:
        _dict.update(dict.fromkeys(objs if isinstance(objs, list) else [objs], found))
        return found

    return register


def get_const_value(expr: Expr | Node, fall_back: Any = None) -> Any:
    """A copy of the tensor that an expression, or the one that makes a node, holds or fetches.

    `fall_back` where it computes something, or is fetched from no module that is known.
    """
    made = expr.expr if isinstance(expr, Node) else expr
    fetched = is_getattr(made) and isinstance(made.outputs[0], TensorNode)
    value = made.value_of(made.outputs[0]) if fetched or is_constant(made) else None
    return fall_back if value is None else copy.deepcopy(value)
