"""Moving constant factors back into the weights of the convolutions they scale."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np

import treadle.functional as F
from treadle import module as M
from treadle.module.path import set_at
from treadle.tensor import Parameter, Tensor
from treadle.traced_module._passes.fuse_pass import _calls_of, _held
from treadle.traced_module._passes.normalize_pass import operation
from treadle.traced_module._passes.pass_base import (
    ExprPass,
    add_expr,
    as_argument,
    constant_value,
    is_float,
    register_pass,
    replace,
)
from treadle.traced_module.expr import CallFunction, CallMethod, Constant, Expr, GetAttr
from treadle.traced_module.extent import extent
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import ModuleNode, Node

_LINEAR_FUNCTIONS: frozenset[Any] = frozenset(
    {F.avg_pool2d, F.adaptive_avg_pool2d, F.flatten, F.transpose, F.mean, F.sum}
    | {F.reshape, F.squeeze, F.expand_dims, F.broadcast_to}
)
_POSITIVE_FUNCTIONS: frozenset[Any] = frozenset({F.relu, F.leaky_relu, F.max_pool2d, F.abs})
_LINEAR_METHODS = frozenset({"flatten", "transpose", "reshape", "mean", "sum"})
_LINEAR_LAYERS = (M.AvgPool2d, M.Identity, M.AdaptiveAvgPool2d)
_POSITIVE_LAYERS = (M.ReLU, M.LeakyReLU, M.MaxPool2d)
_KEEPS_CHANNELS: frozenset[Any] = frozenset(
    {F.avg_pool2d, F.adaptive_avg_pool2d, F.relu, F.leaky_relu, F.max_pool2d, F.abs}
)


@register_pass
class BackwardFoldScale(ExprPass):
    """A product with a constant moves back to the convolutions it scales, and into their weights.

    On the way it passes what commutes with it: pooling, reshaping, sums with constants, sums of
    two tensors, into both of them, and, if it is positive, rectifiers. The factor is a number, or
    one number for each channel, (1, C, 1, 1) where everything on the way keeps channels apart. A
    tensor with several users is scaled only if all of them are.

    Parameters of the graph become constants, as factors may be computed from them.
    """

    name: ClassVar[str] = "BackwardFoldScale"
    required_pass: ClassVar[tuple[str, ...]] = ("FuseConvBn", "FlodConstant", "NormElemWise")

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
        way = _way_to_convolutions(graph, x, scale)
        if way is None:
            return False
        for passed in way:
            _scale(graph, passed, scale)
        replace(graph, expr.outputs[0], x)
        return True


def _way_to_convolutions(graph: InternalGraph, node: Node, scale: Any) -> list[Expr] | None:
    """Expressions from a node back to convolutions that can take the factor, or None."""
    way: list[Expr] = []
    wanted = {node: 1}
    for expr in reversed(graph._exprs):  # users come before what they use
        scaled = [n for n in expr.outputs if n in wanted]
        if not scaled:
            continue
        way.append(expr)
        if any(_values_used(n) != wanted.pop(n) or n in graph.outputs for n in scaled):
            return None
        if _takes(graph, expr, scale):
            continue
        before = _passes(expr, scale)
        if before is None:
            return None
        for n in before:
            wanted[n] = wanted.get(n, 0) + 1
    return way if not wanted else None


def _values_used(node: Node) -> int:
    """Count how often expressions use the elements of a tensor, and not just its extents."""
    return sum(not isinstance(u, CallFunction) or u.func is not extent for u in node.users)


def _takes(graph: InternalGraph, expr: Expr, scale: Any) -> bool:
    """Return whether an expression is a convolution whose weights may be changed."""
    if isinstance(expr, CallFunction) and expr.func is F.conv2d:
        weight, bias = _held(expr.named_args["weight"]), _held(expr.named_args["bias"])
        if weight is None or (bias is None and expr.named_args["bias"] is not None):
            return False
        return _fits(scale, int(np.prod(weight.shape[: weight.ndim - 3])))
    if not isinstance(expr, CallMethod) or not isinstance(expr.inputs[0], ModuleNode):
        return False
    node = expr.inputs[0]
    if node.module_type is not M.Conv2d or not isinstance(node.expr, GetAttr):
        return False
    layer = node.owner
    return _fits(scale, layer.out_channels) and _calls_of(graph, layer) == 1


def _fits(scale: Any, channels: int) -> bool:
    return scale.ndim == 0 or scale.shape in ((1, channels, 1, 1), (1, 1, 1, 1))


def _passes(expr: Expr, scale: Any) -> list[Node] | None:
    """The nodes a factor moves to when it passes an expression; None if it cannot."""
    if not expr.inputs:
        return None
    single, positive = scale.ndim == 0, bool(np.all(scale > 0))
    arithmetic = operation(expr)
    if arithmetic is not None:
        return _passes_arithmetic(expr, *arithmetic, single)
    first = expr.inputs[:1]
    if isinstance(expr, CallFunction):
        keeps = single or expr.func in _KEEPS_CHANNELS
        linear = expr.func in _LINEAR_FUNCTIONS
        commutes = linear or (positive and expr.func in _POSITIVE_FUNCTIONS)
        scales_first = expr.args[:1] == tuple(first)
        return first if keeps and commutes and scales_first else None
    if isinstance(expr, CallMethod) and isinstance(first[0], ModuleNode):
        kind = first[0].module_type
        commutes = kind in _LINEAR_LAYERS or (positive and kind in _POSITIVE_LAYERS)
        return expr.inputs[1:2] if commutes else None
    if isinstance(expr, CallMethod) and single and expr.method in _LINEAR_METHODS:
        return first
    return None


def _passes_arithmetic(
    expr: Expr, method: str, operands: tuple[Any, ...], single: bool
) -> list[Node] | None:
    if method not in ("__add__", "__sub__", "__mul__"):
        return None
    moving = [x for x in operands if constant_value(x) is None]
    if (method != "__mul__" and len(moving) == 2) or (
        len(moving) == 1 and moving[0] is operands[0] and method != "__sub__"
    ):
        scaled = moving
    else:
        return None
    shape = getattr(expr.outputs[0], "shape", None)
    for x in scaled:
        # A factor of each channel must meet the channels of the operand as those of the result.
        if not is_float(x) or not (single or (shape is not None and x.shape == shape)):
            return None
    return scaled


def _scale(graph: InternalGraph, expr: Expr, scale: Any) -> None:
    """Apply a factor to an expression: to weights, to the constant of a sum; others just pass."""
    arithmetic = operation(expr)
    if arithmetic is not None and arithmetic[0] == "__add__":
        x, c = arithmetic[1]
        constant = constant_value(c)
        if constant is not None:
            like: Any = expr.outputs[0]
            scaled = as_argument(graph, expr, np.asarray(constant) * scale, like)
            expr.set_args_kwargs(x, scaled)
        return
    if isinstance(expr, CallFunction) and expr.func is F.conv2d:
        for name in ("weight", "bias"):
            held = _held(expr.named_args[name])
            if held is not None:
                scaled = _scaled(held, scale, 0 if name == "weight" else 1)
                expr.set_arg(name, add_expr(graph, expr, Constant(scaled), name))
    layer = expr.inputs[0]
    if isinstance(layer, ModuleNode) and layer.module_type is M.Conv2d:
        _scale_layer(layer, scale)


def _scaled(held: Tensor, scale: Any, axis: int) -> Tensor:
    """Weights or bias of a convolution, its channels scaled; those of weights in groups, too."""
    flat = scale.reshape(-1)
    axes = 2 if held.ndim == 5 else 1  # (groups, channels of a group, ...)
    channels = held.shape[:axes] if not axis else (1, held.shape[1])
    factor = np.broadcast_to(flat, (int(np.prod(channels)),)).reshape(channels)
    factor = factor.reshape(*channels, *[1] * (held.ndim - len(channels)))
    return (held * Tensor(factor, dtype="float32")).astype(held.dtype)


def _scale_layer(node: ModuleNode, scale: Any) -> None:
    layer = deepcopy(node.owner)
    layer.weight = Parameter(_scaled(layer.weight, scale, 0))
    if layer.bias is not None:
        layer.bias = Parameter(_scaled(layer.bias, scale, 1))
    set_at(node.expr.inputs[0].owner, node.expr.name, layer)
