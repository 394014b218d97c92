"""Names that NumPy has removed: MegEngine's programs were written for NumPy 1.16 to 1.23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import log

__all__ = ["forget", "keep"]


def _in1d(ar1: Any, ar2: Any, *args: Any, **kwargs: Any) -> Any:
    return np.isin(np.ravel(ar1), ar2, *args, **kwargs)


_REMOVED: dict[str, Any] = {
    "AxisError": np.exceptions.AxisError,
    "Inf": np.inf,
    "Infinity": np.inf,
    "NINF": -np.inf,
    "NaN": np.nan,
    "PINF": np.inf,
    "alltrue": np.all,
    "bool": bool,
    "bool8": np.bool_,
    "complex": complex,
    "complex_": np.complex128,
    "cumproduct": np.cumprod,
    "float": float,
    "float_": np.float64,
    "in1d": _in1d,
    "infty": np.inf,
    "int": int,
    "int0": np.intp,
    "mat": np.asmatrix,
    "object": object,
    "product": np.prod,
    "round_": np.round,
    "row_stack": np.vstack,
    "sometrue": np.any,
    "str": str,
    "string_": np.bytes_,
    "unicode_": np.str_,
}
"""Meanings of names that NumPy removed. Only those count that the installed NumPy lacks."""

_BEFORE: list[Callable[[str], Any]] = []
"""NumPy's own answer to names that it lacks, while ours is in its place."""


def _answer(name: str) -> Any:
    if name not in _REMOVED:
        return _BEFORE[0](name)
    log.tell_once(f"numpy.{name} is gone from NumPy {np.__version__}; it means what it did before")
    return _REMOVED[name]


def keep() -> None:
    """Have `numpy.float` and its like mean what they meant, with a warning each."""
    if not _BEFORE:
        _BEFORE.append(vars(np)["__getattr__"])
        vars(np)["__getattr__"] = _answer


def forget() -> None:
    """Give NumPy its own answer back."""
    if _BEFORE:
        vars(np)["__getattr__"] = _BEFORE.pop()
