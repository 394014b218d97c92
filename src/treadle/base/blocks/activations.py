"""Activations as bytes: what a product with quantized weights multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

TERMS = 32
"""Neighbors along a row that share a scale."""
LEVELS = 127
"""The largest magnitude of a byte."""
LEAST = 2.0**-100
"""Rows' parts whose largest magnitude is no larger count as 0: 127 divided by it might overflow."""


def rounded_activations(x: Array) -> Array:
    """What the bytes of x stand for, float32.

    Of 32 neighbors the largest magnitude, divided by 127, is the scale; a byte is x divided by it,
    rounded to nearest even. All 32 are NaN where one of them is not finite.

    Args:
        x: floats [..., k], k a multiple of 32.
    """
    parts = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // TERMS, TERMS)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        most = np.abs(parts).max(-1, keepdims=True)
        seen = most > np.float32(LEAST)
        inverse = np.where(seen, np.float32(LEVELS) / most, np.float32(0))
        scale = np.where(seen, most / np.float32(LEVELS), np.float32(0))
        found = np.rint(parts * inverse) * scale
        wrong = ~np.isfinite(parts).all(-1, keepdims=True)
    return np.where(wrong, np.float32(np.nan), found).reshape(x.shape)
