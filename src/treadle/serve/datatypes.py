"""Element types of the Open Inference Protocol, and tensors as JSON or bytes.

Binary tensors are little-endian, row-major and dense, as arrays of this package are.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np

from treadle.base.array import Array

NAMES: dict[np.dtype[Any], str] = {
    np.dtype(kind): name
    for kind, name in (
        ("bool", "BOOL"),
        ("uint8", "UINT8"),
        ("uint16", "UINT16"),
        ("uint32", "UINT32"),
        ("uint64", "UINT64"),
        ("int8", "INT8"),
        ("int16", "INT16"),
        ("int32", "INT32"),
        ("int64", "INT64"),
        ("float16", "FP16"),
        ("float32", "FP32"),
        ("float64", "FP64"),
        (ml_dtypes.bfloat16, "BF16"),
    )
}
"""The protocol's BYTES has no counterpart: no tensor of this package holds strings."""
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def from_json(data: object, dtype: np.dtype[Any]) -> Array:
    """A tensor out of the numbers of a JSON document, nested or flat.

    Raises:
        ValueError: it is ragged, or holds what the element type cannot.
    """
    elements, shape = _flat(data)
    kinds = set(map(type, elements))
    if dtype.kind == "b":
        if kinds - {bool}:
            raise ValueError("data must be true and false")
        return np.array(elements, dtype).reshape(shape)
    if dtype.kind in "iu":
        if kinds - {int}:
            raise ValueError("data must be integers")
        try:
            return np.array(elements, dtype).reshape(shape)
        except OverflowError:
            raise ValueError(f"a number lies outside of {NAMES[dtype]}") from None
    if kinds - {int, float}:
        raise ValueError("data must be numbers")
    return _floats(elements, dtype).reshape(shape)


def _flat(data: object) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of nested lists, and how they are nested.

    NumPy would look into them by itself, and make wide arrays out of a few long strings.
    """
    if not isinstance(data, list):
        raise ValueError("data is missing, or no array")
    elements, shape = data, [len(data)]
    while any(type(element) is list for element in elements[:1]):
        if set(map(type, elements)) != {list} or len(set(map(len, elements))) != 1:
            raise ValueError("data is ragged")
        shape.append(len(elements[0]))
        elements = list(chain.from_iterable(elements))
    return elements, tuple(shape)


def _floats(elements: list[Any], dtype: np.dtype[Any]) -> Array:
    try:
        wide = np.array(elements, np.float64)
    except OverflowError:
        raise ValueError("a number is too large") from None
    with np.errstate(over="ignore"):
        made = wide.astype(dtype)
    if not np.isfinite(made).all():
        raise ValueError(f"a number is too large for {NAMES[dtype]}")
    return made


def from_bytes(data: memoryview, dtype: np.dtype[Any]) -> Array:
    """A flat array over bytes that hold whole elements; copied only where they lie askew.

    Raises:
        ValueError: a truth value is neither 0 nor 1.
    """
    if dtype.kind == "b":
        octets = np.frombuffer(data, np.uint8)
        if octets.size and octets.max() > 1:
            raise ValueError("a truth value is neither 0 nor 1")
        return octets.view(dtype)
    made = np.frombuffer(data, dtype)
    return made if made.flags.aligned else made.copy()


def to_json(array: Array) -> list[Any]:
    """The elements of a tensor, flat.

    Raises:
        ValueError: JSON has no number for one of them.
    """
    if array.dtype.kind not in "biu":
        if not np.isfinite(array).all():
            raise ValueError("it holds values that are not finite, which JSON cannot represent")
        if array.dtype.itemsize == 2:
            array = array.astype(np.float32)
    elements: list[Any] = array.reshape(-1).tolist()
    return elements


__all__ = ["DTYPES", "NAMES", "Array", "from_bytes", "from_json", "to_json"]
