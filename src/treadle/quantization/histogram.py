"""Observers that keep a histogram, and cut off what is rare to resolve the rest better."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.qparams import QParams, QuantMode
from treadle.base.quantized import QuantDtypeMeta
from treadle.quantization.bounds import MinMaxObserver
from treadle.tensor import Tensor

_CUTS = 256
"""Bounds that are tried, as fractions of the range."""


class HistogramObserver(MinMaxObserver):
    """Chooses bounds with the least mean squared error of rounding and clipping.

    Error of bounds a and b: the sum over the histogram of the squared distance of what lies
    outside to its bound, plus step^2 / 12 for what lies inside.

    Args:
        bins: of the histogram.
        upsample_rate: parts that a bin is split into when the range grows.
        mode, eps, dtype, kwargs: as those of `MinMaxObserver`.

    Attributes:
        min_val, max_val: the range of the histogram.
        histogram: (bins,), a buffer of counts.
    """

    def __init__(
        self,
        bins: int = 2048,
        upsample_rate: int = 128,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtypeMeta = "qint8",
        **kwargs: Any,
    ) -> None:
        super().__init__(mode, eps, dtype, **kwargs)
        self.bins = bins
        self.upsample_rate = upsample_rate
        self.histogram = Tensor(np.zeros(bins), dtype="float64")
        self._chosen: tuple[Any, tuple[float, float]] | None = None

    def forward(self, x_orig: Tensor) -> Tensor:
        """The tensor itself, counted while the observer is enabled; not within compiled code."""
        if self._looks():
            self._count(x_orig.detach().numpy().astype(np.float64).reshape(-1))
        return x_orig

    def _count(self, values: Array) -> None:
        values = values[np.isfinite(values)]
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        counts = self.histogram.numpy()
        if counts.any():
            old = self._bounds()
            low, high = min(low, old[0]), max(high, old[1])
            counts = self._spread(counts, old, (low, high))
        counts = counts + np.histogram(values, self.bins, _wide(low, high))[0]
        self.min_val._reset(Tensor(low, dtype="float32"))
        self.max_val._reset(Tensor(high, dtype="float32"))
        self.histogram._reset(Tensor(counts, dtype="float64"))

    def _bounds(self) -> tuple[float, float]:
        return self.min_val.item(), self.max_val.item()

    def _spread(self, counts: Array, old: tuple[float, float], new: tuple[float, float]) -> Array:
        """Counts over one range as counts over a wider one."""
        if old == new:
            return counts
        parts = np.repeat(counts / self.upsample_rate, self.upsample_rate)
        at = _centers(_wide(*old), parts.size)
        return np.histogram(at, self.bins, _wide(*new), weights=parts)[0]

    def get_qparams(self) -> QParams:
        """Scale and zero point for the best bounds; see the class."""
        key = tuple(t._data for t in (self.histogram, self.min_val, self.max_val))
        known = self._chosen
        if known is None or any(a is not b for a, b in zip(known[0], key, strict=True)):
            counts = self.histogram.numpy()
            bounds = self._search(counts) if counts.any() else self._bounds()
            known = self._chosen = key, bounds
        low, high = (Tensor(v, dtype="float32") for v in known[1])
        return self._calculate_qparams(low, high)

    def _search(self, counts: Array) -> tuple[float, float]:
        low, high = self._bounds()
        at = _centers(_wide(low, high), self.bins)
        levels = self.dtype.qmax - self.dtype.qmin
        cuts = np.arange(1, _CUTS + 1) / _CUTS
        if self.mode is QuantMode.SYMMERTIC:
            most = max(-low, high)
            tops = cuts * most
            best = tops[np.argmin(_errors(counts, at, -tops, tops, levels))]
            return max(low, -best), min(high, best)
        low, high = min(low, 0.0), max(high, 0.0)
        for _ in range(2):  # One bound, then the other, for the bound found before.
            tops = cuts * high if high > 0 else np.zeros(1)
            high_cut = tops[np.argmin(_errors(counts, at, np.full_like(tops, low), tops, levels))]
            bottoms = cuts * low if low < 0 else np.zeros(1)
            fixed = np.full_like(bottoms, high_cut)
            low_cut = bottoms[np.argmin(_errors(counts, at, bottoms, fixed, levels))]
            low, high = low_cut, high_cut
        return float(low), float(high)


class KLObserver(HistogramObserver):
    """Chooses the symmetric bound whose rounded distribution loses the least information.

    For each bound, the histogram of magnitudes below it, with all above in its last bin, is
    compared with itself merged to as many bins as there are levels, by the Kullback-Leibler
    divergence (Migacz, "8-bit inference with TensorRT", GTC 2017). Arguments and attributes are
    those of `HistogramObserver`; the mode is symmetric.
    """

    def __init__(
        self,
        bins: int = 2048,
        upsample_rate: int = 128,
        eps: float = 1e-5,
        dtype: str | QuantDtypeMeta = "qint8",
        **kwargs: Any,
    ) -> None:
        super().__init__(bins, upsample_rate, QuantMode.SYMMERTIC, eps, dtype, **kwargs)

    def _search(self, counts: Array) -> tuple[float, float]:
        low, high = self._bounds()
        most = max(-low, high)
        at = np.abs(_centers(_wide(low, high), self.bins))
        magnitudes = np.histogram(at, self.bins, (0.0, most), weights=counts)[0]
        levels = self.dtype.qmax + 1
        tried = range(min(levels, self.bins), self.bins + 1, max(1, self.bins // _CUTS))
        best = min(tried, key=lambda n: _divergence(magnitudes, n, levels))
        bound = most * best / self.bins
        return max(low, -bound), min(high, bound)


def _wide(low: float, high: float) -> tuple[float, float]:
    """A range that is not empty, and can be cut into bins."""
    margin = max(0.5, abs(low) * 2.0**-20)
    return (low, high) if high > low else (low - margin, high + margin)


def _centers(bounds: tuple[float, float], bins: int) -> Array:
    step = (bounds[1] - bounds[0]) / bins
    found: Array = bounds[0] + step * (np.arange(bins) + 0.5)
    return found


def _errors(counts: Array, at: Array, low: Array, high: Array, levels: int) -> Array:
    """The squared error for each pair of bounds."""
    clipped = np.clip(at, low[:, None], high[:, None])
    beyond = ((at - clipped) ** 2 * counts).sum(axis=1)
    inside = ((clipped == at) * counts).sum(axis=1)
    found: Array = np.asarray(beyond + inside * ((high - low) / levels) ** 2 / 12, np.float64)
    return found


def _divergence(counts: Array, bound: int, levels: int) -> float:
    """Return the loss of the first `bound` bins when they are merged to `levels`."""
    kept = counts[:bound].copy()
    present = kept > 0
    level = np.arange(bound) * levels // bound
    sums = np.bincount(level, kept, levels)
    filled = np.bincount(level, present, levels)
    merged = np.where(present, (sums / np.maximum(filled, 1))[level], 0.0)
    kept[-1] += counts[bound:].sum()
    p, q = kept / kept.sum(), merged / max(merged.sum(), 1e-30)
    some = p > 0
    return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-9))).sum())
