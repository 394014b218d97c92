"""Elementary functions as kernel IR: float32 and float64 values of any number of lanes.

Every function holds over the whole domain: NaN, infinities, signed zeros, subnormal numbers,
overflow and underflow as IEEE 754 and C have them. Code is free of branches, except for the
reduction of large angles. `BOUNDS` says how exact the functions are; the tests hold them to it.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.backends.codegen.kernel.language import Value
from treadle.backends.codegen.scalars.vector_math_exp import cosh, erf, exp, expm1, sinh, tanh
from treadle.backends.codegen.scalars.vector_math_log import acosh, asinh, atanh, log, log1p, power
from treadle.backends.codegen.scalars.vector_math_trig import acos, asin, atan, atan2, cos, sin, tan
from treadle.base import dtype as dt
from treadle.base.dtype import DType

__all__ = [
    "BOUNDS",
    "FUNCTIONS",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "expm1",
    "log",
    "log1p",
    "power",
    "sin",
    "sinh",
    "tan",
    "tanh",
]

FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "erf": erf,
    "pow": power,
}
"""By the names of `ops.scalar.INTRINSICS`."""

BOUNDS: dict[str, dict[DType, float]] = {
    name: {dt.float32: single, dt.float64: double}
    for name, single, double in (
        ("exp", 1.0, 1.0),
        ("expm1", 1.75, 1.75),
        ("log", 1.0, 1.0),
        ("log1p", 1.75, 1.5),
        ("sin", 1.75, 1.75),
        ("cos", 1.75, 1.75),
        ("tan", 1.75, 1.75),
        ("asin", 2.25, 2.25),
        ("acos", 1.5, 1.5),
        ("atan", 2.0, 2.0),
        ("atan2", 2.0, 2.0),
        ("sinh", 1.75, 1.75),
        ("cosh", 1.5, 1.5),
        ("tanh", 2.25, 2.25),
        ("asinh", 2.0, 2.0),
        ("acosh", 2.25, 2.25),
        ("atanh", 2.0, 2.0),
        ("erf", 1.5, 1.5),
        ("pow", 0.75, 0.75),
    )
}
"""Largest error in units in the last place of the result."""
