"""Fusing neighbors: constants of sums and products, batch normalization into convolutions."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np

import treadle.functional as F
from treadle.module.batchnorm import BatchNorm2d, SyncBatchNorm
from treadle.module.conv import Conv2d
from treadle.module.conv_transpose import ConvTranspose2d
from treadle.module.fusion import fold_weight_bias
from treadle.module.path import set_at
from treadle.tensor import Parameter, Tensor
from treadle.traced_module._passes.matcher import PatternMatcher
from treadle.traced_module._passes.pass_base import (
    ExprPass,
    add_expr,
    add_method,
    as_argument,
    constant_value,
    is_float,
    register_pass,
    replace,
)
from treadle.traced_module._passes.pattern import ExprPattern, any_node, is_const, is_op, is_var
from treadle.traced_module.expr import CallFunction, Constant, Expr, GetAttr
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import ModuleNode, Node, TensorNode


@register_pass
class FuseAddMul(ExprPass):
    """Neighboring sums and products with constants become one sum and one product.

    (x + a) + b is x + (a + b), (x a) b is x (a b), (x + a) b is x b + a b; x + 0 and x 1 are x.
    """

    name: ClassVar[str] = "FuseAddMul"
    required_pass: ClassVar[tuple[str, ...]] = ("NormElemWise",)

    def __init__(self) -> None:
        self._x, self._a, self._b = is_var(), is_const(), is_const()
        add, mul = is_op("__add__"), is_op("__mul__")
        self._rules: list[tuple[ExprPattern, Callable[[Any, Any], list[tuple[str, Any]]]]] = [
            (add(add(self._x, self._a), self._b), lambda a, b: [("__add__", a + b)]),
            (mul(mul(self._x, self._a), self._b), lambda a, b: [("__mul__", a * b)]),
            (
                mul(add(self._x, self._a), self._b),
                lambda a, b: [("__mul__", b), ("__add__", a * b)],
            ),
        ]
        self._neutral = [(add(self._x, self._a), 0.0), (mul(self._x, self._a), 1.0)]

    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Fuse an expression with the one before it."""
        if len(expr.outputs) != 1 or not is_float(expr.outputs[0]):
            return False
        matcher = PatternMatcher()
        like: Any = expr.outputs[0]
        for pattern, neutral in self._neutral:
            if matcher.match(pattern, expr) and np.ndim(matcher[self._a]) == 0:
                x, a = matcher[self._x], constant_value(matcher[self._a])
                if np.ndim(a) == 0 and a == neutral and x.dtype == like.dtype:
                    replace(graph, like, x)
                    return True
        for pattern, rule in self._rules:
            if not matcher.match(pattern, expr):
                continue
            x = matcher[self._x]
            a, b = (np.asarray(constant_value(matcher[p])) for p in (self._a, self._b))
            if not is_float(x):
                return False
            for method, c in rule(a, b):
                x = add_method(graph, expr, method, (x, as_argument(graph, expr, c, like)), like)
            replace(graph, like, x)
            return True
        return False


_LAYERS = (Conv2d, ConvTranspose2d)
_NORMS = (BatchNorm2d, SyncBatchNorm)


@register_pass
class FuseConvBn(ExprPass):
    """Batch normalization in evaluation mode is folded into the convolution before it.

    Fused are `Conv2d` and `ConvTranspose2d` with `BatchNorm2d` or `SyncBatchNorm`, and calls of
    `F.conv2d` on parameters with such a layer behind it or with `F.batch_norm`. The convolution
    must serve this batch normalization alone. In training mode nothing is fused, as statistics of
    the batch cannot be folded.
    """

    name: ClassVar[str] = "FuseConvBn"

    def __init__(self) -> None:
        convs = is_op(Conv2d) | is_op(ConvTranspose2d)
        self._norms = is_op(BatchNorm2d) | is_op(SyncBatchNorm)
        self._layer = convs(any_node())
        self._function = is_op(F.conv2d)(any_node(), any_node())
        self._pattern = self._norms(self._layer | self._function)
        self._functional = is_op(F.batch_norm)(self._layer | self._function)

    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Fold a batch normalization."""
        matcher = PatternMatcher()
        if matcher.match(self._pattern, expr):
            stats = _of_layer(expr)
        elif matcher.match(self._functional, expr):
            stats = _of_call(expr)
        else:
            return False
        if stats is None:
            return False
        if self._layer in matcher.matched:
            conv = matcher.expr(self._layer)
            done = _fold_layer(graph, conv, stats)
        else:
            conv = matcher.expr(self._function)
            done = _fold_call(graph, conv, stats)
        if done:
            replace(graph, expr.outputs[0], conv.outputs[0])
        return done


Stats = tuple[Any, Any, Any, Any, float]
"""gamma, beta, mean, var and eps, as `fold_weight_bias` takes them."""


def _of_layer(expr: Expr) -> Stats | None:
    node = expr.inputs[0]
    bn = node.owner if isinstance(node, ModuleNode) else None
    if bn is None or bn.running_mean is None or (bn.training and not bn.freeze):
        return None
    return bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.eps


def _of_call(expr: Expr) -> Stats | None:
    args = expr.named_args
    held = [_held(args[key]) for key in ("weight", "bias", "running_mean", "running_var")]
    if args["training"] or held[2] is None or held[3] is None:
        return None
    if any(isinstance(args[k], Node) and v is None for k, v in zip(_STATS, held, strict=True)):
        return None
    return held[0], held[1], held[2], held[3], args["eps"]


_STATS = ("weight", "bias", "running_mean", "running_var")


def _held(arg: Any) -> Tensor | None:
    """The tensor that a parameter's or constant's node stands for."""
    if isinstance(arg, TensorNode) and isinstance(arg.expr, (Constant, GetAttr)):
        value = arg.expr.value_of(arg)
        return value if isinstance(value, Tensor) else None
    return None


def _fold_layer(graph: InternalGraph, conv: Expr, stats: Stats) -> bool:
    """Change the weights of a convolution layer, unless it is called elsewhere as well."""
    node: Any = conv.inputs[0]
    layer = node.owner
    if layer is None or not isinstance(node.expr, GetAttr) or _calls_of(graph, layer) != 1:
        return False
    folded = deepcopy(layer)
    weight, bias = fold_weight_bias(
        layer.weight, layer.bias, *stats, transpose=isinstance(layer, ConvTranspose2d)
    )
    folded.weight = Parameter(weight)
    folded.bias = Parameter(bias.reshape((1, -1, 1, 1)))
    home: Any = node.expr.inputs[0]
    set_at(home.owner, node.expr.name, folded)
    return True


def _calls_of(graph: InternalGraph, layer: Any) -> int:
    outermost = graph
    while outermost.top_graph is not None:
        outermost = outermost.top_graph
    nodes = [n for n in outermost.nodes() if isinstance(n, ModuleNode) and n.owner is layer]
    return sum(len(node.users) for node in nodes)


def _fold_call(graph: InternalGraph, conv: Expr, stats: Stats) -> bool:
    """Give a call of `F.conv2d` constants for weight and bias."""
    if not isinstance(conv, CallFunction):
        return False
    args = conv.named_args
    weight, bias = _held(args["weight"]), _held(args["bias"])
    if weight is None or (bias is None and args["bias"] is not None):
        return False
    new_weight, new_bias = fold_weight_bias(weight, bias, *stats)
    for name, value in (("weight", new_weight), ("bias", new_bias.reshape((1, -1, 1, 1)))):
        conv.set_arg(name, add_expr(graph, conv, Constant(value), name))
    return True
