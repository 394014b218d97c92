"""Moving constant factors back into the weights of the convolutions they scale."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np

import treadle.functional as F
from treadle import module as M
from treadle.module.path import set_at
from treadle.tensor import Parameter, Tensor
from treadle.traced_module._passes.fuse_pass import _calls_of
from treadle.traced_module._passes.normalize_pass import operation
from treadle.traced_module._passes.pass_base import (
    ExprPass,
    as_argument,
    constant_value,
    is_float,
    register_pass,
    replace,
)
from treadle.traced_module.expr import CallFunction, CallMethod, Expr, GetAttr
from treadle.traced_module.extent import extent
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import ModuleNode, Node

_LINEAR_FUNCTIONS: frozenset[Any] = frozenset({F.avg_pool2d, F.flatten, F.transpose, F.mean, F.sum})
_POSITIVE_FUNCTIONS: frozenset[Any] = frozenset({F.relu, F.leaky_relu, F.max_pool2d})
_LINEAR_METHODS = frozenset({"flatten", "transpose", "reshape", "mean", "sum"})
_LINEAR_LAYERS = (M.AvgPool2d, M.Identity, M.AdaptiveAvgPool2d)
_POSITIVE_LAYERS = (M.ReLU, M.LeakyReLU, M.MaxPool2d)
_KEEPS_CHANNELS: frozenset[Any] = frozenset({F.avg_pool2d, F.relu, F.leaky_relu, F.max_pool2d})


@register_pass
class BackwardFoldScale(ExprPass):
    """A product with a constant moves back to the convolution it scales, and into its weights.

    On the way it passes what commutes with it: pooling, reshaping, sums with constants, and, if
    it is positive, rectifiers. The factor is a number, or one number for each channel, (1, C, 1, 1)
    where everything on the way keeps channels apart.
    """

    name: ClassVar[str] = "BackwardFoldScale"
    required_pass: ClassVar[tuple[str, ...]] = ("NormElemWise",)

    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Fold a product."""
        found = operation(expr)
        if found is None or found[0] != "__mul__" or not is_float(expr.outputs[0]):
            return False
        x, c = found[1]
        factor = constant_value(c)
        if factor is None or not isinstance(x, Node):
            return False
        scale = np.asarray(factor)
        way = _way_to_convolution(graph, x, scale)
        if way is None:
            return False
        for passed in way:
            _scale(graph, passed, scale)
        replace(graph, expr.outputs[0], x)
        return True


def _way_to_convolution(graph: InternalGraph, node: Node, scale: Any) -> list[Expr] | None:
    """Expressions from a node back to a convolution that can take the factor, or None."""
    way: list[Expr] = []
    while _values_used(node) == 1 and node not in graph.outputs:
        expr = node.expr
        way.append(expr)
        if _takes(graph, expr, scale):
            return way
        before = _passes(expr, scale)
        if before is None:
            return None
        node = before
    return None


def _values_used(node: Node) -> int:
    """How many expressions use the elements of a tensor, and not just its extents."""
    return sum(not isinstance(u, CallFunction) or u.func is not extent for u in node.users)


def _takes(graph: InternalGraph, expr: Expr, scale: Any) -> bool:
    """Whether an expression calls a convolution layer whose weights may be changed."""
    if not isinstance(expr, CallMethod) or not isinstance(expr.inputs[0], ModuleNode):
        return False
    node = expr.inputs[0]
    if node.module_type is not M.Conv2d or not isinstance(node.expr, GetAttr):
        return False
    layer = node.owner
    fits = scale.ndim == 0 or scale.shape in ((1, layer.out_channels, 1, 1), (1, 1, 1, 1))
    return fits and _calls_of(graph, layer) == 1


def _passes(expr: Expr, scale: Any) -> Node | None:
    """The node a factor moves to when it passes an expression; None if it cannot."""
    if not expr.inputs:
        return None
    single, positive = scale.ndim == 0, bool(np.all(scale > 0))
    arithmetic = operation(expr)
    if arithmetic is not None:
        method, (x, *rest) = arithmetic
        fixed = rest and constant_value(rest[0]) is not None and isinstance(x, Node)
        return x if fixed and method in ("__add__", "__mul__") and is_float(x) else None
    if isinstance(expr, CallFunction):
        keeps = single or expr.func in _KEEPS_CHANNELS
        linear = expr.func in _LINEAR_FUNCTIONS
        commutes = linear or (positive and expr.func in _POSITIVE_FUNCTIONS)
        return expr.inputs[0] if keeps and commutes else None
    if isinstance(expr, CallMethod) and isinstance(expr.inputs[0], ModuleNode):
        kind = expr.inputs[0].module_type
        commutes = kind in _LINEAR_LAYERS or (positive and kind in _POSITIVE_LAYERS)
        return expr.inputs[1] if commutes else None
    if isinstance(expr, CallMethod) and single and expr.method in _LINEAR_METHODS:
        return expr.inputs[0]
    return None


def _scale(graph: InternalGraph, expr: Expr, scale: Any) -> None:
    """Apply a factor to an expression: to weights, to the constant of a sum; others just pass."""
    arithmetic = operation(expr)
    if arithmetic is not None and arithmetic[0] == "__add__":
        x, c = arithmetic[1]
        like: Any = expr.outputs[0]
        scaled = as_argument(graph, expr, np.asarray(constant_value(c)) * scale, like)
        expr.set_args_kwargs(x, scaled)
        return
    layer = expr.inputs[0]
    if isinstance(layer, ModuleNode) and layer.module_type is M.Conv2d:
        _scale_layer(layer, scale)


def _scale_layer(node: ModuleNode, scale: Any) -> None:
    layer = deepcopy(node.owner)
    factor = Tensor(np.broadcast_to(scale.reshape(-1), (layer.out_channels,)), dtype="float32")
    weight = layer.weight
    axes = 2 if weight.ndim == 5 else 1
    shape = (*weight.shape[:axes], *([1] * (weight.ndim - axes)))
    layer.weight = Parameter((weight * factor.reshape(shape)).astype(weight.dtype))
    if layer.bias is not None:
        bias = layer.bias
        layer.bias = Parameter((bias * factor.reshape((1, -1, 1, 1))).astype(bias.dtype))
    set_at(node.expr.inputs[0].owner, node.expr.name, layer)
