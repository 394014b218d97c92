"""Creation functions."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from treadle.array_api import dtypes
from treadle.array_api.array import (
    Array,
    apply,
    as_array,
    broadcast,
    converted,
    device_of,
    filled,
    number,
    same,
    whole,
)
from treadle.array_api.dtypes import DEFAULTS, NumpyType, as_numpy
from treadle.base.dtype import as_dtype
from treadle.ops.creation import Eye, Iota
from treadle.ops.select import Where
from treadle.tensor import Tensor, create

__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]


def asarray(
    obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> Array:
    """An array of numbers, nested lists of them, buffers, NumPy arrays, tensors or arrays.

    Python's int becomes int64, float float64, complex complex128; everything else keeps its type.

    Raises:
        ValueError: `copy` is False, but there must be one.
        OverflowError: an integer does not fit.
    """
    wanted = None if dtype is None else as_numpy(dtype)
    if isinstance(obj, (Array, Tensor)):
        return _same(
            as_array(obj), wanted, device, copy or (copy is None and isinstance(obj, Tensor))
        )
    if copy is False:
        raise ValueError("asarray: data of Python and NumPy is always copied")
    if isinstance(obj, (list, tuple)) and _holds_arrays(obj):
        obj = _nested(obj)
    data = np.asarray(obj)
    if data.dtype == object:
        if all(isinstance(v, int) for v in data.flat):
            raise OverflowError("asarray: an integer does not fit 64 bits")
        raise TypeError(f"asarray: {type(obj).__name__} holds no numbers")
    return _from_numpy(data, as_numpy(data.dtype) if wanted is None else wanted, device)


def _same(x: Array, wanted: NumpyType | None, device: Any, copy: bool | None) -> Array:
    moved = x if device is None else x.to_device(device)
    made = moved if wanted is None else converted(moved, wanted)
    if copy is False and (made.dtype != x.dtype or made.device != x.device):
        raise ValueError("asarray: another type or device needs a copy")
    return made.map(same) if copy else made


def _holds_arrays(obj: Any) -> bool:
    return any(
        isinstance(v, (Array, Tensor)) or (isinstance(v, (list, tuple)) and _holds_arrays(v))
        for v in obj
    )


def _nested(obj: Any) -> Any:
    """Arrays in lists as NumPy arrays."""
    if isinstance(obj, (list, tuple)):
        return [_nested(v) for v in obj]
    return obj.numpy() if isinstance(obj, (Array, Tensor)) else obj


def _from_numpy(data: np.ndarray[Any, Any], dtype: NumpyType, device: Any) -> Array:
    if dtype in dtypes.KINDS["integral"] and data.dtype.kind in "iu" and data.size:
        limits = np.iinfo(dtype)
        if int(data.min()) < limits.min or int(data.max()) > limits.max:
            raise OverflowError(f"asarray: an integer does not fit {dtype}")
    where = device_of(device)
    with np.errstate(all="ignore"):
        made = data.astype(dtype)
    parts = (made.real, made.imag) if dtype in dtypes.PARTS else (made,)
    return Array(*(Tensor(p, dtype=p.dtype, device=where) for p in parts))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array of the data of another library.

    Raises:
        ValueError: `copy` is False: data of others is always copied.
    """
    if isinstance(x, Array):
        return asarray(x, device=device, copy=copy)
    if copy is False:
        raise ValueError("from_dlpack: data of others is always copied")
    return asarray(np.from_dlpack(x), device=device)


# -- of one number -----------------------------------------------------------------------------


def _shape(shape: Any) -> tuple[int, ...]:
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(whole(d, "a shape") for d in extents)


def _constant(shape: Any, value: Any, dtype: NumpyType, device: Any) -> Array:
    if dtype in dtypes.PARTS:
        both, part = complex(value), dtypes.PARTS[dtype]
        parts = (filled(_shape(shape), v, part, device) for v in (both.real, both.imag))
        return Array(*parts)
    if dtype in dtypes.REAL or dtype == dtypes.bool:
        return Array(filled(_shape(shape), dtype.type(value).item(), dtype, device))
    return Array(filled(_shape(shape), int(value), dtype, device))


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of one number; its kind decides the type where none is given."""
    if isinstance(fill_value, Array):
        wanted = fill_value.dtype if dtype is None else as_numpy(dtype)
        return broadcast(converted(fill_value, wanted), _shape(shape))
    wanted = np.asarray(fill_value).dtype if dtype is None else as_numpy(dtype)
    if wanted in dtypes.KINDS["integral"]:
        number(fill_value, wanted)  # raises if it does not fit
    return _constant(shape, fill_value, wanted, device)


def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array of one number, of the shape and, unless told otherwise, type and device of x."""
    x = as_array(x)
    kind = x.dtype if dtype is None else as_numpy(dtype)
    return full(x.shape, fill_value, dtype=kind, device=device or x.device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros, float64 unless told otherwise."""
    return full(shape, 0, dtype=dtype or DEFAULTS["real floating"], device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Ones, float64 unless told otherwise."""
    return full(shape, 1, dtype=dtype or DEFAULTS["real floating"], device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros: no memory is handed out that somebody else wrote to."""
    return zeros(shape, dtype=dtype, device=device)


def zeros_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros of the shape of x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Ones of the shape of x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros of the shape of x."""
    return full_like(x, 0, dtype=dtype, device=device)


# -- of several --------------------------------------------------------------------------------


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Array:
    """start, start + step, ... before stop; from 0 if one bound is given.

    Raises:
        ValueError: the step is 0, or there is no number of steps.
    """
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ValueError("arange: a step of 0 never reaches stop")
    integers = all(isinstance(v, int) for v in (first, last, step))
    kind = "integral" if integers else "real floating"
    wanted = DEFAULTS[kind] if dtype is None else as_numpy(dtype)
    steps = -((first - last) // step) if integers else (last - first) / step
    if not math.isfinite(steps):
        raise ValueError(f"arange: {first} to {last} by {step} is not a finite number of steps")
    op = Iota(first, step, max(math.ceil(steps), 0), as_dtype(wanted))
    return Array(create(op, device_of(device))[0])


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Array:
    """`num` evenly spaced numbers from start to stop, or to before it without `endpoint`.

    Raises:
        ValueError: `num` is below 0.
    """
    if whole(num, "linspace") < 0:
        raise ValueError(f"linspace: num is 0 or more, not {num}")
    kind = "complex floating" if complex in (type(start), type(stop)) else "real floating"
    wanted = DEFAULTS[kind] if dtype is None else as_numpy(dtype)
    ends = complex(start), complex(stop)
    steps = max(num - 1 if endpoint else num, 1)
    parts = [
        _spaced(a, b, num, steps, endpoint, device)
        for a, b in ((ends[0].real, ends[1].real), (ends[0].imag, ends[1].imag))
    ]
    if wanted in dtypes.PARTS:
        return converted(Array(*parts), wanted)
    return converted(Array(parts[0]), wanted)


def _spaced(start: float, stop: float, num: int, steps: int, endpoint: bool, device: Any) -> Tensor:
    at = create(Iota(0, 1, num, as_dtype("float64")), device_of(device))[0]
    made = at * ((stop - start) / steps) + start
    if endpoint and num > 1:
        made = apply(Where(), at == float(num - 1), made.constant(float(stop)), made)
    return made


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: Any = None,
) -> Array:
    """Ones on diagonal k of zeros."""
    wanted = DEFAULTS["real floating"] if dtype is None else as_numpy(dtype)
    part = as_dtype(dtypes.PARTS.get(wanted, wanted))
    columns = n_rows if n_cols is None else n_cols
    made = Array(create(Eye(n_rows, columns, k, part), device_of(device))[0])
    return converted(made, wanted)


def meshgrid(*arrays: Array, indexing: Literal["xy", "ij"] = "xy") -> list[Array]:
    """Coordinates of a grid, one array per axis.

    Raises:
        ValueError: `indexing` is neither "xy" nor "ij".
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f'meshgrid: indexing is "xy" or "ij", not {indexing!r}')
    given = [as_array(a) for a in arrays]
    axes = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        axes[:2] = [1, 0]
    shape = [0] * len(given)
    for x, axis in zip(given, axes, strict=True):
        shape[axis] = x.size
    made = []
    for x, axis in zip(given, axes, strict=True):
        line = tuple(x.size if i == axis else 1 for i in range(len(given)))
        made.append(broadcast(Array(*(t.reshape(line) for t in x.parts)), tuple(shape)))
    return made


def _triangle(x: Array, k: int, lower: bool) -> Array:
    rows, columns = x.shape[-2:]
    at = [create(Iota(0, 1, n, as_dtype("int64")), x.device)[0] for n in (rows, columns)]
    below = at[1].reshape((1, columns)) - at[0].reshape((rows, 1))
    kept = (below <= k) if lower else (below >= k)
    mask = broadcast(Array(kept), x.shape).real_part
    zero = zeros((), dtype=x.real_part.dtype, device=x.device).real_part
    return x.map(lambda t: apply(Where(), mask, t, zero))


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Matrices with zeros above diagonal k."""
    return _triangle(as_array(x), k, True)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Matrices with zeros below diagonal k."""
    return _triangle(as_array(x), k, False)
