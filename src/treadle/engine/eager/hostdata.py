"""User data into host arrays and host arrays out to the user."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.dialect import Dialect
from treadle.base.dtype import DType, as_dtype, bfloat16
from treadle.base.errors import DTypeError, OutOfMemory, ShapeError
from treadle.base.quantized import QuantizedType, quantized_type_of, to_stored
from treadle.base.symbol import Expr

_NARROWED = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}
_LARGEST_BFLOAT16 = (2 - 2.0**-7) * 2.0**127


def host_data(data: Any, dtype: Any) -> tuple[Array, QuantizedType | None]:
    """A private row-major copy of user data, and what its integers stand for if it is quantized.

    Raises:
        DTypeError: the data is not an array of numbers, or a value does not fit the type.
    """
    given = data.dtype if dtype is None and isinstance(data, np.ndarray) else dtype
    quantized = quantized_type_of(given)
    if quantized is not None:
        return _as_stored_array(data, quantized), quantized
    return as_host_array(data, None if dtype is None else as_dtype(dtype)), None


def as_host_array(data: Any, dtype: DType | None) -> Array:
    """A private row-major copy of user data.

    Without `dtype`, float64 becomes float32, int64 int32 and complex128 complex64.

    Raises:
        DTypeError: the data is not an array of numbers, or a value does not fit the type.
    """
    if data is None:
        return np.zeros(0, np.float32 if dtype is None else dtype.numpy)
    source = _as_array(data)
    if dtype is None:
        wanted = _NARROWED.get(source.dtype, source.dtype)
        as_dtype(wanted)
    else:
        wanted = dtype.numpy
    if wanted != source.dtype:
        _check_fits(source, wanted)
    with np.errstate(all="ignore"):
        return np.array(source, dtype=wanted, order="C", copy=True)


def _as_stored_array(data: Any, kind: QuantizedType) -> Array:
    """A private row-major array of the integers that stand for user data.

    Integers are taken for stored ones, which must lie in the type's range; real numbers are
    rounded to them.

    Raises:
        DTypeError: the data is not an array of numbers, or an integer lies outside of the range.
    """
    source = _as_array([] if data is None else data)
    if source.dtype.kind == "f" or as_dtype(source.dtype).is_float:
        return np.array(to_stored(source, kind), kind.stored.numpy, order="C")
    low, high = kind.meta.qmin, kind.meta.qmax
    if source.dtype.kind not in "biu" or (
        source.size and not (low <= int(source.min()) and int(source.max()) <= high)
    ):
        raise DTypeError(
            "tensor",
            f"the integers of {kind} lie within [{low}, {high}]",
            saw=f"{source.dtype} data",
            hint="pass real numbers, which are rounded and clamped",
        )
    return np.array(source, dtype=kind.stored.numpy, order="C", copy=True)


def _as_array(data: Any) -> Array:
    try:
        source = np.asarray(data)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise ShapeError(
            "tensor",
            "the rows of a nested list differ in length",
            hint="pad them to one length, or make one tensor per row",
        ) from None
    if source.dtype == object and any(isinstance(v, Expr) for v in source.flat):
        # Extents of the call that is captured; which they are, the program depends on.
        source = np.array([operator.index(v) for v in source.flat]).reshape(source.shape)
    if source.dtype == object and all(isinstance(v, int) for v in source.flat):
        raise DTypeError("tensor", "an integer does not fit 64 bits")
    if source.dtype == object or source.dtype.kind in "USmM":
        raise DTypeError(
            "tensor",
            f"cannot make numbers of {type(data).__name__} data",
            saw=f"NumPy dtype {source.dtype}",
            hint="pass numbers, nested lists of equal lengths, or an array",
        )
    return source


def _check_fits(source: Array, wanted: np.dtype[Any]) -> None:
    """Refuse values that another type would wrap, or turn into infinities."""
    if not source.size or np.can_cast(source.dtype, wanted):
        return
    if source.dtype.kind == "c":
        if wanted.kind not in "bc":
            raise _does_not_fit(source.flat[0], wanted, "complex64")
    elif wanted.kind in "iu":
        _check_integers(source, wanted)
    elif as_dtype(wanted).is_float and source.dtype.kind in "iuf":
        limit = _LARGEST_BFLOAT16 if wanted == bfloat16.numpy else np.finfo(wanted).max
        finite = source[np.isfinite(source)].astype(np.float64)
        # Values up to half a step beyond the largest one are rounded to it, not to infinity.
        worst = finite[np.abs(finite) > float(limit)]
        worst = worst[np.isinf(worst.astype(wanted))]
        if worst.size:
            raise _does_not_fit(float(worst[0]), wanted, "float64")


def _check_integers(source: Array, wanted: np.dtype[Any]) -> None:
    """Refuse NaN and numbers out of range; fractions will be cut off, as in NumPy."""
    bounds = np.iinfo(wanted)
    values = source if source.dtype.kind in "iu" else np.trunc(source.astype(np.float64))
    for value in (values.min(), values.max()):  # one of them is NaN if any element is
        if not int(bounds.min) <= value <= int(bounds.max):
            wider = "int64" if source.dtype.kind in "iu" else "float32"
            raise _does_not_fit(value, wanted, wider)


def _does_not_fit(value: Any, wanted: np.dtype[Any], wider: str) -> DTypeError:
    return DTypeError(
        "tensor",
        f"the value {value} does not fit {wanted}",
        hint=f'name a wider type: tensor(..., dtype="{wider}")',
    )


def as_scalar_array(value: float, dtype: DType) -> Array:
    """A Python number as a 0-d array; integers must fit, floats round, to infinity if need be.

    Raises:
        DTypeError: an integer lies outside the range of the element type.
    """
    try:
        with np.errstate(over="ignore"):
            return np.asarray(value, dtype=dtype.numpy)
    except (OverflowError, ValueError):
        raise DTypeError(
            "scalar",
            f"the number {value} does not fit {dtype.name}",
            hint='cast the tensor first, for example with astype("int64")',
        ) from None


def exported(array: Array, surface: np.dtype[Any]) -> Array:
    """Return a payload as the user sees it: row-major and read-only, under the dtype `surface`."""
    try:
        plain = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    except MemoryError as error:
        raise OutOfMemory("numpy", str(error)) from None
    view = plain.view(surface) if surface.metadata else plain.view()
    view.flags.writeable = False
    if Dialect.single is not None and view.size == 1 and view.ndim:
        view = Dialect.single(view)
    return view
