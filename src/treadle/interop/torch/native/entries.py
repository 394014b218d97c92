"""Programs that native code runs: how inputs are read, what outputs are, what is returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from treadle.base.shape import row_major_strides
from treadle.engine.execute.executor import Bound
from treadle.interop.torch.native.layout import (
    ENTRY,
    ENTRY_WORDS,
    INPUT,
    INPUT_WORDS,
    OUTPUT,
    OUTPUT_WORDS,
    OWN,
    PROGRAM,
)
from treadle.interop.torch.native.library import NativeLibrary

Words = np.ndarray[Any, Any]
_CHUNKS = (32, 16, 8, 4, 2, 1)
_HASH, _FACTOR, _MASK = 1469598103934665603, 1099511628211, (1 << 64) - 1
MOST_ENTRIES = 1024
"""Known calls of an operator; entries are never taken away, as one may be running."""


class Lies(NamedTuple):
    """The layout of elements in memory.

    Attributes:
        shape, strides: strides in elements.
        itemsize: bytes of an element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements alone."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize

    def gathered(self) -> Lies:
        """The same elements row by row."""
        return self._replace(strides=row_major_strides(self.shape))


class Given(NamedTuple):
    """An input of a program.

    Attributes:
        tensor: number of the tensor among the call's.
        gathers: how it lies, where the program wants it row by row and it does not lie so.
    """

    tensor: int
    gathers: Lies | None = None


class Made(NamedTuple):
    """An output of a program.

    Attributes:
        lies: how the program writes it.
        nbytes: that it takes.
        type: DLPack's code, bits and lanes in one word.
        device: DLPack's device and its number in one word.
        shape, strides: of the tensor that is made of it.
        target: number of the tensor that it is written into; None: it is a new one.
        into: how that tensor lies.
    """

    lies: Lies
    nbytes: int
    type: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    target: int | None = None
    into: Lies | None = None


DLPACK_TYPES: dict[torch.dtype, tuple[int, int]] = {
    torch.bool: (6, 8),
    **{getattr(torch, f"int{n}"): (0, n) for n in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{n}"): (1, n) for n in (8, 16, 32, 64)},
    **{getattr(torch, f"float{n}"): (2, n) for n in (16, 32, 64)},
    torch.bfloat16: (4, 16),
    **{getattr(torch, f"complex{n}"): (5, n) for n in (32, 64, 128)},
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e4m3fnuz: (11, 8),
    torch.float8_e5m2: (12, 8),
    torch.float8_e5m2fnuz: (13, 8),
    torch.float8_e8m0fnu: (14, 8),
}
"""DLPack's code and bits of element types."""
DLPACK_CPU = 1
"""DLPack's number of the CPU."""
EXTERNAL = 12
"""DLPack's number for devices that it does not know."""


def dlpack_type(code: int, bits: int) -> int:
    """DLPack's code and bits of an element type in a word."""
    return code | bits << 8 | 1 << 16


def dlpack_device(kind: int, index: int) -> int:
    """DLPack's number of a kind of device, and the device's, in a word."""
    return kind | index << 32


class NativeCall:
    """A call that native code knows.

    Args:
        bound: the program; see `Executor.bound`.
        inputs, outputs: of the program.
        returns: for each result the number of an output, -1 for None, -2 - n for tensor n of the
            call.
        form: how results are returned; see `layout`.
        key: of the call.
    """

    def __init__(
        self,
        bound: Bound,
        inputs: Sequence[Given],
        outputs: Sequence[Made],
        returns: Sequence[int],
        form: int,
        key: bytes = b"",
    ) -> None:
        self._kept = bound
        self._words: list[Words] = []
        words = np.zeros(ENTRY_WORDS, np.int64)
        self.hash = _hash(key)
        fields: dict[str, Any] = {
            "hash": np.uint64(self.hash).astype(np.int64),
            # A program that is called with a list has no key, and looks at how many it takes.
            "length": len(key) // 8 if key else len(inputs),
            "key": self._held(np.frombuffer(key, np.int64)),
            "program": bound.program,
            "bases": self._held(bound.bases),
            "base_count": len(bound.bases),
            "runs": bound.runs.ctypes.data,
            "input_count": len(inputs),
            "inputs": self._table([self._input(g) for g in inputs], INPUT, INPUT_WORDS),
            "output_count": len(outputs),
            "outputs": self._table([self._output(m) for m in outputs], OUTPUT, OUTPUT_WORDS),
            "return_count": len(returns),
            "returns": self._held(np.array(returns, np.int64)),
            "form": form,
        }
        for name, value in fields.items():
            words[ENTRY[name]] = value
        self.words = words
        self.address = words.ctypes.data

    def _held(self, words: Words) -> int:
        """The address of words that stay where they are."""
        own = np.array(words, np.int64)
        self._words.append(own)
        return int(own.ctypes.data)

    def _table(self, rows: Sequence[dict[str, int]], names: dict[str, int], width: int) -> int:
        table = np.zeros((len(rows), width), np.int64)
        for row, values in zip(table, rows, strict=True):
            for name, value in values.items():
                row[names[name]] = value
        return self._held(table)

    def _room(self, nbytes: int) -> int:
        return self._held(np.zeros(nbytes // 8 + 8, np.int64)) + 63 & ~63

    def _input(self, given: Given) -> dict[str, int]:
        row = {"tensor": given.tensor}
        if given.gathers is not None:
            here = given.gathers.gathered()
            axes, extents, to, come, chunk = _moved(here, given.gathers)
            row |= {"gathers": 1, "ndim": axes, "sizes": self._held(extents), "to": self._held(to)}
            row |= {"strides": self._held(come), "chunk": chunk, "place": self._room(here.nbytes)}
        return row

    def _output(self, made: Made) -> dict[str, int]:
        row = {"nbytes": made.nbytes, "type": made.type, "device": made.device}
        row |= {"ndim": len(made.shape)}
        row |= {"sizes": self._held(np.array(made.shape, np.int64))}
        row |= {"strides": self._held(np.array(made.strides, np.int64))}
        if made.target is not None and made.into is not None:
            axes, extents, to, come, chunk = _moved(made.into, made.lies)
            row |= {"writes": 1, "target": made.target, "axes": axes, "chunk": chunk}
            row |= {"extents": self._held(extents), "to": self._held(to), "from": self._held(come)}
            row |= {"place": self._room(made.nbytes)}
        return row


def _moved(to: Lies, come: Lies) -> tuple[int, Words, Words, Words, int]:
    """Axes, extents, strides in bytes on either side, and bytes at a time, of a movement.

    Axes that lie behind one another on both sides are one.
    """
    axes: list[list[int]] = []
    for extent, a, b in zip(to.shape, to.strides, come.strides, strict=True):
        if extent == 1:
            continue
        if axes and axes[-1][1] == a * extent and axes[-1][2] == b * extent:
            axes[-1] = [axes[-1][0] * extent, a, b]
        else:
            axes.append([extent, a, b])
    size, chunk = to.itemsize, to.itemsize
    for axis in axes:
        axis[1:] = axis[1] * size, axis[2] * size
    if axes and axes[-1][1:] == [size, size]:
        nbytes = axes[-1][0] * size
        chunk = next(c for c in _CHUNKS if not nbytes % c and c >= size)
        axes[-1] = [nbytes // chunk, chunk, chunk]
    axes = axes or [[1, size, size]]
    table = np.array(axes, np.int64)
    return len(axes), table[:, 0], table[:, 1], table[:, 2], chunk


def _hash(key: bytes) -> int:
    """Return the hash of a key that native code computes."""
    found = _HASH
    for word in np.frombuffer(key, np.uint64).tolist():
        product = (found ^ word) * _FACTOR & _MASK
        found = product ^ product >> 29
    return found


class _Own(np.ndarray[Any, Any]):
    """Words that a native function reads, and objects that have to stay for it."""

    kept: list[Any]


class NativeKernel:
    """A native kernel of an operator.

    Args:
        library: the native part.
        slow: called as the kernel is, for calls that are not known.
        opens: whether real numbers are not part of keys: programs read them as tensors.

    Attributes:
        function: for PyTorch.
    """

    def __init__(
        self, library: NativeLibrary, slow: Callable[..., Any], *, opens: bool = False
    ) -> None:
        self._entries: list[NativeCall] = []
        self._own = _Own((len(OWN),), np.int64)
        self._own.kept = [slow, self._entries]
        self._own[OWN["slow"]], self._own[OWN["opens"]] = id(slow), int(opens)
        self._grow(8)
        self.function = library.function("kernel", self._own, takes_names=True)

    @property
    def is_full(self) -> bool:
        """True if no more calls are taken."""
        return len(self._entries) >= MOST_ENTRIES

    def add(self, entry: NativeCall) -> None:
        """Add the entry of a kind of calls, so that native code finds it."""
        self._entries.append(entry)
        if len(self._entries) > len(self._buckets):
            self._grow(4 * len(self._buckets))
        else:
            self._put(entry)

    def _grow(self, count: int) -> None:
        self._buckets = np.zeros(count, np.int64)
        self._own.kept.append(self._buckets)
        self._own[OWN["mask"]] = count - 1
        for entry in self._entries:
            self._put(entry)
        self._own[OWN["buckets"]] = self._buckets.ctypes.data

    def _put(self, entry: NativeCall) -> None:
        bucket = entry.hash & len(self._buckets) - 1
        entry.words[ENTRY["next"]] = self._buckets[bucket]
        self._buckets[bucket] = entry.address


def key_of(library: NativeLibrary, args: Any, kwargs: Any, *, opens: bool) -> bytes | None:
    """The key of a call; None where it has none. `opens`: see `NativeKernel`."""
    found: bytes | None = library.key((args, kwargs, opens))
    return found


def program_function(library: NativeLibrary, entry: NativeCall, slow: Callable[[Any], Any]) -> Any:
    """A function of a list of tensors that runs a program on them.

    Args:
        library: the native part.
        entry: of the program, without a key.
        slow: called where a tensor is not dense, or none at all.
    """
    own = _Own((len(PROGRAM),), np.int64)
    own.kept = [entry, slow]
    own[PROGRAM["entry"]], own[PROGRAM["slow"]] = entry.address, id(slow)
    return library.function("program", own, takes_names=False)
