"""Activation functions, element by element except for the softmax family.

Results have the shape of the input; integers are computed in float32.
"""

from __future__ import annotations

from typing import Any

from treadle.engine.eager.repeated import repeated
from treadle.functional import elemwise
from treadle.functional.arguments import (
    as_float,
    as_tensor,
    axis_of,
    ints,
    narrowed,
    unary,
    unary_float,
    widened,
)
from treadle.functional.elemwise import exp
from treadle.ops import activation as act
from treadle.ops import softmax as sm
from treadle.ops import unary as un
from treadle.ops.methods import either, over
from treadle.tensor import Tensor

__all__ = [
    "elu",
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
    """max(x, 0); its gradient at 0 is 0.

    Example:
        >>> F.relu(mge.tensor([-1., 2.])).tolist()
        [0.0, 2.0]
    """
    return unary(un.Relu(), x)


def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6).

    Example:
        >>> F.relu6(mge.tensor([-1., 2., 8.])).tolist()
        [0.0, 2.0, 6.0]
    """
    return unary_float(act.Relu6(), x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)).

    Raises:
        DTypeError: x is not floating.

    Example:
        >>> F.sigmoid(mge.tensor([-1., 0., 1.]))
        Tensor([0.2689 0.5    0.7311], device=xpux:0)
    """
    return unary(un.Sigmoid(), x)


def hsigmoid(x: Tensor) -> Tensor:
    """relu6(x + 3) / 6.

    Example:
        >>> F.hsigmoid(mge.tensor([-4., 0., 4.])).tolist()
        [0.0, 0.5, 1.0]
    """
    return unary_float(act.HSigmoid(), x)


def hswish(x: Tensor) -> Tensor:
    """x relu6(x + 3) / 6.

    Example:
        >>> F.hswish(mge.tensor([-1., 0., 4.]))
        Tensor([-0.3333  0.      4.    ], device=xpux:0)
    """
    return unary_float(act.HSwish(), x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x).

    Example:
        >>> F.silu(mge.tensor([-1., 0., 1.]))
        Tensor([-0.2689  0.      0.7311], device=xpux:0)
    """
    return unary_float(act.Silu(), x)


_GELU = act.Gelu()


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function at x, x (1 + erf(x / sqrt(2))) / 2.

    `approximate="tanh"` computes 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) instead, as
    GPT does. Source: Hendrycks and Gimpel, Gaussian error linear units, 2016.

    Example:
        >>> F.gelu(mge.tensor([-1., 0., 1.]))
        Tensor([-0.1587  0.      0.8413], device=xpux:0)
    """
    return unary(_GELU if approximate == "none" else act.Gelu(approximate), x)


def leaky_relu(inp: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where x >= 0, else negative_slope x.

    Example:
        >>> F.leaky_relu(mge.tensor([-1., 2.]), 0.5).tolist()
        [-0.5, 2.0]
    """
    return unary_float(act.LeakyRelu(float(negative_slope)), inp)


def elu(inp: Tensor, alpha: float = 1.0) -> Tensor:
    """x where x > 0, alpha (exp(x) - 1) elsewhere.

    Example:
        >>> F.elu(mge.tensor([-1., 2.]))
        Tensor([-0.6321  2.    ], device=xpux:0)
    """
    return unary_float(act.Elu(float(alpha)), inp)


def prelu(x: Tensor, y: Tensor) -> Tensor:
    """x where x > 0, else y x, with a slope tensor y that broadcasts to x.

    Example:
        >>> F.prelu(mge.tensor([-1., 2.]), mge.tensor([0.5])).tolist()
        [-0.5, 2.0]
    """
    x = as_tensor(x)
    return relu(x) - relu(-x) * y


def softplus(inp: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow.

    Example:
        >>> F.softplus(mge.tensor([0., 100.]))
        Tensor([  0.6931 100.    ], device=xpux:0)
    """
    return unary_float(un.Softplus(), inp)


def logsigmoid(inp: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow.

    Example:
        >>> F.logsigmoid(mge.tensor([0., -100.]))
        Tensor([  -0.6931 -100.    ], device=xpux:0)
    """
    return unary_float(act.LogSigmoid(), inp)


@repeated
def softmax(inp: Tensor, axis: Any = None, dim: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis; None is axis 0 for 0, 1 or 3 axes, else 1.

    A list of axes normalizes over all of them.

    Example:
        >>> F.softmax(mge.tensor([[0., 1.], [1., 1.]]), axis=1)
        Tensor([[0.2689 0.7311]
         [0.5    0.5   ]], device=xpux:0)
    """
    if dim is not None:
        axis = either("axis", axis, dim)
    x = as_float(inp)
    if axis is None:
        axis = 0 if x.ndim in (0, 1, 3) else 1
    if isinstance(axis, (list, tuple)):
        wide = widened(x)
        return narrowed(exp(wide - logsumexp(wide, axis, keepdims=True)), x._kind.dtype)
    if x.ndim == 0:
        return softmax(x.reshape(1), 0).reshape(())
    return unary(sm.Softmax(axis_of(axis, x, "softmax")), x)


@repeated
def logsoftmax(inp: Tensor, axis: Any = None, dim: Any = None) -> Tensor:
    """log(softmax(x)) along one axis or several, without overflow; same shape.

    Example:
        >>> F.logsoftmax(mge.tensor([[0., 1.], [1000., 0.]]), axis=1)
        Tensor([[   -1.3133    -0.3133]
         [    0.     -1000.    ]], device=xpux:0)
    """
    axis = _required("logsoftmax", axis, dim)
    x = as_float(inp)
    if isinstance(axis, (list, tuple)):
        wide = widened(x)
        return narrowed(wide - logsumexp(wide, axis, keepdims=True), x._kind.dtype)
    return unary(sm.LogSoftmax(axis_of(axis, x, "logsoftmax")), x)


@repeated
def logsumexp(
    inp: Tensor,
    axis: Any = None,
    keepdims: bool = False,
    dim: Any = None,
    keepdim: bool | None = None,
) -> Tensor:
    """log(sum(exp(x))) over one axis or several, without overflow.

    The axes are dropped from the shape, or stay with extent 1 for `keepdims`.

    Example:
        >>> F.logsumexp(mge.tensor([[0., 0.], [1000., 1000.]]), axis=1)
        Tensor([   0.6931 1000.6932], device=xpux:0)
    """
    if dim is not None or keepdim is not None:
        axis, keepdims = over(axis, keepdims, dim, keepdim)
    axis = _required("logsumexp", axis, None)
    x = as_float(inp)
    axes = tuple(sorted(axis_of(a, x, "logsumexp") for a in ints(axis)))
    return unary(sm.LogSumExp(axes, keepdims), x)


def _required(name: str, axis: Any, dim: Any) -> Any:
    """An axis that must be given, under our name or PyTorch's."""
    found = axis if dim is None else either("axis", axis, dim)
    if found is None:
        raise TypeError(f"{name}: missing axis, an int or several")
    return found


elemwise.MOVED.update(hsigmoid=hsigmoid, hswish=hswish, relu=relu, relu6=relu6, sigmoid=sigmoid)
