"""Differences of two arrays: largest errors, units in the last place, where, and how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.array import Array

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
"""By element type: relative to the largest magnitude around a result; others must be equal."""
_BITS: dict[int, Any] = {2: np.int16, 4: np.int32, 8: np.int64}
_BESIDE = 3
"""Elements that are shown on either side of the first that differs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two arrays of one shape, compared.

    Attributes:
        largest: largest absolute difference; inf where NaN or an infinity stands on one side only.
        relative: the same over the largest magnitude that counts.
        ulps: largest number of representable values between two elements; 0 for integers.
        tolerance: what `relative` may be.
        count: elements that differ by more than that, of `size`.
        first: index of the first of them, None where there is none.
        around: values beside it in both arrays, as text.
    """

    largest: float
    relative: float
    ulps: float
    tolerance: float
    count: int
    size: int
    first: tuple[int, ...] | None
    around: str

    @property
    def differs(self) -> bool:
        """True if it is more than rounding."""
        return self.relative > self.tolerance

    def __str__(self) -> str:
        errors = f"largest {self.largest:.2g}, relative {self.relative:.2g}, {self.ulps:.3g} ulp"
        if self.first is None:
            return errors
        return f"{self.count} of {self.size} differ, first at {list(self.first)}; {errors}"


def tolerance_of(name: str, rtol: float | None = None) -> float:
    """Return the relative tolerance of an element type; `rtol` replaces the default of inexact
    types.
    """
    allowed = TOLERANCES.get(name, 0.0)
    return allowed if rtol is None or not allowed else rtol


def difference(
    found: Array, wanted: Array, *, scale: float = 0.0, rtol: float | None = None
) -> Difference:
    """Compare two arrays of one shape and element type.

    Args:
        found: what is looked at.
        wanted: what it should be.
        scale: largest magnitude of what the values were made of; sums may cancel, and what was
            added is the measure of their rounding.
        rtol: largest difference over the largest magnitude; None: by element type.
    """
    x, y = np.asarray(found), np.asarray(wanted)
    allowed = tolerance_of(y.dtype.name, rtol)
    apart = distances(x, y)
    largest = float(apart.max(initial=0.0))
    whole = max(scale, magnitude(y))
    relative = largest / whole if whole else largest
    far = apart > allowed * (whole or 1.0)
    count = int(np.count_nonzero(far))
    first = np.unravel_index(int(far.argmax()), far.shape) if count else None
    place = None if first is None else tuple(int(i) for i in first)
    around = "" if place is None else _around(x, y, place)
    return Difference(largest, relative, _ulps(x, y), allowed, count, y.size, place, around)


def distances(found: Array, wanted: Array) -> Array:
    """Absolute differences, in float64; inf where NaN or an infinity stands on one side only."""
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    x, y = found.astype(wide), wanted.astype(wide)
    same = (found == wanted) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.abs(x - y))
    if wanted.dtype.kind in "iub":  # Large integers that differ may be one number in float64.
        apart = np.where(same, 0.0, np.maximum(apart, 1.0))
    return np.where(np.isnan(apart), np.inf, apart)


def magnitude(array: Array) -> float:
    """The largest finite magnitude of a floating array; 0 of others."""
    given = np.asarray(array)
    if given.dtype.kind in "iub":
        return 0.0
    wide = np.abs(given.astype(np.complex128 if given.dtype.kind == "c" else np.float64))
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


def _ulps(x: Array, y: Array) -> float:
    """The largest distance in representable values, of finite pairs; 0 of what is not a float."""
    if x.dtype != y.dtype or x.dtype.name not in TOLERANCES or not x.size:
        return 0.0
    both = np.isfinite(x.astype(np.float64)) & np.isfinite(y.astype(np.float64))
    a, b = _ordered(x), _ordered(y)
    apart = np.where(a > b, a - b, b - a).view(np.uint64)  # which holds what int64 wraps around
    return float(np.max(apart, initial=0, where=both))


def _ordered(array: Array) -> Array:
    """Floats as numbers that count them, both zeros being 0."""
    bits = _BITS[array.dtype.itemsize]
    raw = np.ascontiguousarray(array).view(bits).astype(np.int64)
    counted: Array = np.where(raw < 0, np.iinfo(bits).min - raw, raw)
    return counted.reshape(array.shape)


def _around(x: Array, y: Array, first: tuple[int, ...]) -> str:
    """Values beside an element along the last axis, with the index of the first one shown."""
    if not first:
        return f"found {_value(x[()])}, expected {_value(y[()])}"
    begin = max(first[-1] - _BESIDE, 0)
    window: Any = (*first[:-1], slice(begin, first[-1] + _BESIDE + 1))
    shown = [", ".join(map(_value, a[window])) for a in (x, y)]
    return f"from {[*first[:-1], begin]}: found {shown[0]}; expected {shown[1]}"


def _value(element: Any) -> str:
    if np.asarray(element).dtype.kind in "iubc":
        return str(element)
    return f"{float(element):.6g}"
