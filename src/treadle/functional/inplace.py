"""Updates of a tensor by its handle."""

from __future__ import annotations

from typing import Any

from treadle.functional.arguments import as_tensor
from treadle.tensor import Tensor

__all__: list[str] = []


def _inplace_add_(dest: Tensor, delta: Tensor, alpha: Any, beta: Any) -> Tensor:
    """`dest` itself, standing for alpha dest + beta delta from now on, outside of any gradient.

    Its element type stays.

    Raises:
        ShapeError: delta does not broadcast to the shape of dest.
    """
    step = as_tensor(delta, dest).detach() * beta
    dest[...] = (dest.detach() * alpha + step.broadcast_to(*dest.shape)).astype(dest.dtype)
    return dest
