"""Making tensors from nothing but shapes and numbers.

A shape is an int, a sequence or a tensor of ints; `dtype` names an element type, `device` a device,
None the default one.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from treadle.base.dialect import Dialect
from treadle.base.dtype import REALS, DType, as_dtype, float32, int32
from treadle.base.errors import DTypeError, ShapeError, TreadleError
from treadle.base.guards import data_decide
from treadle.base.quantized import quantized_type_of
from treadle.base.symbol import Dim, Expr, maximum
from treadle.engine.devices.names import default_device, resolve
from treadle.engine.eager.hostdata import as_host_array
from treadle.functional.arguments import as_tensor, extents
from treadle.ops import creation
from treadle.ops.elementwise import Maximum
from treadle.ops.movement import Broadcast
from treadle.ops.op import Op
from treadle.tensor import Tensor, create

__all__ = [
    "arange",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


def full(shape: Any, value: float | Expr, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of one value; float32, int32 or bool by the value unless `dtype` is given.

    Raises:
        TypeError: the value has axes.

    Example:
        >>> F.full((2, 3), 7).tolist()
        [[7, 7, 7], [7, 7, 7]]
    """
    return _full("full", shape, value, dtype, device)


def zeros(shape: Any, *more: int, dtype: Any = "float32", device: Any = None) -> Tensor:
    """Zeros of a shape: an int, several, a sequence or a tensor.

    Example:
        >>> F.zeros((2, 3)).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return _full("zeros", (shape, *more) if more else shape, 0.0, dtype, device)


def ones(shape: Any, *more: int, dtype: Any = "float32", device: Any = None) -> Tensor:
    """Ones of a shape: an int, several, a sequence or a tensor.

    Example:
        >>> F.ones(3, dtype="int32").tolist()
        [1, 1, 1]
    """
    return _full("ones", (shape, *more) if more else shape, 1.0, dtype, device)


def _full(name: str, shape: Any, value: Any, dtype: Any, device: Any) -> Tensor:
    if quantized_type_of(dtype) is not None:
        return _full(name, shape, value, "float32", device).astype(dtype)
    kind = None if dtype is None else as_dtype(dtype)
    if isinstance(value, Expr) and (kind is None or kind in REALS):
        filled: Tensor = Broadcast(extents(shape))(
            _create(name, creation.Extent(value, kind or int32), device)
        )
        return filled
    number = as_host_array(value, kind)
    if number.ndim:
        raise TypeError(f"full takes one number, got {number.ndim} axes; broadcast_to takes arrays")
    op = creation.Full(extents(shape), number.item(), as_dtype(number.dtype))
    return _create(name, op, device)


def full_like(inp: Tensor, value: float | Expr) -> Tensor:
    """A tensor of one value with the shape, element type and device of `inp`.

    Example:
        >>> F.full_like(mge.tensor([1, 2]), 7).tolist()
        [7, 7]
    """
    x = as_tensor(inp)
    if x._kind.quantized is not None or isinstance(value, Expr):
        return _full("full_like", x.shape, value, x.dtype, x.device)
    number = x.constant(value).astype(x._kind.dtype).item()
    return _create("full_like", creation.Full(x.shape, number, x._kind.dtype), x.device)


def zeros_like(inp: Tensor) -> Tensor:
    """Zeros with the shape, element type and device of `inp`.

    Example:
        >>> F.zeros_like(mge.tensor([1, 2])).tolist()
        [0, 0]
    """
    return full_like(inp, 0.0)


def ones_like(inp: Tensor) -> Tensor:
    """Ones with the shape, element type and device of `inp`.

    Example:
        >>> F.ones_like(mge.tensor([1, 2])).tolist()
        [1, 1]
    """
    return full_like(inp, 1.0)


def arange(
    start: Any = 0,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: Any = "float32",
    device: Any = None,
) -> Tensor:
    """Evenly spaced values from `start` up to and without `stop`; float32 unless said otherwise.

    With one argument it is the stop, as in NumPy. Shape (ceil((stop - start) / step),).

    Raises:
        ValueError: the step is 0, or a bound is not finite.

    Example:
        >>> F.arange(3).tolist(), F.arange(1, 8, 3, dtype="int32").tolist()
        ([0.0, 1.0, 2.0], [1, 4, 7])
    """
    if stop is None:
        start, stop = 0, start
    first, last, stride = (_number("arange", v) for v in (start, stop, step))
    if stride == 0:
        raise ValueError("arange: step must not be 0")
    if not all(math.isfinite(v) for v in (first, last, stride) if not isinstance(v, Expr)):
        raise ValueError(f"arange: bounds and step must be finite, got {start}, {stop}, {step}")
    exact = all(isinstance(v, (int, Expr)) for v in (first, last, stride))
    if not exact:  # Steps in floats are counted, so that extents are numbers.
        first, last, stride = (
            float(v) if isinstance(v, Expr) else v for v in (first, last, stride)
        )
    length = -((first - last) // stride) if exact else _steps(first, last, stride)
    count = maximum(0, length) if data_decide(length) else max(0, length)
    return _create("arange", creation.Iota(first, stride, count, as_dtype(dtype)), device)


def _steps(first: Any, last: Any, stride: Any) -> int:
    """Count the values from `first` on before `last`; MegEngine counts in float32."""
    kind = np.float32 if Dialect.megengine else float
    start, end, step = (kind(v) for v in (first, last, stride))
    return math.ceil((end - start) / step)


def linspace(
    start: Any, stop: Any, num: int, *, dtype: Any = "float32", device: Any = None
) -> Tensor:
    """`num` evenly spaced values from `start` to `stop`, both included; shape (num,).

    Raises:
        ShapeError: num is not positive.

    Example:
        >>> F.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if any([isinstance(v, Expr) for v in (start, stop, num)]):
        return _spread(start, stop, num, as_dtype(dtype), device)
    try:
        count = index(num)
    except TypeError:
        hint = "pass a number of values, such as 5"
        raise DTypeError("linspace", "num must be an int", saw=repr(num), hint=hint) from None
    if count <= 0:
        raise ShapeError(
            "linspace", "num must be positive", saw=f"num={count}", hint="use num=1 or more"
        )
    first, last = (float(_number("linspace", v)) for v in (start, stop))
    stride = (last - first) / (count - 1) if count > 1 else 0.0
    return _create("linspace", creation.Iota(first, stride, count, as_dtype(dtype)), device)


def _spread(start: Any, stop: Any, num: Dim, dtype: DType, device: Any) -> Tensor:
    """`linspace` with extents for its ends or its number."""
    steps = _create("linspace", creation.Iota(0, 1, num, float32), device)
    first, last, most = (
        steps.apply(creation.Extent(v, float32), ())[0]
        if isinstance(v, Expr)
        else steps.constant(float(_number("linspace", v)))
        for v in (start, stop, num - 1)
    )
    # Of one value there is no distance, and the first step is 0.
    found: Tensor = first + steps * ((last - first) / Maximum()(most, steps.constant(1.0)))
    return found.astype(dtype.name)


def _number(name: str, value: Any) -> Any:
    """A Python number; ints stay ints, which have no rounding."""
    number = value.item() if isinstance(value, (Tensor, np.generic, np.ndarray)) else value
    if isinstance(number, (int, Expr)):
        return number
    try:
        return float(number)
    except (TypeError, ValueError):
        hint = "give ints, floats or 0-d tensors"
        raise DTypeError(name, "expects numbers", saw=repr(value), hint=hint) from None


def eye(N: Any, M: int | None = None, *, dtype: Any = "float32", device: Any = None) -> Tensor:
    """A matrix (N, M) with ones on the diagonal; M is N if left out, or N holds both.

    Raises:
        ShapeError: N holds more than two extents.

    Example:
        >>> F.eye(2, 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    shape = extents(N if M is None else (N, M))
    if len(shape) > 2 or not shape:
        raise ShapeError("eye", f"a matrix has two extents, not {len(shape)}", hint="eye(2, 3)")
    op = creation.Eye(shape[0], shape[-1], 0, as_dtype(dtype))
    return _create("eye", op, device)


def _create(name: str, op: Op, device: Any) -> Tensor:
    """Run an op without operands; errors give the name of the function the user called."""
    where = default_device() if device is None else resolve(str(device))
    try:
        return create(op, where)[0]
    except TreadleError as error:
        if error.where == op.name:
            error.rename(name)
        raise
