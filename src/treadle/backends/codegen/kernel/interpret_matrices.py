"""The meaning of matrix registers, bit for bit that of AMX.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, "TDPBF16PS": first
and second terms of words are summed apart, word after word, from 0 on; then those two sums are
added, and their sum to what the register held. Subnormal numbers, given or made, count as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.codegen.kernel.interpret_values import flushed, fma
from treadle.backends.codegen.kernel.ir import Instruction
from treadle.backends.codegen.kernel.language import KernelError
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType

REGISTERS = 8
ROWS = 16
ROW_BYTES = 64
_BYTES = {"int8": np.int8, "uint8": np.uint8}

Bytes = npt.NDArray[np.uint8]
Window = Callable[[Any, int, DType, int], Bytes]
"""From a pointer, an index, an element type and a count to bytes of memory."""


class Matrices:
    """The registers of one thread; `window` finds memory, `writable` checks that it may be set."""

    def __init__(self, window: Window, writable: Callable[[Bytes], Bytes]) -> None:
        self._window, self._writable = window, writable
        self._registers: dict[int, Bytes] | None = None

    def run(self, instruction: Instruction, args: Sequence[Any]) -> None:
        """One of `MATRICES`.

        Raises:
            KernelError: registers are used before they are begun or set, or begun twice.
        """
        code, detail = instruction.code, instruction.detail
        if code == "begin_matrices":
            if self._registers is not None:
                raise KernelError("matrix registers are begun twice")
            self._registers = {}
        elif code == "end_matrices":
            self._used()
            self._registers = None
        elif code == "matrix_zero":
            self[detail[0]] = np.zeros((ROWS, ROW_BYTES), np.uint8)
        elif code == "matrix_dot":
            self._dot(*detail)
        else:
            self._move(instruction, args)

    def _move(self, instruction: Instruction, args: Sequence[Any]) -> None:
        pointer, step = args
        dtype, register = instruction.arguments[0].dtype, instruction.detail[0]
        count = ROW_BYTES // dtype.itemsize
        rows = [self._window(pointer, r * step, dtype, count) for r in range(ROWS)]
        if instruction.code == "matrix_load":
            self[register] = np.stack(rows)
            return
        for row, made in zip(rows, self[register], strict=True):
            self._writable(row)[:] = made

    def _used(self) -> dict[int, Bytes]:
        if self._registers is None:
            raise KernelError("matrix registers are used before begin_matrices")
        return self._registers

    def __getitem__(self, register: int) -> Bytes:
        found = self._used().get(register)
        if found is None:
            raise KernelError(f"matrix register {register} is used before it is set")
        return found

    def __setitem__(self, register: int, rows: Bytes) -> None:
        if not 0 <= register < REGISTERS:
            raise KernelError(f"there is no matrix register {register}")
        self._used()[register] = rows

    def _dot(self, total: int, x: int, y: int, a: str, b: str) -> None:
        """Add the products of two registers to a third one."""
        rows = self[x], self[y]
        made: Array
        if (a, b) == ("bfloat16", "bfloat16"):
            made = _dot_bfloat16(self[total].view(np.float32), *rows)
        elif a in _BYTES and b in _BYTES:
            left = rows[0].view(_BYTES[a]).astype(np.int32)
            words = rows[1].view(_BYTES[b]).astype(np.int32).reshape(ROWS, -1, 4)
            right = words.transpose(0, 2, 1).reshape(ROW_BYTES, -1)
            made = self[total].view(np.int32) + left @ right
        else:
            raise KernelError(f"matrix_dot of {a} and {b} is not in the language")
        self[total] = np.ascontiguousarray(made).view(np.uint8)


def _dot_bfloat16(total: Array, x: Array, y: Array) -> Array:
    kind = dt.bfloat16.numpy
    left = flushed(x.view(kind).astype(np.float32)).reshape(ROWS, -1, 2)
    right = flushed(y.view(kind).astype(np.float32)).reshape(ROWS, -1, 2)
    sums = np.zeros((2, *total.shape), np.float32)
    shape = total.shape
    for word in range(left.shape[1]):
        for term in range(2):
            x, y = left[:, word, term, None], right[None, word, :, term]
            factor, other = (np.broadcast_to(v, shape).ravel() for v in (x, y))
            made = fma(dt.float32, factor, other, sums[term].ravel())
            sums[term] = flushed(made).reshape(shape)
    both = flushed(sums[0] + sums[1])
    return np.asarray(flushed(flushed(total) + both), np.float32)
