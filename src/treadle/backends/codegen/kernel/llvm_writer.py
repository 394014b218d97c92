"""The text that the LLVM printer writes: lines, value names, literals and declarations."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache

import numpy as np

from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError, Number, Type
from treadle.backends.codegen.target import Target
from treadle.base import dtype as dt
from treadle.base.dtype import DType

# 16-bit floats travel as their bits: every processor moves and shuffles those well, whereas few
# know the types.
_ELEMENTS: dict[DType, str] = {
    dt.bool_: "i1",
    dt.uint8: "i8",
    dt.uint16: "i16",
    dt.uint32: "i32",
    dt.uint64: "i64",
    dt.int8: "i8",
    dt.int16: "i16",
    dt.int32: "i32",
    dt.int64: "i64",
    dt.float16: "i16",
    dt.bfloat16: "i16",
    dt.float32: "float",
    dt.float64: "double",
}
_MANGLED = {"float": "f32", "double": "f64", "ptr": "p0"}


def element(dtype: DType) -> str:
    """LLVM's type of one element held in a register."""
    found = _ELEMENTS.get(dtype)
    if found is None:
        raise KernelError(f"no LLVM type for {dtype.name}")
    return found


def memory_element(dtype: DType) -> str:
    """LLVM's type of one element in memory: a bool is a byte there."""
    return "i8" if dtype is dt.bool_ else element(dtype)


@cache
def vector(of: str, lanes: int) -> str:
    """A vector type, or `of` itself for one lane."""
    return of if lanes == 1 else f"<{lanes} x {of}>"


@cache
def mangled(of: str, lanes: int) -> str:
    """The type as it appears in an intrinsic's name."""
    name = _MANGLED.get(of, of)
    return name if lanes == 1 else f"v{lanes}{name}"


@cache
def llvm_type(type_: Type) -> str:
    """LLVM's type of a value."""
    return "ptr" if type_.pointer else vector(element(type_.dtype), type_.lanes)


def spread(of: str, lanes: int, scalar: str) -> str:
    """A constant in every lane."""
    return scalar if lanes == 1 else f"splat ({of} {scalar})"


@lru_cache(maxsize=4096)
def lane_numbers(numbers: tuple[int, ...], of: str = "i32") -> str:
    """A constant vector of integers, -1 for an undefined one."""
    return "<" + ", ".join(f"{of} poison" if n < 0 else f"{of} {n}" for n in numbers) + ">"


def literal(number: Number, dtype: DType, lanes: int) -> str:
    """A number as an operand."""
    return spread(element(dtype), lanes, scalar_literal(number, dtype))


def lane_literals(numbers: Iterable[Number], dtype: DType) -> str:
    """A constant vector, as an operand."""
    of = element(dtype)
    return "<" + ", ".join(f"{of} {scalar_literal(n, dtype)}" for n in numbers) + ">"


def scalar_literal(number: Number, dtype: DType) -> str:
    """A number as an operand of one element."""
    if dtype is dt.bool_:
        return "true" if number else "false"
    if not dtype.is_float:
        bits = int(number) & ((1 << dtype.bits) - 1)
        return str(bits - (1 << dtype.bits) if bits >> (dtype.bits - 1) else bits)
    with np.errstate(over="ignore"):
        rounded = np.asarray(number, np.float64).astype(dtype.numpy)
    if dtype.itemsize == 2:
        return str(int(rounded.view(np.int16)))
    # LLVM wants the exact value, written as the bits of a double.
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(rounded)))[0]:016X}"


class LLVMWriter:
    """The text of one LLVM function under construction.

    Values go by the names of their operands; those defined inside a block are forgotten after it.
    """

    def __init__(
        self,
        kernel: str,
        target: Target,
        declarations: dict[str, str],
        symbols: dict[KernelRoutine, str],
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.symbols = symbols
        self.lines: list[str] = []
        self.stack: list[str] = []
        self.label = "entry"
        self.streams = False
        self._declarations = declarations
        self._operands: dict[InstructionOperand, str] = {}
        self._literals: dict[InstructionOperand, str] = {}
        self._defined: list[InstructionOperand] = []
        self._count = 0

    # -- names -----------------------------------------------------------------------------

    def fresh(self) -> str:
        """A name nobody has."""
        self._count += 1
        return f"%v{self._count}"

    def define(self, value: InstructionOperand, operand: str) -> None:
        """Name the operand that stands for a value from here on; a KernelError if it has one."""
        if value in self._operands:
            raise KernelError(f"{self.kernel}: a value of type {value.type} is defined twice")
        self._operands[value] = operand
        self._defined.append(value)

    def operand(self, value: InstructionOperand) -> str:
        """The value as an operand, without its type."""
        if value.literal is not None:
            found = self._literals.get(value)
            if found is None:
                found = self._literals[value] = literal(value.literal, value.dtype, value.lanes)
            return found
        try:
            return self._operands[value]
        except KeyError:
            raise KernelError(
                f"{self.kernel}: a value of type {value.type} is used where it is not defined"
            ) from None

    def typed(self, value: InstructionOperand) -> str:
        """The value as an operand, after its type."""
        return f"{llvm_type(value.type)} {self.operand(value)}"

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A block: what it defines is gone afterwards."""
        before = len(self._defined)
        yield
        for value in self._defined[before:]:
            del self._operands[value]
        del self._defined[before:]

    # -- lines -----------------------------------------------------------------------------

    def effect(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}")

    def op(self, text: str) -> str:
        """An instruction; its result."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def new_label(self, hint: str) -> str:
        """A name for a block, not yet begun."""
        self._count += 1
        return f"{hint}{self._count}"

    def begin(self, label: str) -> None:
        """Begin a block, to which all that follows belongs."""
        self.lines.append(f"{label}:")
        self.label = label

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic, declared where needed; arguments are (type, operand)."""
        self._declare(result, function, arguments)
        inner = ", ".join(f"{type_} {operand}" for type_, operand in arguments)
        if result == "void":
            self.effect(f"call void @{function}({inner})")
            return ""
        return self.op(f"call {result} @{function}({inner})")

    def _declare(self, result: str, function: str, arguments: tuple[tuple[str, str], ...]) -> None:
        if function not in self._declarations:
            inner = ", ".join(type_ for type_, _ in arguments)
            self._declarations[function] = f"declare {result} @{function}({inner})"
