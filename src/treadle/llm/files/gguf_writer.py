"""GGUF files, written: a table first, then tensors that are made when their turn comes."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from treadle.base.array import Array
from treadle.base.blocks import BlockFormat, BlockTensor
from treadle.base.errors import CheckpointError, DTypeError
from treadle.base.files.atomic import write_atomically
from treadle.llm.files.gguf import ALIGNMENT, ARRAY, MAGIC, MAX_NAME, PLAIN, SCALARS, STRING, Form

VERSION = 3
Stored: TypeAlias = "Array | BlockTensor"

_SCALAR_NUMBERS = {dtype: number for number, dtype in SCALARS.items()}
_PLAIN_NUMBERS = {dtype: number for number, dtype in PLAIN.items()}
_HEADER = struct.Struct("<4sIQQ")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that will be written: its shape (slowest axis first), its form, what makes it."""

    name: str
    shape: tuple[int, ...]
    form: Form
    make: Callable[[], Stored]

    @property
    def nbytes(self) -> int:
        """Bytes that it will take."""
        if isinstance(self.form, BlockFormat):
            return math.prod(self.shape[:-1]) * self.form.row_bytes(self.shape[-1])
        return math.prod(self.shape) * self.form.itemsize


def planned(name: str, tensor: Stored) -> PlannedTensor:
    """A tensor that is there."""
    form = tensor.format if isinstance(tensor, BlockTensor) else tensor.dtype
    return PlannedTensor(name, tensor.shape, form, lambda: tensor)


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Sequence[PlannedTensor],
    alignment: int = ALIGNMENT,
) -> None:
    """Write a GGUF file of version 3, or leave `path` as it was.

    Args:
        path: the file; replaced when all of it was written.
        metadata: values by key. Integers become unsigned of 32 bits (64 where they are larger,
            signed where they are negative), floats 32 bits; lists hold strings, arrays any numbers.
        tensors: in the order of the file; each is made, written and dropped before the next.
        alignment: of each tensor, a power of two.

    Raises:
        DTypeError: a value or a tensor has a type that GGUF does not know.
        CheckpointError: a name is longer than 63 bytes, or occurs twice; a tensor has no axis.
        OSError: the file cannot be written.
    """
    where = os.fspath(path)
    values = dict(metadata)
    if alignment != ALIGNMENT:
        values["general.alignment"] = alignment
    parts = [_HEADER.pack(MAGIC, VERSION, len(tensors), len(values))]
    parts += [_text(key) + _value(key, value) for key, value in values.items()]
    rows, size = _table(where, tensors, alignment)
    head = b"".join((*parts, *rows))
    head += bytes(-len(head) % alignment)
    write_atomically(where, _chunks(head, tensors, alignment), len(head) + size)


def _chunks(
    head: bytes, tensors: Sequence[PlannedTensor], alignment: int
) -> Iterator[bytes | memoryview]:
    yield head
    for each in tensors:
        yield _data(each, each.make())
        yield bytes(-each.nbytes % alignment)


def _data(plan: PlannedTensor, tensor: Stored) -> memoryview:
    form = tensor.format if isinstance(tensor, BlockTensor) else tensor.dtype
    if form != plan.form or tensor.shape != plan.shape:
        raise CheckpointError(
            plan.name,
            "the tensor is not what the table says",
            saw=f"{form} {tensor.shape} for {plan.form} {plan.shape}",
        )
    data = tensor.data if isinstance(tensor, BlockTensor) else tensor
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _table(where: str, tensors: Sequence[PlannedTensor], alignment: int) -> tuple[list[bytes], int]:
    """The rows of the table, and what the data take."""
    rows, begin, seen = [], 0, set[str]()
    for each in tensors:
        raw = each.name.encode()
        if len(raw) > MAX_NAME or each.name in seen or not each.shape:
            problem = "a tensor's name is too long, occurs twice, or it has no axis"
            raise CheckpointError(where, problem, saw=f"{each.name} {each.shape}")
        seen.add(each.name)
        number = (
            each.form.number
            if isinstance(each.form, BlockFormat)
            else _number(each.name, _PLAIN_NUMBERS, each.form)
        )
        extents = struct.pack(f"<I{len(each.shape)}Q", len(each.shape), *each.shape[::-1])
        rows.append(_text(each.name) + extents + struct.pack("<IQ", number, begin))
        begin += -(-each.nbytes // alignment) * alignment
    return rows, begin


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _number(what: str, known: Mapping[np.dtype[Any], int], dtype: np.dtype[Any]) -> int:
    if dtype not in known:
        listed = ", ".join(map(str, known))
        raise DTypeError(what, "GGUF has no such type", saw=str(dtype), hint=f"it knows {listed}")
    return known[dtype]


def _value(key: str, value: Any) -> bytes:
    """The type of a value, and the value."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        head = struct.pack("<IIQ", ARRAY, STRING, len(value))
        return head + b"".join(map(_text, value))
    array = _narrowed(np.asarray(value))
    number = _number(key, _SCALAR_NUMBERS, array.dtype)
    if array.ndim == 0:
        return struct.pack("<I", number) + array.tobytes()
    return struct.pack("<IIQ", ARRAY, number, array.size) + array.tobytes()


def _narrowed(array: Array) -> Array:
    """Python's numbers in the types that readers expect; those of NumPy stay what they are."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64 and array.size:
        low, high = int(array.min()), int(array.max())
        signed = low < 0 or array.ndim
        for dtype in (np.int32, np.int64) if signed else (np.uint32, np.uint64):
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                return array.astype(dtype)
    return array
