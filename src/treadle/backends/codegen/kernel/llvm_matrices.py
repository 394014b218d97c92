"""LLVM text of matrix registers: x86's AMX, whose intrinsics name the registers by number.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, "LDTILECFG" and
"TDPBF16PS": byte 0 of a configuration is the palette, the words from byte 16 on are bytes per row,
the bytes from 48 on are rows.
"""

from __future__ import annotations

from treadle.backends.codegen.kernel.ir import Instruction
from treadle.backends.codegen.kernel.language import KernelError
from treadle.backends.codegen.kernel.llvm_values import Handler
from treadle.backends.codegen.kernel.llvm_writer import LLVMWriter, memory_element

_CONFIGURATION = (1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0)
"""Words of 64 bits: palette 1, and for each of eight registers 64 bytes by 16 rows."""
_DOTS = {
    ("bfloat16", "bfloat16"): "tdpbf16ps",
    ("int8", "int8"): "tdpbssd",
    ("int8", "uint8"): "tdpbsud",
    ("uint8", "int8"): "tdpbusd",
    ("uint8", "uint8"): "tdpbuud",
}


def _check(w: LLVMWriter) -> None:
    if not w.target.matrices:
        raise KernelError(f"{w.kernel}: {w.target.name} has no matrix registers")


def _begin(w: LLVMWriter, instruction: Instruction) -> str:
    _check(w)
    name = w.fresh()
    w.stack.append(f"  {name} = alloca [8 x i64], align 64")
    for position, word in enumerate(_CONFIGURATION):
        place = w.op(f"getelementptr i64, ptr {name}, i64 {position}")
        w.effect(f"store i64 {word}, ptr {place}, align 8")
    w.call("void", "llvm.x86.ldtilecfg", ("ptr", name))
    return ""


def _end(w: LLVMWriter, instruction: Instruction) -> str:
    w.call("void", "llvm.x86.tilerelease")
    return ""


def _zero(w: LLVMWriter, instruction: Instruction) -> str:
    (register,) = instruction.detail
    w.call("void", "llvm.x86.tilezero", ("i8", str(register)))
    return ""


def _move(w: LLVMWriter, instruction: Instruction, intrinsic: str) -> str:
    pointer, step = instruction.arguments
    register = instruction.detail[0]
    of = memory_element(pointer.dtype)
    if step.literal is not None:
        bytes_ = str(int(step.literal) * pointer.dtype.itemsize)
    else:
        bytes_ = w.op(f"mul i64 {w.operand(step)}, {pointer.dtype.itemsize}")
    if not of.startswith(("i", "float")):
        raise KernelError(f"{w.kernel}: matrix registers hold no {pointer.dtype.name}")
    place = ("ptr", w.operand(pointer))
    w.call("void", intrinsic, ("i8", str(register)), place, ("i64", bytes_))
    return ""


def _load(w: LLVMWriter, instruction: Instruction) -> str:
    hint = "t1" if "streaming" in instruction.detail else ""
    return _move(w, instruction, f"llvm.x86.tileloadd{hint}64")


def _store(w: LLVMWriter, instruction: Instruction) -> str:
    return _move(w, instruction, "llvm.x86.tilestored64")


def _dot(w: LLVMWriter, instruction: Instruction) -> str:
    total, x, y, a, b = instruction.detail
    name = _DOTS.get((a, b))
    if name is None:
        raise KernelError(f"{w.kernel}: matrix_dot of {a} and {b}")
    registers = (("i8", str(register)) for register in (total, x, y))
    w.call("void", f"llvm.x86.{name}", *registers)
    return ""


HANDLERS: dict[str, Handler] = {
    "begin_matrices": _begin,
    "end_matrices": _end,
    "matrix_zero": _zero,
    "matrix_load": _load,
    "matrix_store": _store,
    "matrix_dot": _dot,
}
