"""Elementwise functions chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import treadle.functional as F
from treadle.module.module import Module
from treadle.tensor import Tensor

_METHODS: dict[str, Callable[..., Tensor]] = {
    "ABS": F.abs,
    "ACOS": F.acos,
    "ACOSH": F.acosh,
    "ADD": F.add,
    "AND": F.logical_and,
    "ASIN": F.asin,
    "ASINH": F.asinh,
    "ATAN2": F.atan2,
    "ATANH": F.atanh,
    "CEIL": F.ceil,
    "CLIP": F.clip,
    "COS": F.cos,
    "COSH": F.cosh,
    "EQ": F.equal,
    "ERF": F.erf,
    "EXP": F.exp,
    "EXPM1": F.expm1,
    "FLOOR": F.floor,
    "FLOOR_DIV": F.floor_div,
    "FUSE_ADD_H_SWISH": lambda x, y: F.hswish(x + y),
    "FUSE_ADD_RELU": lambda x, y: F.relu(x + y),
    "FUSE_ADD_SIGMOID": lambda x, y: F.sigmoid(x + y),
    "FUSE_ADD_TANH": lambda x, y: F.tanh(x + y),
    "FUSE_MUL_ADD3": lambda x, y, z: x * y + z,
    "FUSE_MUL_ADD4": lambda a, b, c, d: a * b + c * d,
    "GELU": F.gelu,
    "HSIGMOID": F.hsigmoid,
    "H_SWISH": F.hswish,
    "ISINF": F.isinf,
    "ISNAN": F.isnan,
    "LEQ": F.less_equal,
    "LOG": F.log,
    "LOG1P": F.log1p,
    "LOGSIGMOID": F.logsigmoid,
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
    "RELU": F.relu,
    "RELU6": F.relu6,
    "ROUND": F.round,
    "SHL": F.left_shift,
    "SHR": F.right_shift,
    "SIGMOID": F.sigmoid,
    "SIGN": F.sign,
    "SILU": F.silu,
    "SIN": F.sin,
    "SINH": F.sinh,
    "SOFTPLUS": F.softplus,
    "SQRT": F.sqrt,
    "SQUARE": F.square,
    "SUB": F.sub,
    "TAN": F.tan,
    "TANH": F.tanh,
    "TRUE_DIV": F.div,
    "XOR": F.logical_xor,
}


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
        if method.upper() not in _METHODS:
            raise ValueError(f"Elemwise: unknown method {method!r}; known: {', '.join(_METHODS)}")
        self.method = method

    def forward(self, *inps: Any) -> Tensor:
        return _METHODS[self.method.upper()](*inps)

    def _module_info_string(self) -> str:
        return f"method={self.method}"
