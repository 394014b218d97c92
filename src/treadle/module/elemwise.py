"""Elementwise functions chosen by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import treadle.functional as F
from treadle.functional.creation import zeros_like
from treadle.module.module import Module
from treadle.tensor import Tensor


def _chosen(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = F.where(mask, x, y)
    return found


def _kept(mask: Tensor, x: Tensor) -> Tensor:
    """x where the mask is true, else 0."""
    return _chosen(mask, x, zeros_like(x))


def _gelu_grad(x: Tensor, dy: Tensor) -> Tensor:
    """dy times the derivative of x * cdf(x), the distribution function of the normal law."""
    cdf = 0.5 * (1.0 + F.erf(x * math.sqrt(0.5)))
    return dy * (cdf + x * F.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))


def _hswish_grad(x: Tensor, dy: Tensor) -> Tensor:
    """dy times the derivative of x * relu6(x + 3) / 6."""
    inside = dy * (2.0 * x + 3.0) / 6.0
    return _chosen(x > 3, dy, _kept(x >= -3, inside))


_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def _erfinv(x: Tensor) -> Tensor:
    """The inverse of erf, to float32's digits (Giles, Approximating the erfinv function, 2012)."""
    w = -F.log((1.0 - x) * (1.0 + x))
    near, far = w < 5.0, F.sqrt(F.maximum(w, 5.0)) - 3.0
    found = _chosen(near, _polynomial(w - 2.5, _NEAR), _polynomial(far, _FAR)) * x
    return _chosen(F.abs(x) == 1.0, x * math.inf, found)


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        total = total * x + c
    return total


def _rmulh(x: Tensor, y: Tensor) -> Tensor:
    """The upper half of products of fixed-point integers, rounded."""
    bits = x.dtype.itemsize * 8
    product = x.astype("int64") * y.astype("int64") + (1 << (bits - 2))
    return (product >> (bits - 1)).astype(x.dtype)


METHODS: dict[str, Callable[..., Tensor]] = {
    "ABS": F.abs,
    "ABS_GRAD": lambda x, dy: _chosen(x > 0, dy, -dy),
    "ACOS": F.acos,
    "ACOSH": F.acosh,
    "ACOSH_GRAD": lambda x, dy: dy / F.sqrt(x * x - 1.0),
    "ADD": F.add,
    "AND": F.logical_and,
    "ASIN": F.asin,
    "ASINH": F.asinh,
    "ASINH_GRAD": lambda x, dy: dy / F.sqrt(x * x + 1.0),
    "ATAN2": F.atan2,
    "ATANH": F.atanh,
    "ATANH_GRAD": lambda x, dy: dy / (1.0 - x * x),
    "CEIL": F.ceil,
    "CLIP": F.clip,
    "COND_LEQ_MOV": lambda x, y, z: _kept(x <= y, z),
    "COND_LT_MOV": lambda x, y, z: _kept(x < y, z),
    "COS": F.cos,
    "COSH": F.cosh,
    "EQ": F.equal,
    "ERF": F.erf,
    "ERFC": lambda x: 1.0 - F.erf(x),
    "ERFCINV": lambda x: _erfinv(1.0 - x),
    "ERFINV": _erfinv,
    "EXP": F.exp,
    "EXPM1": F.expm1,
    "FAST_TANH": lambda x: x * (27.0 + x * x) / (27.0 + 9.0 * x * x),
    "FAST_TANH_GRAD": lambda x, dy: dy * F.square((9.0 - x * x) / (9.0 + 3.0 * x * x)),
    "FLOOR": F.floor,
    "FLOOR_DIV": F.floor_div,
    "FUSE_ADD_H_SWISH": lambda x, y: F.hswish(x + y),
    "FUSE_ADD_RELU": lambda x, y: F.relu(x + y),
    "FUSE_ADD_SIGMOID": lambda x, y: F.sigmoid(x + y),
    "FUSE_ADD_TANH": lambda x, y: F.tanh(x + y),
    "FUSE_MUL_ADD3": lambda x, y, z: x * y + z,
    "FUSE_MUL_ADD4": lambda a, b, c, d: a * b + c * d,
    "GELU": F.gelu,
    "GELU_GRAD": _gelu_grad,
    "HSIGMOID": F.hsigmoid,
    "HSIGMOID_GRAD": lambda x, dy: _kept(F.abs(x) < 3, dy / 6.0),
    "H_SWISH": F.hswish,
    "H_SWISH_GRAD": _hswish_grad,
    "ISINF": F.isinf,
    "ISNAN": F.isnan,
    "LEQ": F.less_equal,
    "LOG": F.log,
    "LOG1P": F.log1p,
    "LOGSIGMOID": F.logsigmoid,
    "LOGSIGMOID_GRAD": lambda x, dy: dy * F.sigmoid(-x),
    "LOG_SUM_EXP": F.logaddexp,
    "LT": F.less,
    "MAX": F.maximum,
    "MIN": F.minimum,
    "MOD": F.mod,
    "MUL": F.mul,
    "NEGATE": F.neg,
    "NEQ": F.not_equal,
    "NOT": F.logical_not,
    "OR": F.logical_or,
    "POW": F.pow,
    "PRELU": F.prelu,
    "PRELU_GRAD": lambda x, dy, w: _chosen(x > 0, dy, dy * w),
    "RELU": F.relu,
    "RELU6": F.relu6,
    "RELU6_GRAD": lambda x, dy: _kept((x > 0) & (x < 6), dy),
    "RMULH": _rmulh,
    "ROUND": F.round,
    "SHL": F.left_shift,
    "SHR": F.right_shift,
    "SIGMOID": F.sigmoid,
    "SIGMOID_GRAD": lambda y, dy: y * (1.0 - y) * dy,
    "SIGN": F.sign,
    "SILU": F.silu,
    "SILU_GRAD": lambda x, dy: dy * F.sigmoid(x) * (1.0 + x * (1.0 - F.sigmoid(x))),
    "SIN": F.sin,
    "SINH": F.sinh,
    "SOFTPLUS": F.softplus,
    "SOFTPLUS_GRAD": lambda x, dy: dy * F.sigmoid(x),
    "SQRT": F.sqrt,
    "SQUARE": F.square,
    "SUB": F.sub,
    "SWITCH_GT0": lambda x, dy: _kept(x > 0, dy),
    "TAN": F.tan,
    "TANH": F.tanh,
    "TANH_GRAD": lambda y, dy: (1.0 - y * y) * dy,
    "TRUE_DIV": F.div,
    "XOR": F.logical_xor,
}


def elwise(*args: Any, mode: str) -> Tensor:
    """An elementwise function by MegEngine's name of its mode, as `Elemwise` has it."""
    made: Tensor = Elemwise(mode)(*args)
    return made


class Elemwise(Module):
    """An elementwise function as a layer, so that quantization finds it.

    Args:
        method: MegEngine's name of the function, such as "ADD", "RELU" or "FUSE_ADD_RELU", in
            any case of letters.
        name: a name for messages and graphs.

    Raises:
        ValueError: there is no such function.
    """

    def __init__(self, method: str, name: str | None = None) -> None:
        super().__init__(name)
        if method.upper() not in METHODS:
            raise ValueError(f"Elemwise: unknown method {method!r}; known: {', '.join(METHODS)}")
        self.method = method

    def forward(self, *inps: Any) -> Tensor:
        return METHODS[self.method.upper()](*inps)

    def _module_info_string(self) -> str:
        return f"method={self.method}"
