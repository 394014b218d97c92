"""Roundings of activations before they are multiplied with quantized weights."""

from __future__ import annotations

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import bfloat16

TERMS = 32
"""Neighbors along a row that share a scale."""
LEVELS = {"int8": 127, "int16": 127 * 256}
"""The largest magnitude of integers; one of 16 bits is 256 times a byte plus another."""
ACTIVATIONS = ("int16", "bfloat16", "int8")
"""Names of the roundings; with bfloat16 the values of weights are rounded, too."""
LEAST = 2.0**-100
"""Rows' parts whose largest magnitude is no larger count as 0: what it divides might overflow."""


def rounded_activations(x: Array, kind: str = "int16") -> Array:
    """Return the numbers that the integers of x stand for, float32; with bfloat16 the rounded
    values themselves.

    Of 32 neighbors the largest magnitude, divided by `LEVELS[kind]`, is the scale; an integer is x
    divided by it, rounded to nearest even. All 32 are NaN where one of them is not finite.

    Args:
        x: floats [..., k], k a multiple of 32.
        kind: one of `ACTIVATIONS`.
    """
    if kind == "bfloat16":
        return x.astype(bfloat16.numpy).astype(np.float32)
    levels = np.float32(LEVELS[kind])
    parts = x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // TERMS, TERMS)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        most = np.abs(parts).max(-1, keepdims=True)
        seen = most > np.float32(LEAST)
        inverse = np.where(seen, levels / most, np.float32(0))
        scale = np.where(seen, most / levels, np.float32(0))
        found = np.rint(parts * inverse) * scale
        wrong = ~np.isfinite(parts).all(-1, keepdims=True)
    return np.where(wrong, np.float32(np.nan), found).reshape(x.shape)
