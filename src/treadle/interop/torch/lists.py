"""Operators over lists of tensors (`_foreach_add`), as optimizers call them: one by one.

PyTorch has them to launch fewer kernels. A program is one launch, so its engine sees the operators
themselves and fuses them as any others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_PREFIX = "_foreach_"
_OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
}
"""Functions of a tensor and a number where those of two tensors take none."""
_NAMED: dict[str, Callable[..., Any]] = {
    "addcdiv": lambda x, y, z, value=1: torch.addcdiv(x, y, z, value=value),
    "addcmul": lambda x, y, z, value=1: torch.addcmul(x, y, z, value=value),
    "copy": lambda x, y, *_: torch.ops.aten.copy(x, y),
    "max": lambda x: torch.amax(x, tuple(range(x.ndim))),
    "norm": lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype),
    "powsum": lambda x, order=2, dtype=None: (x.abs() ** order).sum(dtype=dtype),
    "zero": torch.zeros_like,
}
"""Functions of one element that `torch` has under other names or arguments."""
_UNKNOWN = ("addcdiv", "addcmul")
"""Functions with factors in a tensor, whose numbers PyTorch wants while it captures."""


def _single(name: str, overload: str) -> Callable[..., Any] | None:
    """The function of one element of the lists."""
    if overload == "Tensor" and name in _UNKNOWN:
        return None
    if overload.startswith("Scalar") and name in _OF_NUMBERS:
        return _OF_NUMBERS[name]
    found: Callable[..., Any] | None = _NAMED.get(name) or getattr(torch, name, None)
    return found


def each_of(single: Callable[..., Any]) -> Callable[..., Any]:
    """The function of lists; what is not a list is the same for all."""

    def run(*given: Any, **options: Any) -> Any:
        lists = [isinstance(x, (list, tuple)) for x in given]
        count = len(given[lists.index(True)])
        at = (
            [x[i] if many else x for x, many in zip(given, lists, strict=True)]
            for i in range(count)
        )
        return [single(*each, **options) for each in at]

    return run


@functools.cache
def one_by_one() -> dict[Any, Callable[..., Any]]:
    """Return the parts of operators over lists; those that write have been taken apart before."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, full = schema.name.partition("::")
        if space != "aten" or not full.startswith(_PREFIX) or full.endswith("_"):
            continue
        overload = schema.overload_name or "default"
        operator = getattr(getattr(torch.ops.aten, full), overload)
        single = _single(full.removeprefix(_PREFIX), overload)
        if single is not None and not operator._schema.is_mutable:
            found[operator] = each_of(single)
    return found
