"""The extension `fft`: transforms as products with small matrices, so that they differentiate.

A length is split into factors (Cooley and Tukey 1965) until they are small or prime; a prime of n
takes n * n multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from treadle.array_api import dtypes
from treadle.array_api import elementwise as ew
from treadle.array_api.array import Array, as_array, converted, require
from treadle.array_api.creation import arange, asarray, zeros
from treadle.array_api.manipulation import (
    Axes,
    axes_of,
    axis_of,
    concat,
    flip,
    moveaxis,
    reshape,
    roll,
)
from treadle.array_api.products import matmul

__all__ = [
    *("fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft"),
    *("irfft", "irfftn", "rfft", "rfftfreq", "rfftn"),
]
Norm = Literal["backward", "ortho", "forward"]
_SMALL = 32
"""Lengths up to this are one product with a matrix."""


@lru_cache(maxsize=64)
def _factor(n: int) -> int:
    """The divisor of n nearest below its root; 1 for primes."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _turns(rows: int, columns: int, n: int, sign: float, like: Array) -> Array:
    """exp(sign * 2 pi i * row * column / n), the product reduced first."""
    steps = np.outer(np.arange(rows), np.arange(columns)) % n
    angles = steps * (sign * 2.0 * math.pi / n)
    table = np.cos(angles) + 1j * np.sin(angles)
    return asarray(table, dtype=like.dtype, device=like.device)


def _transformed(x: Array, sign: float) -> Array:
    """The sums along the last axis, not scaled."""
    n = x.shape[-1]
    p = _factor(n)
    if n <= _SMALL or p == 1:
        return matmul(x, _turns(n, n, n, sign, x))
    q, lead = n // p, x.shape[:-1]
    inner = _transformed(reshape(x, (*lead, p, q)).mT, sign)
    inner = ew.multiply(inner, _turns(q, p, n, sign, x))
    return reshape(_transformed(inner.mT, sign).mT, x.shape)


def _fitted(x: Array, n: int) -> Array:
    """The last axis cut off, or with zeros behind it."""
    have = x.shape[-1]
    if n <= have:
        return x[..., :n] if n < have else x
    behind = zeros((*x.shape[:-1], n - have), dtype=x.dtype, device=x.device)
    return concat([x, behind], axis=-1)


def _scale(n: int, norm: Norm, forward: bool) -> float:
    if norm not in ("backward", "ortho", "forward"):
        raise ValueError(f'fft: norm is "backward", "ortho" or "forward", not {norm!r}')
    if norm == "ortho":
        return 1.0 / math.sqrt(n)
    return 1.0 / n if (norm == "forward") == forward else 1.0


def _complex(name: str, x: Array) -> Array:
    x = as_array(x, name)
    require(name, x, *ew.FLOATING)
    return converted(x, dtypes.WHOLE.get(x.dtype, x.dtype))


def _along(x: Array, axis: int, n: int, compute: Callable[[Array], Array]) -> Array:
    if n < 1:
        raise ValueError(f"fft: a transform of {n} elements does not exist")
    at = axis_of(axis, x.ndim, "fft")
    return moveaxis(compute(moveaxis(x, at, -1)), -1, at)


def _whole(name: str, x: Array, n: int | None, axis: int, norm: Norm, forward: bool) -> Array:
    x = _complex(name, x)
    count = x.shape[axis] if n is None else n
    scale, sign = _scale(max(count, 1), norm, forward), -1.0 if forward else 1.0
    return _along(
        x, axis, count, lambda t: ew.multiply(_transformed(_fitted(t, count), sign), scale)
    )


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Discrete Fourier transform along an axis."""
    return _whole("fft", x, n, axis, norm, True)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Inverse discrete Fourier transform along an axis."""
    return _whole("ifft", x, n, axis, norm, False)


def _several(
    x: Array, s: Sequence[int] | None, axes: Sequence[int] | None
) -> list[tuple[int, int]]:
    """(axis, length) of transforms over several axes."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    known = [axis_of(a, x.ndim, "fft") for a in axes]
    lengths = [x.shape[a] for a in known] if s is None else list(s)
    sizes = [x.shape[a] if n == -1 else n for a, n in zip(known, lengths, strict=True)]
    return list(zip(known, sizes, strict=True))


def fftn(
    x: Array,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Array:
    """Discrete Fourier transform over several axes."""
    x = _complex("fftn", x)
    for axis, n in _several(x, s, axes):
        x = fft(x, n=n, axis=axis, norm=norm)
    return x


def ifftn(
    x: Array,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Array:
    """Inverse discrete Fourier transform over several axes."""
    x = _complex("ifftn", x)
    for axis, n in _several(x, s, axes):
        x = ifft(x, n=n, axis=axis, norm=norm)
    return x


# -- real numbers ------------------------------------------------------------------------------


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The transform of real numbers: the first n // 2 + 1 of its elements."""
    x = as_array(x, "rfft")
    require("rfft", x, "real floating")
    count = x.shape[axis] if n is None else n
    made = _whole("rfft", x, n, axis, norm, True)
    at = axis_of(axis, x.ndim, "rfft")
    return made[(*(slice(None),) * at, slice(0, count // 2 + 1))]


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The real numbers of which x is the transform's first half."""
    x = _complex("irfft", x)
    count = 2 * (x.shape[axis] - 1) if n is None else n
    scale = _scale(max(count, 1), norm, False)

    def compute(t: Array) -> Array:
        half = _fitted(t, count // 2 + 1)
        rest = ew.conj(flip(half[..., 1 : (count + 1) // 2], axis=-1))
        # A real result has real numbers at both ends.
        ends = [ew.real(half[..., :1]), half[..., 1:]]
        whole = concat([converted(ends[0], t.dtype), ends[1], rest], axis=-1)
        if count % 2 == 0:
            middle = converted(ew.real(half[..., count // 2 :]), t.dtype)
            whole = concat([whole[..., : count // 2], middle, rest], axis=-1)
        return ew.real(ew.multiply(_transformed(whole[..., :count], 1.0), scale))

    return _along(x, axis, count, compute)


def rfftn(
    x: Array,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Array:
    """`rfft` along the last axis, then `fft` along the others."""
    x = as_array(x, "rfftn")
    *others, (last, n) = _several(x, s, axes)
    made = rfft(x, n=n, axis=last, norm=norm)
    for axis, count in reversed(others):
        made = fft(made, n=count, axis=axis, norm=norm)
    return made


def irfftn(
    x: Array,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: Norm = "backward",
) -> Array:
    """`ifft` along all axes but the last, then `irfft` along that."""
    made = _complex("irfftn", x)
    *others, (last, n) = _several(made, s, axes)
    for axis, count in others:
        made = ifft(made, n=count, axis=axis, norm=norm)
    return irfft(made, n=None if s is None else n, axis=last, norm=norm)


_SWAPPED: dict[str, Any] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The real transform of numbers of which x is the first, Hermitian half."""
    return irfft(ew.conj(_complex("hfft", x)), n=n, axis=axis, norm=_SWAPPED.get(norm, norm))


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The Hermitian half of the inverse transform of real samples; inverse of `hfft`."""
    return ew.conj(rfft(x, n=n, axis=axis, norm=_SWAPPED.get(norm, norm)))


# -- frequencies -------------------------------------------------------------------------------


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of a transform of n samples, d apart."""
    kind = dtypes.DEFAULTS["real floating"] if dtype is None else dtype
    places = arange(n, dtype=kind, device=device)
    turned = ew.where(ew.less(places, float((n + 1) // 2)), places, ew.subtract(places, float(n)))
    return ew.divide(turned, n * d)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of a transform of n real samples, d apart: n // 2 + 1 of them."""
    kind = dtypes.DEFAULTS["real floating"] if dtype is None else dtype
    return ew.divide(arange(n // 2 + 1, dtype=kind, device=device), n * d)


def fftshift(x: Array, /, *, axes: Axes | None = None) -> Array:
    """The frequency 0 in the middle."""
    x = as_array(x, "fftshift")
    known = axes_of(axes, x.ndim, "fftshift")
    return roll(x, tuple(x.shape[a] // 2 for a in known), axis=known)


def ifftshift(x: Array, /, *, axes: Axes | None = None) -> Array:
    """The frequency 0 in front again."""
    x = as_array(x, "ifftshift")
    known = axes_of(axes, x.ndim, "ifftshift")
    return roll(x, tuple(-(x.shape[a] // 2) for a in known), axis=known)
