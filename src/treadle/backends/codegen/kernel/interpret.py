"""Kernels run in Python, by the rules of the language: the oracle of the printers.

Every access to memory is checked: against the size of the array behind the pointer, against the
alignment that an instruction claims, and scratch memory starts as NaN. Slow on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treadle.backends.codegen.kernel.interpret_matrices import Matrices
from treadle.backends.codegen.kernel.interpret_values import rules
from treadle.backends.codegen.kernel.ir import (
    MATRICES,
    Block,
    Branch,
    Call,
    Instruction,
    KernelModule,
    KernelRoutine,
    Loop,
    Statement,
)
from treadle.backends.codegen.kernel.language import INDEX, InstructionOperand, KernelError, Type
from treadle.backends.codegen.kernel.text import digest
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType


class MemoryPointer(NamedTuple):
    """An address: `place` bytes into memory whose first byte lies at `base`."""

    memory: npt.NDArray[np.uint8]
    place: int
    base: int


Datum = Array | int | MemoryPointer
"""A value at run time: vectors and scalars are arrays over lanes, indices are Python's integers."""


def run(
    kernel: KernelModule,
    arguments: Sequence[Array | MemoryPointer | int],
    lo: int = 0,
    hi: int = 1,
    *,
    fused: bool = True,
) -> None:
    """Run the work items [lo, hi) of a kernel.

    Args:
        kernel: the kernel.
        arguments: one per parameter: C-contiguous arrays, which bound what the kernel may touch,
            places in them, or integers.
        lo, hi: the range of work items.
        fused: whether every `fma` rounds once; False does as targets without the instruction.

    Raises:
        KernelError: the kernel leaves its arrays, divides an integer by 0, breaks a promise about
            alignment, or is not of the language.
    """
    if len(arguments) != len(kernel.parameters):
        raise KernelError(
            f"{kernel.name} takes {len(kernel.parameters)} arguments, not {len(arguments)}"
        )
    digest(kernel)  # numbers all values, and so finds those that are used outside of their block
    given = [_argument(kernel, p, a) for p, a in zip(kernel.parameters, arguments, strict=True)]
    machine = _Machine(kernel, fused)
    with np.errstate(all="ignore"):
        machine.function(kernel.entry, [*given, lo, hi])


def _argument(
    kernel: KernelModule, parameter: InstructionOperand, given: Array | MemoryPointer | int
) -> Datum:
    """Return an argument as the kernel sees it."""
    if not parameter.type.pointer:
        if parameter.type != INDEX or isinstance(given, np.ndarray | MemoryPointer):
            raise KernelError(f"{kernel.name}: an array for a parameter of type {parameter.type}")
        return int(given)
    if isinstance(given, MemoryPointer):
        return given
    if not isinstance(given, np.ndarray) or not given.flags.c_contiguous:
        raise KernelError(f"{kernel.name}: {parameter.name} needs a C-contiguous array")
    return _pointer(given)


def _pointer(array: Array) -> MemoryPointer:
    return MemoryPointer(array.reshape(-1).view(np.uint8), 0, array.ctypes.data)


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


_INDEX_CODES: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "min": min,
    "max": max,
}
"""Arithmetic of indices, which kernels do much of, without arrays."""


class _Machine:
    """Runs the functions of one kernel."""

    def __init__(self, kernel: KernelModule, fused: bool) -> None:
        self._kernel = kernel
        self._values: dict[InstructionOperand, Datum] = {}
        self._rules = rules(fused)
        self._memory: dict[str, Callable[[Instruction, list[Datum]], Datum | None]] = {
            "load": self._load,
            "store": self._store,
            "gather": self._gather,
            "scatter": self._scatter,
            "offset": self._offset,
            "reinterpret": lambda instruction, args: args[0],
            "address": lambda instruction, args: sum(self._memory_of(args[0])[1:]),
            "stack": self._stack,
            "prefetch": lambda instruction, args: None,
            "copy": self._copy,
            "zero": self._zero,
        }
        self._matrices = Matrices(self._window, self._writable)

    def _error(self, message: str) -> KernelError:
        return KernelError(f"{self._kernel.name}: {message}")

    # -- statements ------------------------------------------------------------------------

    def function(self, function: KernelRoutine, arguments: Sequence[Datum]) -> None:
        """Run a function on a frame of its own."""
        outer, self._values = self._values, {}
        self._values.update(zip(function.parameters, arguments, strict=True))
        self._block(function.body)
        self._values = outer

    def _get(self, value: InstructionOperand) -> Datum:
        found = self._values.get(value)
        if found is None:
            if value.literal is None:
                raise self._error(f"a value of type {value.type} is used undefined")
            found = int(value.literal) if value.type == INDEX else _literal(value)
            self._values[value] = found
        return found

    def _index(self, value: InstructionOperand) -> int:
        got = self._get(value)
        if not isinstance(got, int):
            raise self._error(f"{value.type} where an index belongs")
        return got

    def _block(self, block: Block) -> None:
        for statement in block.statements:
            if isinstance(statement, Instruction):
                self._instruction(statement)
            else:
                self._structure(statement)

    def _structure(self, statement: Statement) -> None:
        if isinstance(statement, Loop):
            self._loop(statement)
        elif isinstance(statement, Branch):
            self._branch(statement)
        elif isinstance(statement, Call):
            if statement.function not in self._kernel.functions:
                raise self._error(f"{statement.function.name} is called but not listed")
            self.function(statement.function, [self._get(a) for a in statement.arguments])

    def _loop(self, loop: Loop) -> None:
        start, stop, step = (self._index(v) for v in (loop.start, loop.stop, loop.step))
        if step <= 0:
            raise self._error(f"a loop with step {step}")
        state = [self._get(v) for v in loop.initial]
        for index in range(start, stop, step):
            self._values[loop.index] = index
            self._values.update(zip(loop.carried, state, strict=True))
            self._block(loop.body)
            state = [self._get(v) for v in loop.yielded]
        self._values.update(zip(loop.results, state, strict=True))

    def _branch(self, branch: Branch) -> None:
        condition = self._get(branch.condition)
        if not isinstance(condition, np.ndarray) or branch.condition.type != Type(dt.bool_):
            raise self._error(f"a branch on {branch.condition.type}")
        taken = bool(condition[0])
        self._block(branch.then if taken else branch.otherwise)
        values = branch.then_values if taken else branch.otherwise_values
        state = [self._get(v) for v in values]
        self._values.update(zip(branch.results, state, strict=True))

    def _instruction(self, instruction: Instruction) -> None:
        args = [self._get(a) for a in instruction.arguments]
        made = self._run(instruction, args)
        if instruction.result is not None and made is not None:
            self._values[instruction.result] = made

    def _run(self, instruction: Instruction, args: list[Datum]) -> Datum | None:
        touch = self._memory.get(instruction.code)
        if touch is not None:
            return touch(instruction, args)
        if instruction.code in MATRICES:
            self._matrices.run(instruction, args)
            return None
        result = instruction.result
        if result is None:
            raise self._error(f"no instruction is called {instruction.code}")
        if result.type == INDEX and instruction.code in _INDEX_CODES:
            x, y = args
            if isinstance(x, int) and isinstance(y, int):
                return _wrapped(_INDEX_CODES[instruction.code](x, y))
        return self._pure(instruction, result.type, args)

    def _pure(self, instruction: Instruction, result: Type, args: list[Datum]) -> Datum:
        """An instruction on values."""
        if instruction.code == "select" and result.pointer:
            condition, x, y = args
            return x if isinstance(condition, np.ndarray) and condition[0] else y
        rule = self._rules.get(instruction.code)
        if rule is None:
            raise self._error(f"no instruction is called {instruction.code}")
        try:
            made = rule(instruction, result, [self._array(a) for a in args])
        except KernelError as error:
            raise self._error(str(error)) from None
        if made.shape != (result.lanes,) or made.dtype != result.dtype.numpy:
            raise self._error(f"{instruction.code} does not give {result}")
        return self._datum(made, result)

    def _array(self, datum: Datum) -> Array:
        if isinstance(datum, MemoryPointer):
            raise self._error("a pointer where a value belongs")
        return np.array([datum], np.int64) if isinstance(datum, int) else datum

    def _datum(self, array: Array, type_: Type) -> Datum:
        return int(array[0]) if type_ == INDEX else array

    # -- memory ----------------------------------------------------------------------------

    def _memory_of(self, datum: Datum) -> MemoryPointer:
        if not isinstance(datum, MemoryPointer):
            raise self._error("a value where a pointer belongs")
        return datum

    def _place(self, datum: Datum) -> int:
        """The index that a value is, or that its first lane is."""
        return datum if isinstance(datum, int) else int(self._array(datum)[0])

    def _window(
        self, datum: Datum, index: int, dtype: DType, count: int, alignment: int = 1
    ) -> npt.NDArray[np.uint8]:
        """The bytes of `count` elements from an index on."""
        datum = self._memory_of(datum)
        first = datum.place + index * dtype.itemsize
        last = first + count * dtype.itemsize
        if count < 0 or (count and (first < 0 or last > datum.memory.size)):
            raise self._error(
                f"{dtype.name}[{index}:{index + count}] is outside of the array: bytes "
                f"{first} to {last} of {datum.memory.size}"
            )
        if (datum.base + first) % alignment:
            raise self._error(f"{dtype.name}[{index}] is not aligned to {alignment} bytes")
        return datum.memory[first:last]

    def _writable(self, window: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        if not window.flags.writeable:
            raise self._error("a store to memory that is only to be read")
        return window

    def _cells(self, datum: Datum, indices: Array, dtype: DType) -> npt.NDArray[np.int64]:
        """Return places of the bytes of elements at some indices: [elements, bytes of one]."""
        pointer = self._memory_of(datum)
        if indices.size:
            for end in (indices.min(), indices.max()):  # what lies between them is inside as well
                self._window(pointer, int(end), dtype, 1)
        first = pointer.place + indices.astype(np.int64) * dtype.itemsize
        cells: npt.NDArray[np.int64] = first[:, None] + np.arange(dtype.itemsize)
        return cells

    def _read_lanes(self, datum: Datum, indices: Array, result: Type, mask: Array) -> Datum:
        """One element per lane of a mask, 0 for the others."""
        made = np.zeros(result.lanes, result.dtype.numpy)
        cells = self._cells(datum, indices[mask], result.dtype)
        made[mask] = _read(self._memory_of(datum).memory[cells].reshape(-1), result.dtype)
        return self._datum(made, result)

    def _write_lanes(
        self, datum: Datum, indices: Array, dtype: DType, value: Array, mask: Array
    ) -> None:
        """One element per lane of a mask; of equal indices the last lane's stays."""
        cells = self._cells(datum, indices[mask], dtype)
        if cells.size:
            written = np.ascontiguousarray(value[mask]).view(np.uint8).reshape(cells.shape)
            self._writable(self._memory_of(datum).memory)[cells] = written

    def _mask(self, args: Sequence[Datum], lanes: int) -> Array:
        """Return the mask of lanes that take part: the argument, or all of them."""
        if not args:
            return np.ones(lanes, np.bool_)
        mask = self._array(args[0])
        if mask.dtype != np.bool_ or mask.shape != (lanes,):
            raise self._error(f"a mask of {mask.size} lanes for {lanes}")
        return mask

    def _load(self, instruction: Instruction, args: list[Datum]) -> Datum:
        result = _result(instruction)
        dtype, lanes, index = result.dtype, result.lanes, self._place(args[1])
        if len(args) == 2:
            alignment = _alignment(dtype, lanes, instruction.detail[0])
            window = self._window(args[0], index, dtype, lanes, alignment)
            return self._datum(_read(window, dtype), result)
        mask = self._mask(args[2:], lanes)
        return self._read_lanes(args[0], index + np.arange(lanes), result, mask)

    def _store(self, instruction: Instruction, args: list[Datum]) -> None:
        dtype, value = instruction.arguments[0].dtype, self._array(args[2])
        index, lanes = self._place(args[1]), value.size
        if len(args) == 3:
            alignment = _alignment(dtype, lanes, instruction.detail[0])
            window = self._window(args[0], index, dtype, lanes, alignment)
            self._writable(window)[:] = np.ascontiguousarray(value).view(np.uint8)
            return
        mask = self._mask(args[3:], lanes)
        self._write_lanes(args[0], index + np.arange(lanes), dtype, value, mask)

    def _gather(self, instruction: Instruction, args: list[Datum]) -> Datum:
        result = _result(instruction)
        mask = self._mask(args[2:], result.lanes)
        return self._read_lanes(args[0], self._array(args[1]), result, mask)

    def _scatter(self, instruction: Instruction, args: list[Datum]) -> None:
        indices, value = self._array(args[1]), self._array(args[2])
        dtype, mask = instruction.arguments[0].dtype, self._mask(args[3:], value.size)
        self._write_lanes(args[0], indices, dtype, value, mask)

    def _offset(self, instruction: Instruction, args: list[Datum]) -> Datum:
        pointer, index = args
        if not isinstance(pointer, MemoryPointer) or not isinstance(index, int):
            raise self._error("offset takes a pointer and an index")
        size = instruction.arguments[0].dtype.itemsize
        return MemoryPointer(pointer.memory, pointer.place + index * size, pointer.base)

    def _stack(self, instruction: Instruction, args: list[Datum]) -> Datum:
        (count,) = instruction.detail
        size = count * _result(instruction).dtype.itemsize
        memory = np.full(size + 64, 0xFF, np.uint8)
        first = -memory.ctypes.data % 64
        return _pointer(memory[first : first + size])

    def _copy(self, instruction: Instruction, args: list[Datum]) -> None:
        dtype, count = instruction.arguments[0].dtype, self._place(args[2])
        target = self._writable(self._window(args[0], 0, dtype, count))
        source = self._window(args[1], 0, dtype, count)
        is_same = target.ctypes.data == source.ctypes.data
        if not is_same and np.may_share_memory(target, source):
            raise self._error("copy between places that overlap")
        target[:] = source

    def _zero(self, instruction: Instruction, args: list[Datum]) -> None:
        dtype, count = instruction.arguments[0].dtype, self._place(args[1])
        self._writable(self._window(args[0], 0, dtype, count))[:] = 0


def _literal(value: InstructionOperand) -> Array:
    dtype = value.dtype
    if dtype.is_integer:
        bits = int(value.literal or 0) & ((1 << dtype.bits) - 1)
        unsigned = np.full(value.lanes, bits, np.dtype(f"u{dtype.itemsize}"))
        made: Array = unsigned.view(dtype.numpy)
    else:
        made = np.full(value.lanes, value.literal, np.float64).astype(dtype.numpy)
    made.flags.writeable = False  # it is kept
    return made


def _result(instruction: Instruction) -> Type:
    if instruction.result is None:
        raise KernelError(f"{instruction.code} needs a result")
    return instruction.result.type


def _alignment(dtype: DType, lanes: int, aligned: bool) -> int:
    size = min(lanes * dtype.itemsize, 64)
    return size if aligned and size & (size - 1) == 0 else 1


def _read(window: npt.NDArray[np.uint8], dtype: DType) -> Array:
    made: Array = window != 0 if dtype is dt.bool_ else window.copy().view(dtype.numpy)
    return made
