"""Parameters of distributions as users pass them, as tensors of one shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.dtype import float32
from treadle.base.errors import ShapeError
from treadle.base.modes import capturing
from treadle.engine.devices.names import CompNode
from treadle.tensor import Tensor

Size = int | tuple[int, ...] | list[int] | Tensor | None


def parameters(size: Size, place: CompNode, **given: Any) -> tuple[list[Tensor], tuple[int, ...]]:
    """float32 tensors of one shape that nothing is differentiated through, and the axes before it.

    Numbers and 0-d tensors without a size get one axis of extent 1.

    Raises:
        ShapeError: the parameters do not broadcast.
    """
    tensors = [x if isinstance(x, Tensor) else Tensor(x, float32, place) for x in given.values()]
    try:
        shape = np.broadcast_shapes(*(x.shape for x in tensors))
    except ValueError:
        saw = ", ".join(f"{n} {x.type}" for n, x in zip(given, tensors, strict=True))
        raise ShapeError("random", "the parameters do not broadcast", saw=saw) from None
    lead = (1,) if size is None and not shape else _axes(size)
    wide = [x.detach().astype(float32).broadcast_to(shape) for x in tensors]
    return wide, lead


def _axes(size: Size) -> tuple[int, ...]:
    if size is None:
        return ()
    if isinstance(size, Tensor):
        return tuple(size.reshape(-1).tolist())
    return (int(size),) if isinstance(size, (int, np.integer)) else tuple(int(s) for s in size)


def class_weights(given: Tensor, num_samples: int, replacement: bool) -> Tensor:
    """Weights of classes as float32 (C,) or (N, C), checked as far as they are known."""
    if not isinstance(given, Tensor):
        raise TypeError(f"multinomial takes a tensor of weights, got {type(given).__name__}")
    if given.ndim not in (1, 2) or not given.shape[-1]:
        raise ShapeError(
            "multinomial",
            "takes weights (C,) or (N, C) of at least one class",
            saw=str(given.type),
            hint="move the classes to the last axis and flatten the others",
        )
    if num_samples < 1:
        raise ValueError(f"multinomial: num_samples must be at least 1, got {num_samples}")
    if not replacement and num_samples > given.shape[-1]:
        raise ValueError(f"multinomial: {num_samples} of {given.shape[-1]} without replacement")
    weights = given.detach().astype(float32)
    if not capturing():  # In a compiled function nobody knows the weights.
        _check(weights.numpy(), num_samples, replacement)
    return weights


def _check(weights: np.ndarray[Any, Any], num_samples: int, replacement: bool) -> None:
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("multinomial: weights must be finite and not negative")
    least = int((weights > 0).sum(-1).min(initial=weights.shape[-1]))
    if least < (1 if replacement else num_samples):
        raise ValueError(f"multinomial: a row has {least} classes with a weight")
