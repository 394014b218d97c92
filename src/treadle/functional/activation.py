"""Activation functions."""

from __future__ import annotations

from typing import Any

from treadle.functional.arguments import as_float, as_tensor, axis_of, ints, unary, unary_float
from treadle.functional.elemwise import exp
from treadle.ops import activation as act
from treadle.ops import softmax as sm
from treadle.ops import unary as un
from treadle.tensor import Tensor

__all__ = [
    "gelu",
    "hsigmoid",
    "hswish",
    "leaky_relu",
    "logsigmoid",
    "logsoftmax",
    "logsumexp",
    "prelu",
    "relu",
    "relu6",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
]


def relu(x: Tensor) -> Tensor:
    """max(x, 0); its gradient at 0 is 0."""
    return unary(un.Relu(), x)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6)."""
    return unary_float(act.Relu6(), x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); floating tensors only."""
    return unary(un.Sigmoid(), x)


def hsigmoid(x: Tensor) -> Tensor:
    """relu6(x + 3) / 6."""
    return unary_float(act.HSigmoid(), x)


def hswish(x: Tensor) -> Tensor:
    """x relu6(x + 3) / 6."""
    return unary_float(act.HSwish(), x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return unary_float(act.Silu(), x)


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function at x (Hendrycks and Gimpel, 2016), exact form."""
    return unary(act.Gelu(), x)


def leaky_relu(inp: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where x >= 0, else negative_slope x."""
    return unary_float(act.LeakyRelu(float(negative_slope)), inp)


def prelu(x: Tensor, y: Tensor) -> Tensor:
    """x where x > 0, else y x, with a slope tensor y that broadcasts to x."""
    x = as_tensor(x)
    return relu(x) - relu(-x) * y


def softplus(inp: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow."""
    return unary_float(un.Softplus(), inp)


def logsigmoid(inp: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow."""
    return unary_float(act.LogSigmoid(), inp)


def softmax(inp: Tensor, axis: Any = None) -> Tensor:
    """exp(x) over its sum along an axis; without one, axis 0 for 0, 1 and 3 axes, else 1.

    A list of axes normalizes over all of them.
    """
    x = as_float(inp)
    if axis is None:
        axis = 0 if x.ndim in (0, 1, 3) else 1
    if isinstance(axis, (list, tuple)):
        return exp(x - logsumexp(x, axis, keepdims=True))
    if x.ndim == 0:
        return softmax(x.reshape(1), 0).reshape(())
    return unary(sm.Softmax(axis_of(axis, x, "softmax")), x)


def logsoftmax(inp: Tensor, axis: Any) -> Tensor:
    """log(softmax(x)) without overflow."""
    x = as_float(inp)
    if isinstance(axis, (list, tuple)):
        return x - logsumexp(x, axis, keepdims=True)
    return unary(sm.LogSoftmax(axis_of(axis, x, "logsoftmax")), x)


def logsumexp(inp: Tensor, axis: Any, keepdims: bool = False) -> Tensor:
    """log of the sum of exp(x) over axes, without overflow."""
    x = as_float(inp)
    axes = tuple(sorted(axis_of(a, x, "logsumexp") for a in ints(axis)))
    return unary(sm.LogSumExp(axes, keepdims), x)
