"""Batches as Tensors, one ahead of the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from treadle.tensor import Tensor

# Texts, dates and objects have no Tensor.
_NO_NUMBERS = "OSUmM"


def to_tensors(batch: Any) -> Any:
    """Replace every array of numbers in a batch by a Tensor on the default device."""
    if isinstance(batch, np.ndarray):
        return batch if batch.dtype.kind in _NO_NUMBERS else Tensor(batch)
    if isinstance(batch, Mapping):
        return {key: to_tensors(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and getattr(batch, "_fields", None):
        return type(batch)(*map(to_tensors, batch))
    if isinstance(batch, list):
        return [to_tensors(value) for value in batch]
    return batch


def preloaded(batches: Iterator[Any]) -> Iterator[Any]:
    """Convert batches, having the next one on its way to the device while one is in use."""
    try:
        ahead = to_tensors(next(batches))
    except StopIteration:
        return
    while True:
        try:
            following = to_tensors(next(batches))
        except StopIteration:
            break
        except Exception:
            # The batch before the failure is whole: it comes first.
            yield ahead
            raise
        yield ahead
        ahead = following
    yield ahead
