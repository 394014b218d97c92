"""Names and habits that NumPy has removed; programs were written for NumPy 1.16 to 1.23.

Names mean what they did, and arrays that tensors hand out are numbers if they have one element,
along however many axes (`int(x.numpy())`), which NumPy 2.4 no longer allows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import log
from treadle.base.dialect import Dialect

__all__ = ["forget", "keep", "single"]


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


class _Single(np.ndarray[Any, Any]):
    """An array of one element that is a number, too; whatever is made of it is a plain array."""

    def __array_wrap__(self, made: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if made.ndim == 0 and return_scalar:
            return made[()]
        return made.view(_Single) if made.size == 1 and made.ndim else made.view(np.ndarray)

    def _number(self) -> Any:
        if self.size != 1:
            raise TypeError("only arrays of one element can be converted to Python scalars")
        return self.item()

    def __int__(self) -> int:
        return int(self._number())

    def __float__(self) -> float:
        return float(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        return operator.index(self._number())

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()


_Single.__name__ = _Single.__qualname__ = "array"  # which is how arrays print themselves


def single(array: Any) -> Any:
    """An array of one element as one that is a number, too."""
    return array.view(_Single)


_REFUSES = np.lib.NumpyVersion(np.__version__) >= "2.4.0"


def keep() -> None:
    """Restore what `numpy.float` and its like, and numbers of one element, meant in older NumPy.

    Names come with a warning each.
    """
    if not _BEFORE:
        _BEFORE.append(vars(np)["__getattr__"])
        vars(np)["__getattr__"] = _answer
        Dialect.single = single if _REFUSES else None


def forget() -> None:
    """Give NumPy its own answer back."""
    if _BEFORE:
        vars(np)["__getattr__"] = _BEFORE.pop()
        Dialect.single = None
