"""Complex numbers, made of two tensors of one shape and taken apart again.

They are complex64 and add, subtract, multiply and divide. A gradient with respect to x + i y is
dL/dx + i dL/dy.
"""

from __future__ import annotations

import builtins
from typing import Any

from treadle.base import dtype as dt
from treadle.base.errors import DTypeError
from treadle.functional import elemwise as ew
from treadle.functional.arguments import as_tensor
from treadle.functional.creation import zeros_like
from treadle.ops import complex_parts as ops
from treadle.ops.op import Op
from treadle.tensor import Tensor

__all__ = ["complex", "imag", "polar", "real"]


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """abs (cos(angle) + i sin(angle)); shapes broadcast, angles are in radians.

    Example:
        >>> F.polar(mge.tensor([2.0]), mge.tensor([0.0])).numpy()
        array([2.+0.j], dtype=complex64)
    """
    radius, turn = _float32(abs, "polar"), _float32(angle, "polar")
    return ops.MakeComplex()(radius * ew.cos(turn), radius * ew.sin(turn))


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """real + i imag; shapes broadcast.

    Raises:
        DTypeError: a part is complex already.

    Example:
        >>> F.complex(mge.tensor([1.0, 2.0]), mge.tensor([3.0, -4.0])).numpy()
        array([1.+3.j, 2.-4.j], dtype=complex64)
    """
    first, second = _float32(real, "complex"), _float32(imag, "complex")
    if first.shape != second.shape:
        first, second = first + zeros_like(second), second + zeros_like(first)
    return ops.MakeComplex()(first, second)


def _float32(x: Any, name: str) -> Tensor:
    operand = as_tensor(x)
    if operand._kind.dtype is dt.complex64:
        raise DTypeError(name, "takes real numbers", saw=str(operand.type), hint="use F.real(x)")
    return operand if operand._kind.dtype is dt.float32 else operand.astype(dt.float32)


def real(complex: Tensor) -> Tensor:
    """The real part, float32 of the same shape; a tensor of real numbers is its own.

    Example:
        >>> F.real(F.complex(mge.tensor([1.0]), mge.tensor([3.0]))).tolist()
        [1.0]
    """
    x = as_tensor(complex)
    return _part(ops.RealPart(), x) if _is_complex(x) else +x


def imag(complex: Tensor) -> Tensor:
    """The imaginary part, float32 of the same shape; zeros for a tensor of real numbers.

    Example:
        >>> F.imag(F.complex(mge.tensor([1.0]), mge.tensor([3.0]))).tolist()
        [3.0]
    """
    x = as_tensor(complex)
    return _part(ops.ImagPart(), x) if _is_complex(x) else zeros_like(x)


def _is_complex(x: Tensor) -> builtins.bool:
    return x._kind.dtype is dt.complex64


def _part(op: Op, x: Tensor) -> Tensor:
    return x.apply(op, (x,))[0]
