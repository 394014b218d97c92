"""Operators with real numbers that may be others at the next call, as the steps of optimizers.

A call is written for its numbers, as they decide what is computed. These ones take them as tensors
without axes, so that a schedule or a bias correction does not make every call a new one. Numbers
beside elements of 16 bits are applied in float32, as PyTorch's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from treadle.interop.torch.lists import each_of

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_LOW = (torch.bfloat16, torch.float16)


class Number:
    """A real number of a call, as a float64 tensor without axes.

    Args:
        value: the tensor.
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value


def takes(value: Any) -> bool:
    """Return whether numbers beside a first argument are tensors: beside floats they are."""
    if isinstance(value, (list, tuple)):
        return bool(value) and takes(value[0])
    return isinstance(value, Tensor) and value.dtype in _FLOATS


def wide(x: Tensor) -> Tensor:
    """Elements as they are computed with: those of 16 bits as float32."""
    return x.to(torch.float32) if x.dtype in _LOW else x


def real(value: Any) -> Any:
    """A number as it is computed with."""
    return value.value if isinstance(value, Number) else value


def beside(value: Any, x: Tensor) -> Any:
    """A tensor, or a number in the element type that it is applied in."""
    if isinstance(value, Number):
        return value.value.to(torch.float32 if x.dtype in _LOW else x.dtype)
    return wide(value) if isinstance(value, Tensor) else value


def _given(made: Tensor, *given: Any) -> Tensor:
    """A result in the element type that PyTorch's has."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    wanted = tensors[0].dtype if len(tensors) == 1 else torch.result_type(*tensors[:2])
    return made.to(wanted)


def _scaled(y: Any, alpha: Any, x: Tensor) -> Any:
    """Return y, as often as alpha says."""
    plain = not isinstance(alpha, Number) and alpha == 1
    return beside(y, x) if plain else beside(y, x) * beside(alpha, x)


def _add(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
    return _given(wide(x) + _scaled(y, alpha, x), x, y)


def _sub(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
    return _given(wide(x) - _scaled(y, alpha, x), x, y)


def _rsub(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
    return _given(beside(y, x) - _scaled(x, alpha, x), x, y)


def _mul(x: Tensor, y: Any) -> Tensor:
    return _given(wide(x) * beside(y, x), x, y)


def _div(x: Tensor, y: Any) -> Tensor:
    return _given(wide(x) / beside(y, x), x, y)


def _addcmul(x: Tensor, y: Tensor, z: Tensor, value: Any = 1) -> Tensor:
    return _given(wide(x) + _scaled(y, value, x) * wide(z), x)


def _addcdiv(x: Tensor, y: Tensor, z: Tensor, value: Any = 1) -> Tensor:
    return _given(wide(x) + _scaled(y, value, x) / wide(z), x)


def _lerp(x: Tensor, y: Tensor, weight: Any) -> Tensor:
    start, end, w = wide(x), wide(y), beside(weight, x)
    far = end - start
    return _given(torch.where(w.abs() < 0.5, start + w * far, end - far * (1 - w)), x)


_SINGLE: dict[str, Callable[..., Tensor]] = {
    "add.Tensor": _add,
    "add.Scalar": _add,
    "sub.Tensor": _sub,
    "sub.Scalar": _sub,
    "rsub.Scalar": _rsub,
    "mul.Tensor": _mul,
    "mul.Scalar": _mul,
    "div.Tensor": _div,
    "div.Scalar": _div,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp.Scalar": _lerp,
}
_LISTS: dict[str, Callable[..., Tensor]] = {
    "_foreach_add.Scalar": _add,
    "_foreach_add.ScalarList": _add,
    "_foreach_add.List": _add,
    "_foreach_sub.Scalar": _sub,
    "_foreach_sub.ScalarList": _sub,
    "_foreach_sub.List": _sub,
    "_foreach_mul.Scalar": _mul,
    "_foreach_mul.ScalarList": _mul,
    "_foreach_div.Scalar": _div,
    "_foreach_div.ScalarList": _div,
    "_foreach_addcmul.Scalar": _addcmul,
    "_foreach_addcmul.ScalarList": _addcmul,
    "_foreach_addcdiv.Scalar": _addcdiv,
    "_foreach_addcdiv.ScalarList": _addcdiv,
    "_foreach_lerp.Scalar": _lerp,
    "_foreach_lerp.ScalarList": _lerp,
}


def opened(op: Any) -> Callable[..., Any] | None:
    """An operator that writes nothing as a function whose real numbers are tensors, if it has one.

    It is for calls that have such numbers; others are the operator's own.
    """
    name = op.name().removeprefix("aten::")
    if name in _LISTS:
        return each_of(_LISTS[name])
    return _SINGLE.get(name)
