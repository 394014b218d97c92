"""Evenly spaced integers (`linspace`, `logspace`): PyTorch's parts differ from its operators.

The operators cut ends to integers first, count from both ends, and round where the processor's
instructions do. So numbers that are known are PyTorch's own, as a constant, and others are left to
it. Floats keep PyTorch's parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from treadle.graph.builder import GraphOperand
from treadle.interop.torch.table import OperatorCall, lowers

_OPERATORS = ("linspace", "logspace")
_OVERLOADS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
_NAMES = [f"{name}.{overload}" for name in _OPERATORS for overload in _OVERLOADS]
_MOST = 1 << 16
"""Elements of a constant."""


def apart(parts: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the parts of these operators for floats alone, of PyTorch's table of parts."""
    whole = [getattr(getattr(torch.ops.aten, n), o) for n in _OPERATORS for o in _OVERLOADS]
    return {operator: _of_floats(parts[operator]) for operator in whole}


def _of_floats(part: Callable[..., Any]) -> Callable[..., Any]:
    def run(*given: Any, dtype: torch.dtype | None = None, **named: Any) -> Any:
        if dtype is None or dtype.is_floating_point or dtype.is_complex:
            return part(*given, dtype=dtype, **named)
        return NotImplemented

    return run


@lowers(*_NAMES)
def _spaced(call: OperatorCall, start: Any, end: Any, steps: Any, *base: Any, **_: Any) -> Any:
    if not all(isinstance(v, (int, float)) for v in (start, end, *base)):
        raise NotImplementedError("its ends are known only at run time")
    if not isinstance(steps, int) or steps > _MOST:
        raise NotImplementedError(f"it has more than {_MOST} integers, or a number of a symbol")
    operator = getattr(torch, call.name.partition(".")[0])
    with unset_fake_temporarily():
        made = operator(start, end, steps, *base, dtype=call.values.dtype, device="cpu").numpy()
    found: GraphOperand = call.builder.constant(made)
    return found


__all__ = ["apart"]
