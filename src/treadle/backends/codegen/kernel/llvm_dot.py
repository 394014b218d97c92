"""LLVM text of `dot`: an instruction where the target has one, else an exact expansion."""

from __future__ import annotations

from treadle.backends.codegen.kernel.ir import Instruction
from treadle.backends.codegen.kernel.language import KernelError
from treadle.backends.codegen.kernel.llvm_casts import widen
from treadle.backends.codegen.kernel.llvm_values import multiply_add, pick
from treadle.backends.codegen.kernel.llvm_writer import LLVMWriter, spread
from treadle.base import dtype as dt

_PAIR_PRODUCTS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_BYTE_PRODUCTS = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}


def dot(w: LLVMWriter, instruction: Instruction) -> str:
    """`dot` of bytes, of 16-bit integers or of bfloat16."""
    total, x, y = instruction.arguments
    kinds, lanes = (total.dtype, x.dtype, y.dtype), total.lanes
    texts = w.operand(total), w.operand(x), w.operand(y)
    if kinds == (dt.int32, dt.uint8, dt.int8) and x.lanes == y.lanes == 4 * lanes:
        return _dot_bytes(w, lanes, *texts, narrow=bool(instruction.detail))
    if kinds == (dt.int32, dt.int8, dt.int8) and x.lanes == y.lanes == 4 * lanes:
        return _dot_signed(w, lanes, *texts)
    if kinds == (dt.int32, dt.int16, dt.int16) and x.lanes == y.lanes == 2 * lanes:
        return _dot_shorts(w, lanes, *texts)
    if kinds == (dt.float32, dt.bfloat16, dt.bfloat16) and x.lanes == y.lanes == 2 * lanes:
        return _dot_bfloat16(w, lanes, *texts)
    raise KernelError(f"{w.kernel}: dot of {x.type} and {y.type} into {total.type}")


def _is_x86(w: LLVMWriter) -> bool:
    return w.target.triple.startswith("x86") or w.target.vector_bytes >= 32


def _fits(w: LLVMWriter, lanes: int) -> bool:
    """Return whether there is a register of so many 32-bit lanes."""
    return lanes in _PAIR_PRODUCTS and 4 * lanes <= w.target.vector_bytes


def _dot_bytes(w: LLVMWriter, lanes: int, total: str, x: str, y: str, *, narrow: bool) -> str:
    i32, bytes_ = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    if w.target.dot_int8 and w.target.is_arm and lanes == 4:
        name = "llvm.aarch64.neon.usdot.v4i32.v16i8"
        return w.call(i32, name, (i32, total), (bytes_, x), (bytes_, y))
    if w.target.dot_int8 and not w.target.is_arm and _fits(w, lanes):
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        return w.call(i32, name, (i32, total), (bytes_, x), (bytes_, y))
    if lanes == 1 or not (_is_x86(w) and _fits(w, lanes)):
        return _dot_bytes_plain(w, lanes, total, x, y)
    if narrow and w.target.vector_bytes >= 32:
        return _dot_bytes_narrow(w, lanes, total, x, y)
    return _dot_bytes_by_pairs(w, lanes, total, x, y)


def _dot_signed(w: LLVMWriter, lanes: int, total: str, x: str, y: str) -> str:
    i32, bytes_ = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    if w.target.dot_signed and lanes == 4:
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        return w.call(i32, name, (i32, total), (bytes_, x), (bytes_, y))
    return _dot_bytes_plain(w, lanes, total, x, y, signed=True)


def _dot_bytes_by_pairs(w: LLVMWriter, lanes: int, total: str, x: str, y: str) -> str:
    """Add dot products of bytes to a total: x86 multiplies even and odd ones as 16-bit integers.

    The instruction for bytes (pmaddubsw) saturates its sums.
    """
    i16, i32 = f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    eight = spread("i16", 2 * lanes, "8")
    a = w.op(f"bitcast <{4 * lanes} x i8> {x} to {i16}")
    b = w.op(f"bitcast <{4 * lanes} x i8> {y} to {i16}")
    a_even = w.op(f"and {i16} {a}, {spread('i16', 2 * lanes, '255')}")
    a_odd = w.op(f"lshr {i16} {a}, {eight}")
    b_even = w.op(f"ashr {i16} {w.op(f'shl {i16} {b}, {eight}')}, {eight}")
    b_odd = w.op(f"ashr {i16} {b}, {eight}")
    name = f"llvm.x86.{_PAIR_PRODUCTS[lanes]}"
    even = w.call(i32, name, (i16, a_even), (i16, b_even))
    odd = w.call(i32, name, (i16, a_odd), (i16, b_odd))
    return w.op(f"add {i32} {total}, {w.op(f'add {i32} {even}, {odd}')}")


def _dot_bytes_narrow(w: LLVMWriter, lanes: int, total: str, x: str, y: str) -> str:
    """Products added in pairs of 16 bits, which are then added in pairs."""
    i16, i32, bytes_ = f"<{2 * lanes} x i16>", f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    pairs = w.call(i16, f"llvm.x86.{_BYTE_PRODUCTS[lanes]}", (bytes_, x), (bytes_, y))
    ones = spread("i16", 2 * lanes, "1")
    fours = w.call(i32, f"llvm.x86.{_PAIR_PRODUCTS[lanes]}", (i16, pairs), (i16, ones))
    return w.op(f"add {i32} {total}, {fours}")


def _dot_bytes_plain(
    w: LLVMWriter, lanes: int, total: str, x: str, y: str, *, signed: bool = False
) -> str:
    """Widen, multiply, and add every fourth product."""
    many, i32 = f"<{4 * lanes} x i32>", "i32" if lanes == 1 else f"<{lanes} x i32>"
    a = w.op(f"{'sext' if signed else 'zext'} <{4 * lanes} x i8> {x} to {many}")
    b = w.op(f"sext <{4 * lanes} x i8> {y} to {many}")
    products = w.op(f"mul {many} {a}, {b}")
    for first in range(4):
        order = tuple(range(first, 4 * lanes, 4))
        part = pick(w, "i32", 4 * lanes, products, "poison", order)
        total = w.op(f"add {i32} {total}, {part}")
    return total


def _dot_shorts(w: LLVMWriter, lanes: int, total: str, x: str, y: str) -> str:
    """x86 adds the products in pairs; both being the square of -32768, they wrap as all else."""
    i16, i32 = f"<{2 * lanes} x i16>", "i32" if lanes == 1 else f"<{lanes} x i32>"
    if _is_x86(w) and _fits(w, lanes):
        name = f"llvm.x86.{_PAIR_PRODUCTS[lanes]}"
        return w.op(f"add {i32} {total}, {w.call(i32, name, (i16, x), (i16, y))}")
    if w.target.triple.startswith("wasm") and lanes == 4:
        return w.op(f"add {i32} {total}, {w.call(i32, 'llvm.wasm.dot', (i16, x), (i16, y))}")
    for first in (0, 1):
        order = tuple(range(first, 2 * lanes, 2))
        parts = (pick(w, "i16", 2 * lanes, v, "poison", order) for v in (x, y))
        short = "i16" if lanes == 1 else f"<{lanes} x i16>"
        a, b = (w.op(f"sext {short} {v} to {i32}") for v in parts)
        total = w.op(f"add {i32} {total}, {w.op(f'mul {i32} {a}, {b}')}")
    return total


def _dot_bfloat16(w: LLVMWriter, lanes: int, total: str, x: str, y: str) -> str:
    """Odd elements first, as the instruction does it."""
    if w.target.dot_bfloat16 and _fits(w, lanes):
        f32, short = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        if w.target.is_arm:
            name = "llvm.aarch64.neon.bfdot.v4f32.v8bf16"
        a, b = (w.op(f"bitcast <{2 * lanes} x i16> {v} to {short}") for v in (x, y))
        return w.call(f32, name, (f32, total), (short, a), (short, b))
    for first in (1, 0):
        order = tuple(range(first, 2 * lanes, 2))
        a, b = (
            widen(w, dt.bfloat16, lanes, pick(w, "i16", 2 * lanes, v, "poison", order))
            for v in (x, y)
        )
        total = multiply_add(w, dt.float32, lanes, a, b, total)
    return total
