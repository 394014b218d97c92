"""LLVM text of conversions between element types."""

from __future__ import annotations

from treadle.backends.codegen.kernel.ir import Instruction
from treadle.backends.codegen.kernel.language import KernelError
from treadle.backends.codegen.kernel.llvm_writer import LLVMWriter, element, spread, vector
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_F32_HALF = "0x3FE0000000000000"  # 0.5
_F32_2_16 = "0x40F0000000000000"  # 2**16
_F32_2_112 = "0x46F0000000000000"  # 2**112
_ROUNDED = (8, 16)
"""Lanes of float32 that one instruction rounds to bfloat16."""


def is_short_float(dtype: DType) -> bool:
    """Return whether it is a float of 16 bits, which lives in registers as its bits."""
    return dtype.is_float and dtype.itemsize == 2


def widen(w: LLVMWriter, dtype: DType, lanes: int, x: str) -> str:
    """A 16-bit float as float32, exactly; other types as they are."""
    if not is_short_float(dtype):
        return x
    if dtype is dt.bfloat16:
        i32 = vector("i32", lanes)
        wide = w.op(f"zext {vector('i16', lanes)} {x} to {i32}")
        bits = w.op(f"shl {i32} {wide}, {spread('i32', lanes, '16')}")
        return w.op(f"bitcast {i32} {bits} to {vector('float', lanes)}")
    if _converts_half(w):
        half = w.op(f"bitcast {vector('i16', lanes)} {x} to {vector('half', lanes)}")
        return w.op(f"fpext {vector('half', lanes)} {half} to {vector('float', lanes)}")
    return _widen_half(w, lanes, x)


def narrow(w: LLVMWriter, dtype: DType, lanes: int, x: str) -> str:
    """A float32 as a 16-bit float, rounded to nearest even; as it is where dtype is no such."""
    if not is_short_float(dtype):
        return x
    if dtype is dt.bfloat16:
        return _narrow_bfloat16(w, lanes, x)
    if _converts_half(w):
        half = w.op(f"fptrunc {vector('float', lanes)} {x} to {vector('half', lanes)}")
        return w.op(f"bitcast {vector('half', lanes)} {half} to {vector('i16', lanes)}")
    return _narrow_half(w, lanes, x)


def _converts_half(w: LLVMWriter) -> bool:
    """True if conversions of float16 are instructions; elsewhere LLVM would call a library."""
    return w.target.vector_bytes >= 32 or w.target.is_arm


def _narrow_bfloat16(w: LLVMWriter, lanes: int, x: str) -> str:
    """Add half of the last place, rounded to even, and drop the low bits; NaN stays a quiet NaN."""
    i32, f32 = vector("i32", lanes), vector("float", lanes)

    def constant(n: int) -> str:
        return spread("i32", lanes, str(n))

    bits = w.op(f"bitcast {f32} {x} to {i32}")
    high = w.op(f"lshr {i32} {bits}, {constant(16)}")
    odd = w.op(f"and {i32} {high}, {constant(1)}")
    bias = w.op(f"add {i32} {odd}, {constant(0x7FFF)}")
    moved = w.op(f"add {i32} {bits}, {bias}")
    rounded = w.op(f"lshr {i32} {moved}, {constant(16)}")
    quiet = w.op(f"or {i32} {high}, {constant(0x40)}")
    nan = w.op(f"fcmp uno {f32} {x}, {x}")
    chosen = w.op(f"select {vector('i1', lanes)} {nan}, {i32} {quiet}, {i32} {rounded}")
    return w.op(f"trunc {i32} {chosen} to {vector('i16', lanes)}")


def _rounded(w: LLVMWriter, lanes: int, x: str) -> str:
    """Return x rounded to bfloat16 by the instruction, which takes subnormal numbers for 0."""
    short = f"<{lanes} x bfloat>"
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}"
    made = w.call(short, name, (f"<{lanes} x float>", x))
    return w.op(f"bitcast {short} {made} to <{lanes} x i16>")


def _widen_half(w: LLVMWriter, lanes: int, x: str) -> str:
    """Read exponent and mantissa as those of a float32 and scale: exact for subnormals, too."""
    i32, f32 = vector("i32", lanes), vector("float", lanes)

    def constant(n: int) -> str:
        return spread("i32", lanes, str(n))

    wide = w.op(f"zext {vector('i16', lanes)} {x} to {i32}")
    magnitude = w.op(f"and {i32} {wide}, {constant(0x7FFF)}")
    placed = w.op(f"shl {i32} {magnitude}, {constant(13)}")
    small = w.op(f"bitcast {i32} {placed} to {f32}")
    scaled = w.op(f"fmul {f32} {small}, {spread('float', lanes, _F32_2_112)}")
    large = w.op(f"fcmp oge {f32} {scaled}, {spread('float', lanes, _F32_2_16)}")
    bits = w.op(f"bitcast {f32} {scaled} to {i32}")
    special = w.op(f"or {i32} {bits}, {constant(0x7F800000)}")
    chosen = w.op(f"select {vector('i1', lanes)} {large}, {i32} {special}, {i32} {bits}")
    sign = w.op(f"and {i32} {wide}, {constant(0x8000)}")
    placed_sign = w.op(f"shl {i32} {sign}, {constant(16)}")
    signed = w.op(f"or {i32} {chosen}, {placed_sign}")
    return w.op(f"bitcast {i32} {signed} to {f32}")


def _narrow_half(w: LLVMWriter, lanes: int, x: str) -> str:
    """Normal results by integer rounding, subnormal ones by adding 0.5, the rest by comparison."""
    i32, f32, i1 = vector("i32", lanes), vector("float", lanes), vector("i1", lanes)

    def constant(n: int) -> str:
        return spread("i32", lanes, str(n))

    def choose(condition: str, a: str, b: str) -> str:
        return w.op(f"select {i1} {condition}, {i32} {a}, {i32} {b}")

    bits = w.op(f"bitcast {f32} {x} to {i32}")
    magnitude = w.op(f"and {i32} {bits}, {constant(0x7FFFFFFF)}")
    # From 2**16 on everything is infinite, or NaN.
    nan = w.op(f"icmp sgt {i32} {magnitude}, {constant(0x7F800000)}")
    special = choose(nan, constant(0x7E00), constant(0x7C00))
    # Adding 0.5 leaves the subnormal's bits, rounded, at the end of the mantissa.
    small = w.op(f"bitcast {i32} {magnitude} to {f32}")
    moved = w.op(f"fadd {f32} {small}, {spread('float', lanes, _F32_HALF)}")
    moved_bits = w.op(f"bitcast {f32} {moved} to {i32}")
    subnormal = w.op(f"sub {i32} {moved_bits}, {constant(0x3F000000)}")
    shifted = w.op(f"lshr {i32} {magnitude}, {constant(13)}")
    odd = w.op(f"and {i32} {shifted}, {constant(1)}")
    # Rebias the exponent from 127 to 15, and round.
    biased = w.op(f"add {i32} {magnitude}, {constant(((15 - 127) << 23) + 0xFFF)}")
    rounded = w.op(f"add {i32} {biased}, {odd}")
    normal = w.op(f"lshr {i32} {rounded}, {constant(13)}")
    is_small = w.op(f"icmp slt {i32} {magnitude}, {constant(113 << 23)}")
    finite = choose(is_small, subnormal, normal)
    is_special = w.op(f"icmp sge {i32} {magnitude}, {constant(143 << 23)}")
    result = choose(is_special, special, finite)
    sign = w.op(f"lshr {i32} {bits}, {constant(16)}")
    placed_sign = w.op(f"and {i32} {sign}, {constant(0x8000)}")
    signed = w.op(f"or {i32} {result}, {placed_sign}")
    return w.op(f"trunc {i32} {signed} to {vector('i16', lanes)}")


def cast(w: LLVMWriter, instruction: Instruction) -> str:
    """`cast`: every pair of element types."""
    (x,) = instruction.arguments
    if instruction.result is None:
        raise KernelError(f"{w.kernel}: cast without a result")
    source, target, lanes = x.dtype, instruction.result.dtype, x.lanes
    text = w.operand(x)
    if source is target:
        return text
    if is_short_float(source):
        text, source = widen(w, source, lanes, text), dt.float32
    quick = w.target.dot_bfloat16 and not w.target.is_arm
    if "flush" in instruction.detail and quick and lanes in _ROUNDED:
        return _rounded(w, lanes, text)
    if is_short_float(target):
        return narrow(w, target, lanes, _plain(w, source, dt.float32, lanes, text))
    return _plain(w, source, target, lanes, text)


def _plain(w: LLVMWriter, source: DType, target: DType, lanes: int, x: str) -> str:
    """A conversion between types that LLVM has."""
    if source is target:
        return x
    if target is dt.bool_:
        of = vector(element(source), lanes)
        if source.is_float:
            zero = spread(element(source), lanes, "0x0000000000000000")
            return w.op(f"fcmp une {of} {x}, {zero}")
        return w.op(f"icmp ne {of} {x}, {spread(element(source), lanes, '0')}")
    if source.is_float and target.is_integer and target.bits < 32:
        # Through 32 bits: quicker for vectors, and negative values wrap as they do in NumPy.
        wide = _plain(w, source, dt.int32, lanes, x)
        return _plain(w, dt.int32, target, lanes, wide)
    code = _conversion(source, target)
    if not code:
        return x
    return w.op(f"{code} {vector(element(source), lanes)} {x} to {vector(element(target), lanes)}")


def _conversion(source: DType, target: DType) -> str:
    """LLVM's instruction; empty where the bits stay."""
    if source.is_float:
        if target.is_float:
            return "fpext" if target.bits > source.bits else "fptrunc"
        return "fptosi" if target.kind == "int" else "fptoui"
    if target.is_float:
        return "sitofp" if source.kind == "int" else "uitofp"
    if source is dt.bool_:
        return "zext"
    if source.bits == target.bits:
        return ""
    if source.bits > target.bits:
        return "trunc"
    return "sext" if source.kind == "int" else "zext"


def bitcast(w: LLVMWriter, instruction: Instruction) -> str:
    """`bitcast`: the same bits in other lanes, the first lane in the lowest ones."""
    (x,) = instruction.arguments
    if instruction.result is None:
        raise KernelError(f"{w.kernel}: bitcast without a result")
    result = instruction.result.type
    text, of, lanes = w.operand(x), element(x.dtype), x.lanes
    if x.dtype is dt.bool_:  # in the language a bool is a byte
        text, of = w.op(f"zext {vector('i1', lanes)} {text} to {vector('i8', lanes)}"), "i8"
    target = "i8" if result.dtype is dt.bool_ else element(result.dtype)
    if (of, lanes) != (target, result.lanes):
        text = w.op(f"bitcast {vector(of, lanes)} {text} to {vector(target, result.lanes)}")
    if result.dtype is dt.bool_:
        byte = vector("i8", result.lanes)
        text = w.op(f"icmp ne {byte} {text}, {spread('i8', result.lanes, '0')}")
    return text
