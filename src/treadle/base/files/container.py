"""The safetensors container: 8-byte header length, JSON header, then the data of all tensors.

Written here and not with the safetensors package because its NumPy door knows no bfloat16, keeps
the last of duplicate keys, and copies all data once more. Files are interchangeable both ways.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base import dtype as dtypes
from treadle.base.array import Array
from treadle.base.files import strict_json
from treadle.base.files.source import SizedStream
from treadle.base.files.strict_json import shorten

MAX_HEADER = 100_000_000
MAX_NDIM = 64
METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64

_CODES: dict[dtypes.DType, str] = {
    dtypes.bool_: "BOOL",
    dtypes.uint8: "U8",
    dtypes.int8: "I8",
    dtypes.uint16: "U16",
    dtypes.int16: "I16",
    dtypes.uint32: "U32",
    dtypes.int32: "I32",
    dtypes.uint64: "U64",
    dtypes.int64: "I64",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
    dtypes.complex64: "C64",
}
_CODE_OF = {dtype.numpy: code for dtype, code in _CODES.items()}
_DTYPE_OF = {code: dtype.numpy for dtype, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: `begin` and `end` are byte offsets from the start of the data."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def signature(self) -> list[Any]:
        """The dtype's code and the shape, which a digest must cover besides the data."""
        return [_CODE_OF[self.dtype], list(self.shape)]


@dataclass(frozen=True, slots=True)
class Header:
    """A header that has passed every check; `data_start` is a byte offset in the file."""

    metadata: dict[str, str]
    entries: dict[str, TensorEntry]
    data_start: int


def lay_out(arrays: Mapping[str, Array]) -> dict[str, TensorEntry]:
    """Place arrays one after another, widest items first so that each is aligned to its type."""
    entries: dict[str, TensorEntry] = {}
    begin = 0
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        end = begin + array.nbytes
        entries[name] = TensorEntry(name, array.dtype, array.shape, begin, end)
        begin = end
    return entries


def header_bytes(entries: Mapping[str, TensorEntry], metadata: Mapping[str, str]) -> bytes:
    """The length and the JSON header, padded with spaces so that the data starts aligned.

    Raises:
        ValueError: the header would exceed the 100 MB that readers accept.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)}
    for entry in entries.values():
        code, shape = entry.signature
        header[entry.name] = {
            "dtype": code,
            "shape": shape,
            "data_offsets": [entry.begin, entry.end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ValueError(
            f"save: names and plain values take {len(text)} bytes, readers accept {MAX_HEADER};"
            " put long lists of numbers into arrays"
        )
    return _LENGTH.pack(len(text)) + text


def looks_like_container(prefix: bytes) -> bool:
    """Return whether the first nine bytes are a plausible length and an opening brace."""
    if len(prefix) <= _LENGTH.size:
        return False
    (length,) = _LENGTH.unpack_from(prefix)
    return 2 <= length <= MAX_HEADER and prefix[_LENGTH.size] == ord("{")


def read_header(source: SizedStream) -> Header:
    """Read and check the header; nothing is allocated for tensors yet.

    Raises:
        CheckpointError: any rule of the format is broken.
    """
    raw = source.read(0, _LENGTH.size)
    if len(raw) < _LENGTH.size:
        raise source.error("truncated in the header", saw=f"{source.size} bytes")
    (length,) = _LENGTH.unpack(raw)
    if length > MAX_HEADER:
        if raw[:4] in (b"MGBS", b"MGBC") or source.read(_LENGTH.size, 4) == b"mgv2":
            hint = "treadle.interop.megengine.read_model reads weights and graph of it"
            raise source.error("this is a model that MegEngine dumped", hint=hint)
        raise source.error("header is too large", saw=f"{length} bytes, limit {MAX_HEADER}")
    data_start = _LENGTH.size + length
    if data_start > source.size:
        raise source.error(
            "truncated in the header",
            saw=f"{source.size} bytes, the header alone ends at byte {data_start}",
        )
    fields = _parse_header(source, source.read(_LENGTH.size, length))
    metadata = _check_metadata(source, fields.pop(METADATA, {}))
    entries = [_check_entry(source, name, value) for name, value in fields.items()]
    _check_coverage(source, entries, source.size - data_start)
    return Header(metadata, {entry.name: entry for entry in entries}, data_start)


def _parse_header(source: SizedStream, raw: bytes) -> dict[str, Any]:
    text = raw.rstrip(b" ")
    # Other white space around the object would be bytes that no checksum covers.
    if not (text.startswith(b"{") and text.endswith(b"}")):
        raise source.error("header is not a JSON object", saw=shorten(text[:16]))
    try:
        fields: dict[str, Any] = strict_json.parse(text)
    except ValueError as error:
        raise source.error(f"header is damaged: {error}") from None
    return fields


def _check_metadata(source: SizedStream, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise source.error(f"{METADATA} is not a map of strings to strings")
    return value


class _Label:
    """Name of a tensor in messages, spelled out only when a message is made."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"tensor {shorten(self._name)}"


_FIELDS = {"dtype", "shape", "data_offsets"}


def _check_entry(source: SizedStream, name: str, value: object) -> TensorEntry:
    label = _Label(name)
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        raise source.error(f"{label} does not have the fields dtype, shape and data_offsets alone")
    code = value["dtype"]
    dtype = _DTYPE_OF.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise source.error(
            f"{label} has a dtype that cannot be read",
            saw=shorten(code),
            hint="readable are " + ", ".join(_DTYPE_OF),
        )
    shape, offsets = value["shape"], value["data_offsets"]
    if not _is_sizes(shape) or len(shape) > MAX_NDIM:
        raise source.error(f"{label} has an impossible shape", saw=shorten(shape))
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise source.error(f"{label} has impossible data_offsets", saw=shorten(offsets))
    begin, end = offsets
    _check_sizes(source, label, tuple(shape), dtype, end - begin)
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _check_sizes(
    source: SizedStream, label: _Label, shape: tuple[int, ...], dtype: np.dtype[Any], count: int
) -> None:
    # Zeros are left out: NumPy bounds the product of the other axes even for empty arrays.
    if math.prod(n for n in shape if n) * dtype.itemsize >= 2**63:
        raise source.error(f"{label} has a shape beyond 2^63 bytes", saw=shorten(list(shape)))
    if math.prod(shape) * dtype.itemsize != count:
        raise source.error(
            f"{label} has {count} bytes of data, which does not fit its shape and dtype",
            saw=f"{dtype.name}{shorten(list(shape))}",
        )


def _is_sizes(value: object) -> bool:
    """A list of non-negative integers that fit 63 bits (`True` is an int in Python, not here)."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_coverage(source: SizedStream, entries: list[TensorEntry], available: int) -> None:
    """Check that tensors follow one another without gap or overlap and fill the file exactly."""
    position = 0
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.begin != position:
            kind = "overlaps" if entry.begin < position else "leaves a gap after"
            raise source.error(f"tensor {shorten(entry.name)} {kind} the tensor before it")
        position = entry.end
    if position > available:
        raise source.error("truncated", saw=f"{available} bytes of data, expected {position}")
    if position < available:
        raise source.error(
            "has bytes after the last tensor", saw=f"{available} bytes of data, expected {position}"
        )


def read_array(source: SizedStream, header: Header, entry: TensorEntry) -> Array:
    """The data of one tensor, in memory of its own.

    Raises:
        CheckpointError: the file became shorter, or a boolean is neither 0 nor 1.
    """
    array = np.empty(entry.shape, entry.dtype)
    source.read_into(header.data_start + entry.begin, as_bytes(array))
    if entry.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise source.error(f"tensor {shorten(entry.name)} holds booleans other than 0 and 1")
    return array


def as_bytes(array: Array) -> memoryview:
    """The memory of a C-contiguous array (bfloat16 has no buffer protocol of its own)."""
    return array.reshape(-1).view(np.uint8).data
