"""Merging samples into a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.base.errors import DTypeError, ShapeError

_PAD_HINT = "crop or pad the samples in a transform, or give the DataLoader your own collator"


class Collator:
    """Merges samples field by field, adding a leading batch axis.

    =============================  =========================================================
    field of a sample              field of the batch
    =============================  =========================================================
    array of shape (...)           array of shape (batch, ...), `np.stack` of the samples
    NumPy scalar                   array of shape (batch,), same dtype
    float; int; bool               float64; int64; bool array of shape (batch,)
    str, bytes                     tuple of them
    tuple or list                  list with one entry per field
    named tuple                    the same named tuple
    mapping                        dict with the same keys
    =============================  =========================================================

    A subclass overrides `apply` to treat types of its own, and calls `super().apply` for the rest.
    """

    def apply(self, inputs: Sequence[Any]) -> Any:
        """Merge the samples of one batch.

        Raises:
            ShapeError: arrays differ in shape, sequences in length, mappings in keys.
            TypeError: a field has a type this class cannot merge, such as a Tensor.
            ValueError: there are no samples.
        """
        if len(inputs) == 0:
            raise ValueError("Collator: a batch needs at least one sample")
        return self._merge_for(inputs[0])(inputs)

    def _merge_for(self, first: Any) -> Callable[[Sequence[Any]], Any]:
        """The rule for the type of the first sample; the others must follow it."""
        match first:
            case str() | bytes():
                return tuple
            case np.ndarray() | np.generic():
                return _stack
            case bool() | int() | float():
                return _numbers
            case Mapping():
                return self._mapping
            case Sequence():
                return self._sequence
        raise _unknown_type(first, 0)

    def _mapping(self, inputs: Sequence[Any]) -> dict[Any, Any]:
        keys = inputs[0].keys()
        for position, sample in enumerate(inputs):
            if not isinstance(sample, Mapping) or sample.keys() != keys:
                raise _misfit("keys differ", inputs[0], position, sample, "give all the same keys")
        return {key: self._field(key, [sample[key] for sample in inputs]) for key in keys}

    def _sequence(self, inputs: Sequence[Any]) -> Any:
        first = inputs[0]
        for position, sample in enumerate(inputs):
            if not isinstance(sample, Sequence) or len(sample) != len(first):
                raise _misfit("numbers of fields differ", first, position, sample, _PAD_HINT)
        columns = zip(*inputs, strict=True)
        fields = [self._field(number, column) for number, column in enumerate(columns)]
        is_named = isinstance(first, tuple) and bool(getattr(first, "_fields", None))
        return type(first)(*fields) if is_named else fields

    def _field(self, key: Any, values: Sequence[Any]) -> Any:
        try:
            return self.apply(values)
        except Exception as error:
            error.add_note(f"in field {key!r} of the samples")
            raise


def _stack(inputs: Sequence[Any]) -> np.ndarray[Any, Any]:
    shape = inputs[0].shape
    for position, sample in enumerate(inputs):
        if not isinstance(sample, np.ndarray | np.generic | float | int):
            raise _unknown_type(sample, position)
        if np.shape(sample) != shape:
            raise _misfit("shapes differ", inputs[0], position, sample, _PAD_HINT)
    batch = np.stack(inputs)
    if batch.dtype.hasobject:
        raise DTypeError(
            "Collator", "arrays of Python objects cannot be merged", hint="convert to a number type"
        )
    return np.ascontiguousarray(batch)


def _numbers(inputs: Sequence[Any]) -> np.ndarray[Any, Any]:
    for position, sample in enumerate(inputs):
        if not isinstance(sample, float | int | np.number | np.bool_):
            raise _unknown_type(sample, position)
    if all(isinstance(sample, bool | np.bool_) for sample in inputs):
        return np.array(inputs, dtype=np.bool_)
    # One float among integers makes the batch float: truncating it would lose data unseen.
    is_integer = all(isinstance(sample, int | np.integer | np.bool_) for sample in inputs)
    return np.array(inputs, dtype=np.int64 if is_integer else np.float64)


def _describe(sample: Any) -> str:
    if isinstance(sample, np.ndarray | np.generic):
        return f"{sample.dtype}[{','.join(map(str, sample.shape))}]"
    if isinstance(sample, Mapping):
        return f"keys {list(sample.keys())!r}"
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        return f"{type(sample).__name__} of {len(sample)}"
    return type(sample).__name__


def _misfit(problem: str, first: Any, position: int, sample: Any, hint: str) -> ShapeError:
    saw = f"sample 0 {_describe(first)}, sample {position} {_describe(sample)}"
    return ShapeError("Collator", f"{problem} between the samples of a batch", saw=saw, hint=hint)


def _unknown_type(sample: Any, position: int) -> TypeError:
    return DTypeError(
        "Collator",
        "samples must hold NumPy arrays, numbers, strings, bytes, mappings or sequences",
        saw=f"sample {position} of type {type(sample).__module__}.{type(sample).__qualname__}",
        hint="return NumPy arrays from the dataset (tensor.numpy()), or give your own collator",
    )
