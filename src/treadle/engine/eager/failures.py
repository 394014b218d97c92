"""Failures of kernels as designed errors: op, what it saw, a fix, the user's line."""

from __future__ import annotations

from treadle.base.errors import (
    DTypeError,
    IndexRangeError,
    OutOfMemory,
    ShapeError,
    TreadleError,
)
from treadle.base.types import TensorType
from treadle.ops.op import Op

EXPLAINED = (ValueError, TypeError, IndexError, MemoryError, OverflowError)
"""Errors of NumPy and engines for operands that do not fit; anything else is a defect."""


_ADDRESSABLE = 2**47
"""Bytes a process can address on the machines there are."""


def explain(op: Op, types: tuple[TensorType, ...], error: Exception) -> Exception:
    """The designed error for what a launch raised.

    Nothing is checked before a launch, so the type rule is asked now: its message is better
    informed than NumPy's.
    """
    if isinstance(error, MemoryError):
        return _out_of_memory(op, types)
    try:
        results = op.infer(*types)
    except TreadleError as designed:
        return designed
    if isinstance(error, ValueError) and _beyond_memory(results, error):
        return _out_of_memory(op, types)
    saw, problem = op.saw(types) or str(op), str(error) or type(error).__name__
    if isinstance(error, IndexError):
        hint = "indices of an axis with n elements run from -n to n - 1"
        return IndexRangeError(op.name, problem, saw=saw, hint=hint)
    if isinstance(error, (TypeError, OverflowError)):
        hint = "cast with astype() to a type that holds the values"
        return DTypeError(op.name, problem, saw=saw, hint=hint)
    hint = "compare the shapes with what the op expects; reshape() or transpose() changes them"
    return ShapeError(op.name, problem, saw=saw, hint=hint)


def _beyond_memory(results: tuple[TensorType, ...], error: ValueError) -> bool:
    """Return whether a launch failed for want of addresses, which NumPy calls a wrong value."""
    huge = any(t.is_static and t.nbytes >= _ADDRESSABLE for t in results)
    return huge or "too big" in str(error) or "aximum allowed dimension" in str(error)


def _out_of_memory(op: Op, types: tuple[TensorType, ...]) -> OutOfMemory:
    try:
        wanted = [t for t in op.infer(*types) if t.is_static]
    except TreadleError:
        wanted = []
    size = ", ".join(f"{t} ({t.nbytes} bytes)" for t in wanted)
    return OutOfMemory(
        op.name,
        f"not enough memory for the result {size}".rstrip(),
        saw=op.saw(types) or str(op),
        hint="use smaller batches or shapes",
    )
