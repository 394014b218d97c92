"""LLVM text of `lookup`: an instruction that shuffles bytes where the target has one."""

from __future__ import annotations

from treadle.backends.codegen.kernel.ir import Instruction
from treadle.backends.codegen.kernel.llvm_values import pick
from treadle.backends.codegen.kernel.llvm_writer import LLVMWriter, lane_numbers, spread

ENTRIES = 16
_X86 = {16: "ssse3.pshuf.b.128", 32: "avx2.pshuf.b", 64: "avx512.pshuf.b.512"}


def lookup(w: LLVMWriter, instruction: Instruction) -> str:
    """A register of bytes at a time; else bit by bit."""
    (x,) = instruction.arguments
    lanes, given = x.lanes, w.operand(x)
    many = _register(w)
    if not many or lanes % ENTRIES or lanes & (lanes - 1):
        return _by_bits(w, lanes, given, instruction.detail)
    many = min(many, lanes)
    parts = []
    for first in range(0, lanes, many):
        part = given
        if many < lanes:
            part = pick(w, "i8", lanes, given, "poison", tuple(range(first, first + many)))
        parts.append(_of_register(w, many, part, instruction.detail))
    wide = many
    while len(parts) > 1:
        order = tuple(range(2 * wide))
        both = zip(parts[::2], parts[1::2], strict=True)
        parts = [pick(w, "i8", wide, one, other, order) for one, other in both]
        wide *= 2
    return parts[0]


def _register(w: LLVMWriter) -> int:
    """The most bytes that an instruction looks up, 0 where there is none."""
    if w.target.is_arm:
        return 16
    return w.target.vector_bytes if w.target.vector_bytes >= 32 else 0


def _of_register(w: LLVMWriter, lanes: int, x: str, table: tuple[int, ...]) -> str:
    kind = f"<{lanes} x i8>"
    entries = lane_numbers(table * (lanes // ENTRIES), "i8")
    if w.target.is_arm:
        return w.call(kind, "llvm.aarch64.neon.tbl1.v16i8", (kind, entries), (kind, x))
    return w.call(kind, f"llvm.x86.{_X86[lanes]}", (kind, entries), (kind, x))


def _by_bits(w: LLVMWriter, lanes: int, x: str, table: tuple[int, ...]) -> str:
    """Halves of the table that is left, by the highest bit that is left."""
    kind, truth = ("i8", "i1") if lanes == 1 else (f"<{lanes} x i8>", f"<{lanes} x i1>")
    left = [spread("i8", lanes, str(n)) for n in table]
    while len(left) > 1:
        half = len(left) // 2
        bit = w.op(f"and {kind} {x}, {spread('i8', lanes, str(half))}")
        is_set = w.op(f"icmp ne {kind} {bit}, {spread('i8', lanes, '0')}")
        left = [
            w.op(f"select {truth} {is_set}, {kind} {high}, {kind} {low}")
            for low, high in zip(left[:half], left[half:], strict=True)
        ]
    return left[0]
