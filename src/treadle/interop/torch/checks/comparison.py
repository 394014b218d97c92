"""Results and gradients of PyTorch's operators beside PyTorch's own."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from treadle.interop.torch.strides import has_gaps

# Relative to an element, and to the largest element of a result: sums come in another order.
TOLERANCES = {
    torch.float64: (1e-7, 1e-9),
    torch.float32: (2e-4, 2e-5),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (4e-3, 4e-3),
    torch.complex64: (2e-4, 2e-5),
    torch.complex128: (1e-7, 1e-9),
}


class Differs(Exception):
    """A result is not PyTorch's."""


def seed(value: int) -> None:
    """Seed every generator that records draw from."""
    random.seed(value)
    np.random.seed(value % (1 << 32))
    torch.manual_seed(value)


def copied(value: Any) -> Any:
    """The arguments again, with leaves of their own."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.nn.Module):
            return copy.deepcopy(x)
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().clone().requires_grad_(x.requires_grad)

    return pytree.tree_map(one, value)


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in nested values."""
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def compare(ours: list[Any], theirs: list[Any], what: str, settled: bool = True) -> None:
    """Raise `Differs` unless results are equal; `settled`: not only their types."""
    if len(ours) != len(theirs):
        raise Differs(f"{len(ours)} {what}s, not {len(theirs)}")
    for number, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(y, torch.Tensor):
            equal = x == y or (x != x and y != y) if isinstance(y, float) else x == y
            if settled and isinstance(y, (int, float, bool, str)) and not equal:
                raise Differs(f"{what} {number} is {x!r}, not {y!r}")
            continue
        if not isinstance(x, torch.Tensor):
            raise Differs(f"{what} {number} is {x!r}, not a tensor")
        if y.layout is not torch.strided:
            continue
        problem = difference(x.detach(), y.detach(), settled)
        if not problem and lies_elsewhere(x, y):
            problem = f"strides {x.stride()}, not {y.stride()}"
        if problem:
            raise Differs(f"{what} {number}: {problem}")


def unlike(ours: Any, theirs: Any, settled: bool) -> str:
    """Return where results and gradients differ; "" if they do not."""
    try:
        compare(ours[0], theirs[0], "result", settled)
        compare(ours[1], theirs[1], "gradient", settled)
    except Differs as error:
        return str(error)
    return ""


def difference(x: torch.Tensor, y: torch.Tensor, settled: bool) -> str:
    """Return what sets a tensor apart from the expected one; "" if nothing does."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{x.dtype} {list(x.shape)}, not {y.dtype} {list(y.shape)}"
    if not settled:
        return ""
    relative, absolute = TOLERANCES.get(y.dtype, (0.0, 0.0))
    scale = 1.0
    if relative and y.numel():
        scale = max(scale, float(y.abs().double().nan_to_num(0, 0, 0).max()))
    equal = torch.isclose(x, y, relative, absolute * scale, equal_nan=True)
    if bool(equal.all()):
        return ""
    place = tuple((~equal).nonzero()[0].tolist())
    count = int((~equal).sum())
    return f"{x[place].item()!r}, not {y[place].item()!r} at {place} ({count} of {y.numel()})"


def lies_elsewhere(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether strides are others where axes are longer than 1 and memory has no gaps."""
    wide = [d for d, extent in enumerate(y.shape) if extent > 1]
    return not has_gaps(y) and any(x.stride(d) != y.stride(d) for d in wide)
