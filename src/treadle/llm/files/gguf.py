"""GGUF files, read with the doors shut: metadata, and tensors that stay in the mapped file.

A file is a header, pairs of keys and values, a table of tensors, and their data. Every count and
length is compared with the bytes that are left before anything is allocated for it, sizes are
computed in Python's integers, and limits hold what no sound file needs.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn, TypeAlias

import ml_dtypes
import numpy as np

from treadle.base import dtype as dtypes
from treadle.base.array import Array
from treadle.base.blocks import FORMATS, BlockFormat, BlockTensor, by_number
from treadle.base.files.source import SizedStream, open_source
from treadle.base.files.strict_json import shorten

Form: TypeAlias = "BlockFormat | np.dtype[Any]"
"""Form of a tensor's elements: blocks, or plain numbers."""

NUMBERS: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Plain numbers by the names that reports and commands give them."""


def form_name(form: Form) -> str:
    """The name of what a tensor holds."""
    if isinstance(form, BlockFormat):
        return form.name
    return next((name for name, dtype in NUMBERS.items() if dtype == form), str(form))


MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = 65_536
MAX_TENSORS = 65_536
MAX_KEY = 65_535
MAX_NAME = 63
MAX_ITEMS = 1 << 24
MAX_NDIM = 4
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 65_536
ALIGNMENT = 32
"""Alignment where a file does not say another one."""

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Types of values in metadata, by number."""

PLAIN: dict[int, np.dtype[Any]] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    24: np.dtype("i1"),
    25: np.dtype("<i2"),
    26: np.dtype("<i4"),
    27: np.dtype("<i8"),
    28: np.dtype("<f8"),
    30: dtypes.bfloat16.numpy,
}
"""Types of tensors whose elements are numbers, by number."""

_UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip
_FORMAT_NUMBERS = {each.number for each in FORMATS.values()}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_PAIR_BYTES, _TENSOR_BYTES = 13, 33  # the least that one takes


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of a file.

    Attributes:
        shape: slowest axis first, as in NumPy; files state it the other way around.
        begin: the offset of its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    form: Form
    begin: int
    nbytes: int


class Gguf:
    """A GGUF file that has passed every check.

    Tensors are views of the mapped file: nothing is read before it is looked at, and a file that
    somebody cuts while it is looked at ends the process, as with every mapped file.

    Attributes:
        where: the path, for messages.
        metadata: values by key: numbers, strings, lists of strings, arrays of numbers.
        entries: the tensors by name, in the file's order.
        alignment: of the data of tensors.
    """

    def __init__(
        self,
        where: str,
        metadata: dict[str, Any],
        entries: dict[str, GGUFTensor],
        alignment: int,
        mapped: mmap.mmap,
    ) -> None:
        self.where = where
        self.metadata = metadata
        self.entries = entries
        self.alignment = alignment
        self._mapped = mapped

    def tensor(self, name: str) -> Array | BlockTensor:
        """A tensor, read-only: an array, or blocks."""
        entry = self.entries[name]
        data = np.frombuffer(self._mapped, np.uint8, entry.nbytes, entry.begin)
        if isinstance(entry.form, BlockFormat):
            return BlockTensor(entry.form, entry.shape, data.reshape(*entry.shape[:-1], -1))
        return data.view(entry.form).reshape(entry.shape)

    def release(self, name: str, rows: slice | None = None) -> None:
        """Release the memory of a tensor's pages, since it was copied or packed.

        Args:
            name: of the tensor.
            rows: only these, counted through all axes but the last.
        """
        entry = self.entries[name]
        count = math.prod(entry.shape[:-1])
        start, stop, _ = (rows or slice(None)).indices(count)
        begin, end = (entry.begin + entry.nbytes // count * at for at in (start, stop))
        page = mmap.PAGESIZE
        # Pages that are shared with a neighbor stay.
        first, last = -(-begin // page) * page, end // page * page
        if hasattr(self._mapped, "madvise") and first < last:
            self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def read_gguf(path: str | os.PathLike[str]) -> Gguf:
    """Open a GGUF file and check all of it but the numbers in its tensors.

    Raises:
        CheckpointError: the file breaks a rule of the format or a limit, or holds a type that is
            not read.
        OSError: the file cannot be opened.
    """
    with open_source(os.fspath(path)) as source:
        if source.read(0, len(MAGIC)) != MAGIC:
            saw = repr(source.read(0, 8))
            raise source.error(
                "this is not a GGUF file", saw=saw, hint="such files begin with GGUF"
            )
        if source.size < 24:
            raise source.error("truncated in the header", saw=f"{source.size} bytes")
        mapped = mmap.mmap(source.stream.fileno(), source.size, access=mmap.ACCESS_READ)
        try:
            return _Reader(source, mapped).file()
        except BaseException:
            mapped.close()
            raise


class _Reader:
    """A position in a mapped file, and what is read from there."""

    def __init__(self, source: SizedStream, mapped: mmap.mmap) -> None:
        self.source = source
        self.mapped = mapped
        self.size = len(mapped)
        self.at = len(MAGIC)

    def file(self) -> Gguf:
        """The whole file."""
        version = self.u32("the version")
        if version not in VERSIONS:
            big = version.to_bytes(4, "little")[::-1] in {_U32.pack(v) for v in VERSIONS}
            hint = "it is big-endian: convert it again" if big else "convert the model again"
            self.refuse("this version of GGUF is not read", f"{version}, known are 2 and 3", hint)
        tensors = self.count("tensors", MAX_TENSORS, _TENSOR_BYTES)
        pairs = self.count("pairs of metadata", MAX_PAIRS, _PAIR_BYTES)
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self.text("a key", MAX_KEY)
            if key in metadata:
                self.refuse("a key occurs twice", shorten(key))
            metadata[key] = self.value(key, self.u32(shorten(key)))
        alignment = self.alignment(metadata)
        table = [self.entry() for _ in range(tensors)]
        entries = self.placed(table, -(-self.at // alignment) * alignment, alignment)
        return Gguf(self.source.where, metadata, entries, alignment, self.mapped)

    def refuse(self, problem: str, saw: str = "", hint: str = "") -> NoReturn:
        """Raise the error about this file."""
        raise self.source.error(problem, saw=saw, hint=hint)

    # -- pieces ----------------------------------------------------------------------------------

    def take(self, count: int, what: str) -> int:
        """Go on by so many bytes, which must be there; where they begin."""
        begin, left = self.at, self.size - self.at
        if count > left:
            self.refuse(f"truncated in {what}", f"{left} of {count} bytes", "fetch the file again")
        self.at = begin + count
        return begin

    def u32(self, what: str) -> int:
        """An unsigned number of 32 bits."""
        found: int = _U32.unpack_from(self.mapped, self.take(4, what))[0]
        return found

    def u64(self, what: str) -> int:
        """An unsigned number of 64 bits."""
        found: int = _U64.unpack_from(self.mapped, self.take(8, what))[0]
        return found

    def count(self, what: str, most: int, least_bytes: int) -> int:
        """Read a count: no more than a limit, and than the bytes that are left could hold."""
        found, left = self.u64(f"the number of {what}"), self.size - self.at
        if found > most:
            self.refuse(f"too many {what}", f"{found}, limit {most}")
        if found * least_bytes > left:
            self.refuse(f"{found} {what} do not fit into the file", f"{left} bytes are left")
        return found

    def text(self, what: str, most: int | None = None) -> str:
        """A string: its length, then UTF-8."""
        length = self.u64(what)
        if most is not None and length > most:
            self.refuse(f"{what} is too long", f"{length} bytes, limit {most}")
        begin = self.take(length, what)
        return self.decoded(self.mapped[begin : self.at], what)

    def decoded(self, raw: bytes, what: str) -> str:
        """UTF-8 as text."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.refuse(f"{what} is not UTF-8", f"byte {error.start} of {shorten(raw)}")

    # -- metadata --------------------------------------------------------------------------------

    def value(self, key: str, kind: int) -> Any:
        """The value of a key."""
        what = f"the value of {shorten(key)}"
        if kind == STRING:
            return self.text(what)
        if kind == ARRAY:
            return self.array(key, what)
        return self.numbers(kind, 1, what)[0].item()

    def array(self, key: str, what: str) -> Any:
        """A list of strings or an array of numbers."""
        kind = self.u32(what)
        if kind == STRING:
            return self.strings(self.count(f"strings of {shorten(key)}", MAX_ITEMS, 8), what)
        if kind not in SCALARS:
            problem = "is an array of arrays" if kind == ARRAY else "has an unknown type"
            self.refuse(f"{what} {problem}", str(kind))
        size = SCALARS[kind].itemsize
        return self.numbers(kind, self.count(f"items of {shorten(key)}", MAX_ITEMS, size), what)

    def numbers(self, kind: int, count: int, what: str) -> Array:
        """Numbers of a type, copied out of the file."""
        if kind not in SCALARS:
            self.refuse(f"{what} has an unknown type", str(kind))
        dtype = SCALARS[kind]
        begin = self.take(count * dtype.itemsize, what)
        raw = np.frombuffer(self.mapped[begin : self.at], dtype)
        if kind == BOOL and count and raw.view(np.uint8).max() > 1:
            self.refuse(f"{what} is neither true nor false", str(raw.view(np.uint8).max()))
        return raw

    def strings(self, count: int, what: str) -> list[str]:
        """Strings, one after another; vocabularies have hundreds of thousands."""
        found = []
        mapped, at, size, length_at = self.mapped, self.at, self.size, _U64.unpack_from
        for _ in range(count):
            begin = at + 8
            if begin > size:
                break
            at = begin + length_at(mapped, at)[0]
            if at > size:
                break
            try:
                found.append(mapped[begin:at].decode())
            except UnicodeDecodeError:
                self.decoded(mapped[begin:at], f"string {len(found)} in {what}")
        if len(found) < count:
            self.refuse(f"truncated in {what}", f"{len(found)} of {count} strings are there")
        self.at = at
        return found

    def alignment(self, metadata: dict[str, Any]) -> int:
        """Return the alignment of tensors' data in bytes, a power of two."""
        found = metadata.get("general.alignment", ALIGNMENT)
        if (
            not isinstance(found, int)
            or not MIN_ALIGNMENT <= found <= MAX_ALIGNMENT
            or found & (found - 1)
        ):
            limits = f"a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
            self.refuse("general.alignment is impossible", f"{shorten(found)}, not {limits}")
        return found

    # -- tensors ---------------------------------------------------------------------------------

    def entry(self) -> GGUFTensor:
        """A row of the table of tensors; its offset is counted from the data's start."""
        name = self.text("a tensor's name", MAX_NAME)
        what = f"tensor {shorten(name)}"
        ndim = self.u32(what)
        if not 1 <= ndim <= MAX_NDIM:
            self.refuse(f"{what} has an impossible number of axes", f"{ndim}, not 1 to {MAX_NDIM}")
        shape = tuple(self.u64(what) for _ in range(ndim))[::-1]
        if min(shape) < 1:
            self.refuse(f"{what} has an axis of extent 0", str(shape))
        form = self.form(what, self.u32(what))
        return GGUFTensor(name, shape, form, self.u64(what), self.nbytes(what, shape, form))

    def form(self, what: str, number: int) -> Form:
        """Return the form of a tensor's type."""
        if number in PLAIN:
            return PLAIN[number]
        if number in _FORMAT_NUMBERS:
            return by_number(number)
        kinds = [*(str(each) for each in PLAIN.values()), *FORMATS]
        saw = f"type {number}" + (f", {_UNREAD[number]}" if number in _UNREAD else "")
        self.refuse(f"{what} has a type that is not read", saw, f"readable are {', '.join(kinds)}")

    def nbytes(self, what: str, shape: tuple[int, ...], form: Form) -> int:
        """Return the bytes of a tensor."""
        if not isinstance(form, BlockFormat):
            return math.prod(shape) * form.itemsize
        if shape[-1] % form.elements:
            saw = f"{shape[-1]} elements, {form.elements} to a block of {form}"
            self.refuse(f"{what} has rows that are not whole blocks", saw)
        return math.prod(shape[:-1]) * form.row_bytes(shape[-1])

    def placed(self, table: list[GGUFTensor], start: int, alignment: int) -> dict[str, GGUFTensor]:
        """The tensors by name: aligned, inside of the file, none over another."""
        found: dict[str, GGUFTensor] = {}
        for entry in table:
            what = f"tensor {shorten(entry.name)}"
            begin = start + entry.begin
            if entry.name in found:
                self.refuse("a tensor occurs twice", shorten(entry.name))
            if entry.begin % alignment:
                self.refuse(f"{what} is not aligned", f"offset {entry.begin}, to {alignment}")
            if begin + entry.nbytes > self.size:
                saw = f"bytes {begin} to {begin + entry.nbytes} of {self.size}"
                self.refuse(f"{what} lies outside of the file", saw, "fetch the file again")
            found[entry.name] = GGUFTensor(entry.name, entry.shape, entry.form, begin, entry.nbytes)
        end, last = start, ""
        for entry in sorted(found.values(), key=attrgetter("begin")):
            if entry.begin < end:
                self.refuse("tensors overlap", f"{shorten(last)} and {shorten(entry.name)}")
            end, last = entry.begin + entry.nbytes, entry.name
        return found


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as GGUF files do.

    Raises:
        OSError: the file cannot be opened.
        CheckpointError: the path is not a regular file.
    """
    with open_source(os.fspath(path)) as source:
        return source.read(0, len(MAGIC)) == MAGIC


__all__ = ["Form", "GGUFTensor", "Gguf", "is_gguf", "read_gguf"]
