"""Tolerances of a backend's numbers against the reference's.

Relative and absolute tolerance are equal; sums are allowed the absolute one in units of the
largest result, since cancellation leaves small sums with the error of large terms.
"""

from __future__ import annotations

BY_DTYPE = {
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float64": 1e-11,
}
"""Some ten units in the last place; integers and truth values must be equal."""

WIDER = {
    "attention": 4.0,
    "attention_grad": 8.0,
    "batch_norm_grad": 8.0,
    "cum_prod": 4.0,
    "log_softmax": 2.0,
    "mat_inv": 100.0,
    "pow": 10.0,
    "prod": 4.0,
    "standardize_grad": 8.0,
    "svd": 100.0,
    "tan": 10.0,
    "winograd_conv": 10.0,
    "winograd_conv_grad_weight": 20.0,
}
"""Factors for ops whose own formula loses digits."""


def tolerance(op: str, dtype: str) -> float:
    """The tolerance of an op's results of an element type; 0 where they must be equal."""
    return BY_DTYPE.get(dtype, 0.0) * WIDER.get(op, 1.0)
