"""Calls of programs on tensors' own memory, without arrays in between.

A call of a small program costs what is done around it. Addresses of tensors go straight into the
program's table, and results are written into tensors that PyTorch made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle.base.shape import row_major_strides
from treadle.engine.execute import Executor, Instance, Runner

LARGE = 1 << 16
"""Bytes from which on a result is better in memory that earlier ones gave back."""
Straight = Callable[[Sequence[torch.Tensor]], list[Any] | None]


def _maker() -> Callable[..., torch.Tensor]:
    """Return the function that makes a tensor of a shape, strides and a type: PyTorch's short way,
    where it has one.
    """
    found: Callable[..., torch.Tensor] | None = getattr(
        torch._C._dynamo.guards, "_empty_strided_cpu", None
    )
    return found or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))


def straight(runner: Runner, count: int, results: Sequence[Any]) -> Straight | None:
    """The call of a program on tensors' memory; None where it has to go through arrays.

    Args:
        runner: of the program.
        count: of its inputs.
        results: see `parts.Result`.

    Returns:
        A function that gives the results, or None for tensors without dense memory, or where
        an index is out of range: arrays then tell what is to be told.
    """
    run = runner.by_address() if isinstance(runner, Executor | Instance) else None
    if run is None or any(r.dtype is None for r in results):
        return None
    forms = [_form(r) for r in results]
    if any(math.prod(shape) * dtype.itemsize >= LARGE for shape, _, dtype in forms):
        return None
    empty = _maker()

    def call(tensors: Sequence[torch.Tensor]) -> list[Any] | None:
        addresses = [t.data_ptr() for t in tensors if t.is_contiguous() and not t.is_neg()]
        # Tensors without memory (zeros of gradients, no elements) have address 0.
        if len(addresses) != count or not all(addresses):
            return None
        made = [empty(*form) for form in forms]
        for t in made:
            addresses.append(t.data_ptr())
        return made if run(addresses) else None

    return call


def _form(result: Any) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Shape, strides and type of a tensor that a program returns."""
    if result.place is not None:
        return result.place.shape, result.place.strides, result.dtype
    shape = tuple(map(int, result.value.shape))
    return shape, row_major_strides(shape), result.dtype
