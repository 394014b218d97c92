"""LLVM text of instructions on values: arithmetic, comparisons, lanes."""

from __future__ import annotations

from collections.abc import Callable

from treadle.backends.codegen.kernel.ir import ARITHMETIC, BITWISE, COMPARE, UNARY, Instruction
from treadle.backends.codegen.kernel.language import KernelError, Type
from treadle.backends.codegen.kernel.llvm_casts import bitcast, cast, is_short_float, narrow, widen
from treadle.backends.codegen.kernel.llvm_writer import (
    LLVMWriter,
    element,
    lane_literals,
    lane_numbers,
    mangled,
    scalar_literal,
    spread,
    vector,
)
from treadle.base import dtype as dt
from treadle.base.dtype import DType

Handler = Callable[[LLVMWriter, Instruction], str]

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "rem": "frem"}
_FLOAT_UNARY = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "rint": "rint",
}
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole"}
_BOOL_BINARY = {"min": "and", "max": "or", "and": "and", "or": "or", "xor": "xor"}


def result_type(w: LLVMWriter, instruction: Instruction) -> Type:
    """Type of what the instruction gives."""
    if instruction.result is None:
        raise KernelError(f"{w.kernel}: {instruction.code} needs a result")
    return instruction.result.type


def _reject(w: LLVMWriter, code: str, dtype: DType) -> KernelError:
    return KernelError(f"{w.kernel}: {code} of {dtype.name} is not in the language")


# -- arithmetic --------------------------------------------------------------------------------


def binary(w: LLVMWriter, code: str, dtype: DType, lanes: int, x: str, y: str) -> str:
    """One of `ARITHMETIC` or `BITWISE` on operands of a type."""
    if dtype is dt.bool_:
        if code not in _BOOL_BINARY:
            raise _reject(w, code, dtype)
        return w.op(f"{_BOOL_BINARY[code]} {vector('i1', lanes)} {x}, {y}")
    if is_short_float(dtype):
        a, b = widen(w, dtype, lanes, x), widen(w, dtype, lanes, y)
        return narrow(w, dtype, lanes, binary(w, code, dt.float32, lanes, a, b))
    if code in ("min", "max"):
        return _minmax(w, code, dtype, lanes, x, y)
    return (_float_binary if dtype.is_float else _integer_binary)(w, code, dtype, lanes, x, y)


def _minmax(w: LLVMWriter, code: str, dtype: DType, lanes: int, x: str, y: str) -> str:
    """Compare and select, exactly as x86's instructions do it, which LLVM then picks."""
    of = vector(element(dtype), lanes)
    order = "lt" if code == "min" else "gt"
    kind = "fcmp o" if dtype.is_float else "icmp s" if dtype.kind == "int" else "icmp u"
    condition = w.op(f"{kind}{order} {of} {x}, {y}")
    return w.op(f"select {vector('i1', lanes)} {condition}, {of} {x}, {of} {y}")


def _float_binary(w: LLVMWriter, code: str, dtype: DType, lanes: int, x: str, y: str) -> str:
    of = vector(element(dtype), lanes)
    if code == "copysign":
        name = f"llvm.copysign.{mangled(element(dtype), lanes)}"
        return w.call(of, name, (of, x), (of, y))
    if code not in _FLOAT_BINARY:
        raise _reject(w, code, dtype)
    return w.op(f"{_FLOAT_BINARY[code]} {of} {x}, {y}")


def _integer_binary(w: LLVMWriter, code: str, dtype: DType, lanes: int, x: str, y: str) -> str:
    of, signed = vector(element(dtype), lanes), dtype.kind == "int"
    if code in ("div", "rem"):
        if signed:
            return _signed_division(w, code, dtype, lanes, x, y)
        return w.op(f"u{code} {of} {x}, {y}")
    if code == "copysign":
        raise _reject(w, code, dtype)
    if code == "shr":
        code = "ashr" if signed else "lshr"
    return w.op(f"{code} {of} {x}, {y}")


def _signed_division(w: LLVMWriter, code: str, dtype: DType, lanes: int, x: str, y: str) -> str:
    """The smallest value divided by -1 wraps in the language but traps in the processor."""
    of = vector(element(dtype), lanes)
    if not y.startswith("%"):  # a literal, which is not 0
        if y == spread(element(dtype), lanes, "-1"):
            zero = spread(element(dtype), lanes, "0")
            return w.op(f"sub {of} {zero}, {x}") if code == "div" else zero
        return w.op(f"s{code} {of} {x}, {y}")
    if dtype.bits < 64:
        wide = vector("i32" if dtype.bits < 32 else "i64", lanes)
        a, b = w.op(f"sext {of} {x} to {wide}"), w.op(f"sext {of} {y} to {wide}")
        return w.op(f"trunc {wide} {w.op(f's{code} {wide} {a}, {b}')} to {of}")
    i1 = vector("i1", lanes)
    minus = w.op(f"icmp eq {of} {y}, {spread('i64', lanes, '-1')}")
    safe = w.op(f"select {i1} {minus}, {of} {spread('i64', lanes, '1')}, {of} {y}")
    quotient = w.op(f"s{code} {of} {x}, {safe}")
    if code == "rem":
        return quotient
    negated = w.op(f"sub {of} {spread('i64', lanes, '0')}, {x}")
    return w.op(f"select {i1} {minus}, {of} {negated}, {of} {quotient}")


def _binary(w: LLVMWriter, instruction: Instruction) -> str:
    x, y = instruction.arguments
    return binary(w, instruction.code, x.dtype, x.lanes, w.operand(x), w.operand(y))


def _unary(w: LLVMWriter, instruction: Instruction) -> str:
    (x,) = instruction.arguments
    dtype, lanes, code = x.dtype, x.lanes, instruction.code
    text = w.operand(x)
    if not dtype.is_float:
        return _integer_unary(w, code, dtype, lanes, text)
    wide = dt.float32 if is_short_float(dtype) else dtype
    of = vector(element(wide), lanes)
    text = widen(w, dtype, lanes, text)
    if code == "neg":
        made = w.op(f"fneg {of} {text}")
    else:
        name = f"llvm.{_FLOAT_UNARY[code]}.{mangled(element(wide), lanes)}"
        made = w.call(of, name, (of, text))
    return narrow(w, dtype, lanes, made)


def _integer_unary(w: LLVMWriter, code: str, dtype: DType, lanes: int, x: str) -> str:
    if dtype is dt.bool_ or code not in ("neg", "abs"):
        raise _reject(w, code, dtype)
    of = vector(element(dtype), lanes)
    if code == "neg":
        return w.op(f"sub {of} {spread(element(dtype), lanes, '0')}, {x}")
    if dtype.kind == "uint":
        return x
    name = f"llvm.abs.{mangled(element(dtype), lanes)}"
    return w.call(of, name, (of, x), ("i1", "false"))


def _fma(w: LLVMWriter, instruction: Instruction) -> str:
    x, y, z = instruction.arguments
    if not x.dtype.is_float:
        raise _reject(w, "fma", x.dtype)
    lanes, wide = x.lanes, dt.float32 if is_short_float(x.dtype) else x.dtype
    a, b, c = (widen(w, x.dtype, lanes, w.operand(v)) for v in (x, y, z))
    add = multiply_add if w.target.fma or not instruction.detail else _exact_multiply_add
    return narrow(w, x.dtype, lanes, add(w, wide, lanes, a, b, c))


def multiply_add(w: LLVMWriter, dtype: DType, lanes: int, x: str, y: str, z: str) -> str:
    """x * y + z; in two steps on targets without the instruction."""
    of = vector(element(dtype), lanes)
    if w.target.fma:
        return w.call(of, f"llvm.fma.{mangled(element(dtype), lanes)}", (of, x), (of, y), (of, z))
    return w.op(f"fadd {of} {w.op(f'fmul {of} {x}, {y}')}, {z}")


def _exact_multiply_add(w: LLVMWriter, dtype: DType, lanes: int, x: str, y: str, z: str) -> str:
    """x * y + z without the instruction: exact where the result has no more digits than the type.

    Products of float32 are exact in float64. In float64 the product's error comes of halves of the
    factors (Dekker, "A floating-point technique for extending the available precision", 1971), and
    is added last.
    """
    of = vector(element(dtype), lanes)
    if dtype is not dt.float64:
        wide = vector("double", lanes)
        a, b, c = (w.op(f"fpext {of} {v} to {wide}") for v in (x, y, z))
        total = w.op(f"fadd {wide} {w.op(f'fmul {wide} {a}, {b}')}, {c}")
        return w.op(f"fptrunc {wide} {total} to {of}")

    def op(code: str, a: str, b: str) -> str:
        return w.op(f"{code} {of} {a}, {b}")

    (x_high, x_low), (y_high, y_low) = _halves(w, lanes, x), _halves(w, lanes, y)
    product = op("fmul", x, y)
    lost = op("fsub", op("fmul", x_high, y_high), product)
    lost = op("fadd", lost, op("fmul", x_high, y_low))
    lost = op("fadd", lost, op("fmul", x_low, y_high))
    lost = op("fadd", lost, op("fmul", x_low, y_low))
    total = op("fadd", product, z)
    part = op("fsub", total, product)
    rest = op("fadd", op("fsub", product, op("fsub", total, part)), op("fsub", z, part))
    rest = op("fadd", rest, lost)
    # Where something overflows, the product is exact, or the total infinite or NaN as it is.
    known = w.op(f"fcmp ord {of} {rest}, {rest}")
    zero = spread("double", lanes, "0.0")
    rest = w.op(f"select {vector('i1', lanes)} {known}, {of} {rest}, {of} {zero}")
    made = op("fadd", total, rest)
    # 0 + -0 is 0 where the total is -0.
    none = w.op(f"fcmp oeq {of} {rest}, {zero}")
    return w.op(f"select {vector('i1', lanes)} {none}, {of} {total}, {of} {made}")


def _halves(w: LLVMWriter, lanes: int, x: str) -> tuple[str, str]:
    """float64 as a sum: its 26 leading digits, rounded, and the rest."""
    of, bits = vector("double", lanes), vector("i64", lanes)
    whole = w.op(f"bitcast {of} {x} to {bits}")
    rounded = w.op(f"add {bits} {whole}, {spread('i64', lanes, str(1 << 26))}")
    rounded = w.op(f"and {bits} {rounded}, {spread('i64', lanes, str(-(1 << 27)))}")
    high = w.op(f"bitcast {bits} {rounded} to {of}")
    return high, w.op(f"fsub {of} {x}, {high}")


def _compare(w: LLVMWriter, instruction: Instruction) -> str:
    x, y = instruction.arguments
    dtype, lanes, code = x.dtype, x.lanes, instruction.code
    a, b = w.operand(x), w.operand(y)
    if dtype.is_float:
        a, b = widen(w, dtype, lanes, a), widen(w, dtype, lanes, b)
        of = vector("float" if is_short_float(dtype) else element(dtype), lanes)
        return w.op(f"fcmp {_FLOAT_COMPARE[code]} {of} {a}, {b}")
    if y.literal is not None and not a.startswith("%") and dtype.is_integer and lanes > 1:
        of = element(dtype)
        b = splat(w, of, lanes, hidden(w, int(y.literal), of))
    if code in ("lt", "le"):
        code = ("s" if dtype.kind == "int" else "u") + code
    return w.op(f"icmp {code} {vector(element(dtype), lanes)} {a}, {b}")


def _select(w: LLVMWriter, instruction: Instruction) -> str:
    condition, x, y = instruction.arguments
    return w.op(f"select {w.typed(condition)}, {w.typed(x)}, {w.typed(y)}")


# -- lanes -------------------------------------------------------------------------------------


def hidden(w: LLVMWriter, number: int, of: str = "i64") -> str:
    """An integer that LLVM takes for unknown (an empty piece of assembly might change it).

    LLVM 22 makes wrong code of masked accesses, or stops, where it splits a vector whose mask is
    constant; this keeps it from seeing constants in masks.
    """
    found = w.op(f'call i64 asm "", "=r,0"(i64 {scalar_literal(number, dt.int64)})')
    return found if of == "i64" else w.op(f"trunc i64 {found} to {of}")


def splat(w: LLVMWriter, of: str, lanes: int, scalar: str) -> str:
    """A scalar in every lane."""
    vec = f"<{lanes} x {of}>"
    one = w.op(f"insertelement {vec} poison, {of} {scalar}, i64 0")
    return w.op(f"shufflevector {vec} {one}, {vec} poison, <{lanes} x i32> zeroinitializer")


def _splat(w: LLVMWriter, instruction: Instruction) -> str:
    (x,) = instruction.arguments
    return splat(w, element(x.dtype), result_type(w, instruction).lanes, w.operand(x))


def _iota(w: LLVMWriter, instruction: Instruction) -> str:
    result = result_type(w, instruction)
    if result.lanes == 1:
        return scalar_literal(0, result.dtype)
    return lane_literals(range(result.lanes), result.dtype)


def _first_lanes(w: LLVMWriter, instruction: Instruction) -> str:
    """Compare lane numbers with the count, in integers as wide as fit one register."""
    (count,) = instruction.arguments
    lanes = result_type(w, instruction).lanes
    text = w.operand(count) if count.literal is None else hidden(w, int(count.literal))
    if lanes == 1:
        return w.op(f"icmp sgt i64 {text}, 0")
    bits = min(32, max(8, 1 << (8 * w.target.vector_bytes // lanes).bit_length() - 1))
    if lanes > 127 and bits == 8:
        bits = 16
    of = f"i{bits}"
    most = w.call("i64", "llvm.smin.i64", ("i64", text), ("i64", str(lanes)))
    clamped = w.call("i64", "llvm.smax.i64", ("i64", most), ("i64", "0"))
    limit = splat(w, of, lanes, w.op(f"trunc i64 {clamped} to {of}"))
    numbers = lane_numbers(tuple(range(lanes)), of)
    return w.op(f"icmp slt <{lanes} x {of}> {numbers}, {limit}")


def pick(w: LLVMWriter, of: str, lanes: int, x: str, y: str, order: tuple[int, ...]) -> str:
    """`shufflevector`, also where operands or result are scalars."""
    if len(order) == 1 and lanes > 1 and 0 <= order[0] < lanes:
        return w.op(f"extractelement <{lanes} x {of}> {x}, i64 {order[0]}")
    if lanes == 1:
        x, y = (w.op(f"insertelement <1 x {of}> poison, {of} {v}, i64 0") for v in (x, y))
    vec = f"<{lanes} x {of}>"
    mask = f"<{len(order)} x i32> {lane_numbers(order)}"
    made = w.op(f"shufflevector {vec} {x}, {vec} {y}, {mask}")
    return made if len(order) > 1 else w.op(f"extractelement <1 x {of}> {made}, i64 0")


def _shuffle(w: LLVMWriter, instruction: Instruction) -> str:
    x, y = instruction.arguments
    order: tuple[int, ...] = instruction.detail
    if not all(-1 <= lane < 2 * x.lanes for lane in order):
        raise KernelError(f"{w.kernel}: shuffle of {x.type} by {order}")
    second = "poison" if x is y or max(order) < x.lanes else w.operand(y)
    if x is y:
        order = tuple(lane % x.lanes if lane >= 0 else lane for lane in order)
    return pick(w, element(x.dtype), x.lanes, w.operand(x), second, order)


def _lane(w: LLVMWriter, instruction: Instruction) -> int:
    lane: int = instruction.detail[0]
    if not 0 <= lane < instruction.arguments[0].lanes:
        raise KernelError(f"{w.kernel}: no lane {lane} in {instruction.arguments[0].type}")
    return lane


def _extract(w: LLVMWriter, instruction: Instruction) -> str:
    (x,) = instruction.arguments
    lane = _lane(w, instruction)
    return w.operand(x) if x.lanes == 1 else w.op(f"extractelement {w.typed(x)}, i64 {lane}")


def _insert(w: LLVMWriter, instruction: Instruction) -> str:
    x, scalar = instruction.arguments
    lane = _lane(w, instruction)
    if x.lanes == 1:
        return w.operand(scalar)
    return w.op(f"insertelement {w.typed(x)}, {w.typed(scalar)}, i64 {lane}")


def _reduce(w: LLVMWriter, instruction: Instruction) -> str:
    (x,) = instruction.arguments
    (code,) = instruction.detail
    lanes, of, text = x.lanes, element(x.dtype), w.operand(x)
    if lanes & (lanes - 1):
        raise KernelError(f"{w.kernel}: reduce of {x.type}, lanes are not a power of two")
    if x.dtype is dt.bool_ and code in _BOOL_BINARY:
        # As one integer, which processors move out of a mask at once.
        bits = w.op(f"bitcast <{lanes} x i1> {text} to i{lanes}")
        every = code in ("and", "min")
        return w.op(f"icmp {'eq' if every else 'ne'} i{lanes} {bits}, {'-1' if every else '0'}")
    while lanes > 1:
        half = lanes // 2
        low = pick(w, of, lanes, text, "poison", tuple(range(half)))
        high = pick(w, of, lanes, text, "poison", tuple(range(half, lanes)))
        text, lanes = binary(w, code, x.dtype, half, low, high), half
    return text


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(ARITHMETIC | BITWISE, _binary),
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(COMPARE, _compare),
    "fma": _fma,
    "select": _select,
    "cast": cast,
    "bitcast": bitcast,
    "splat": _splat,
    "iota": _iota,
    "first_lanes": _first_lanes,
    "shuffle": _shuffle,
    "extract": _extract,
    "insert": _insert,
    "reduce": _reduce,
}
