"""Batches as Tensors, one ahead of the caller, and transforms of such batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.data.transform import Compose, CudaTransform, PseudoTransform, Transform
from treadle.tensor import Tensor

# Texts, dates and objects have no Tensor.
_NO_NUMBERS = "OSUmM"


def to_tensors(batch: Any) -> Any:
    """Replace every array of numbers in a batch by a Tensor on the default device."""
    if isinstance(batch, np.ndarray):
        return batch if batch.dtype.kind in _NO_NUMBERS else Tensor(batch)
    if isinstance(batch, Mapping):
        return {key: to_tensors(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(to_tensors, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(to_tensors, batch))
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


def split_transform(transform: Transform) -> tuple[Transform, list[CudaTransform]]:
    """The part of a transform for samples, and the part for merged batches.

    Raises:
        ValueError: a transform of samples comes after one of batches, or may by shuffling.
    """
    if isinstance(transform, CudaTransform):
        return PseudoTransform(), [transform]
    if not isinstance(transform, Compose):
        return transform, []
    chain = transform.transforms
    first = next((i for i, t in enumerate(chain) if isinstance(t, CudaTransform)), len(chain))
    rest = [t for t in chain[first:] if isinstance(t, CudaTransform)]
    if not rest:
        return transform, []
    if len(rest) != len(chain) - first or transform.shuffle_indices:
        raise ValueError("a CudaTransform takes batches: it comes after all others, in fixed order")
    return Compose(chain[:first], transform.batch_compose), rest


def transformed(batches: Iterator[Any], transforms: Sequence[Transform]) -> Iterator[Any]:
    """Apply transforms to whole batches, as Tensors."""
    for batch in batches:
        result = to_tensors(batch)
        for transform in transforms:
            result = transform.apply(result)
        yield result
