"""User data into host arrays and host arrays out to the user."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import DTypeError

Array = npt.NDArray[Any]

_NARROWED = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}


def as_host_array(data: Any, dtype: DType | None) -> Array:
    """A private row-major copy of user data.

    Without `dtype`, float64 becomes float32, int64 int32 and complex128 complex64.

    Raises:
        DTypeError: the data is no array of numbers, or a value does not fit the type.
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


def _as_array(data: Any) -> Array:
    try:
        source = np.asarray(data)
    except OverflowError:
        raise DTypeError("tensor", "an integer does not fit 64 bits") from None
    if source.dtype == object or source.dtype.kind in "USmM":
        raise DTypeError(
            "tensor",
            f"cannot make numbers of {type(data).__name__} data",
            saw=f"NumPy dtype {source.dtype}",
            hint="pass numbers, nested lists of equal lengths, or an array",
        )
    return source


def _check_fits(source: Array, wanted: np.dtype[Any]) -> None:
    """Refuse values that the narrower type would wrap or turn into infinities."""
    if not source.size:
        return
    if wanted.kind in "iu" and source.dtype.kind in "iu":
        bounds = np.iinfo(wanted)
        low, high = int(source.min()), int(source.max())
        if low < bounds.min or high > bounds.max:
            worst = low if low < bounds.min else high
            raise _does_not_fit(worst, wanted, "int64")
    elif wanted == np.float32 and source.dtype == np.float64:
        largest = np.abs(source, where=np.isfinite(source), out=np.zeros_like(source)).max()
        if largest > np.finfo(np.float32).max:
            raise _does_not_fit(float(largest), wanted, "float64")


def _does_not_fit(value: float, wanted: np.dtype[Any], wider: str) -> DTypeError:
    return DTypeError(
        "tensor",
        f"the value {value} does not fit {wanted}",
        hint=f'name a wider type: tensor(..., dtype="{wider}")',
    )


def exported(array: Array) -> Array:
    """What the user sees of a payload: row-major and read-only."""
    plain = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    view = plain.view()
    view.flags.writeable = False
    return view
