"""Kernels as OpenCL C 1.2: vectors of the language, its builtins, two address spaces.

Vectors of 2, 4, 8 or 16 lanes are the language's own and are computed with as a whole; others are
structs, as in C11. A bool of a vector is a byte, 0 or 1, as in memory; the language's masks appear
only where a comparison is made or a choice taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from treadle.backends.codegen.kernel.c import c_source
from treadle.backends.codegen.kernel.c_dialect import Dialect
from treadle.backends.codegen.kernel.c_instructions import HANDLERS, result_of
from treadle.backends.codegen.kernel.c_printer import Handler, Printer
from treadle.backends.codegen.kernel.c_values import arithmetic, c_type, is_short, narrow, widen
from treadle.backends.codegen.kernel.ir import (
    ARITHMETIC,
    BITWISE,
    COMPARE,
    UNARY,
    Instruction,
    KernelModule,
)
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError, Type
from treadle.backends.codegen.target import Target
from treadle.backends.program import ALIGNMENT
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_NOTE = "// scratch"
_NOTES = re.compile(rf"^{_NOTE} (\w+) (\d+)$", re.MULTILINE)
WIDTHS = (2, 4, 8, 16)
"""Lanes of the language's vectors, apart from 3."""

_SCALARS = """\
#pragma OPENCL FP_CONTRACT OFF
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
#define INT64_C(x) x##L
#define UINT64_C(x) x##UL
#define fmodf fmod
#define copysignf copysign
#define fabsf fabs
#define sqrtf sqrt
#define floorf floor
#define ceilf ceil
#define truncf trunc
#define rintf rint
#define fmaf fma
"""
_SHORTS = """
/* 16-bit floats travel as their bits and compute as float. */
#define SHORT_FLOATS(n) \\
static float##n __attribute__((overloadable)) from_bfloat16(ushort##n h) { \\
  return as_float##n(convert_uint##n(h) << 16); } \\
static ushort##n __attribute__((overloadable)) to_bfloat16(float##n x) { \\
  uint##n u = as_uint##n(x), even = (u + 0x7fff + (u >> 16 & 1)) >> 16; \\
  return convert_ushort##n(select(even, u >> 16 | 0x40, isnan(x) CONDITION)); } \\
static float##n __attribute__((overloadable)) from_float16(ushort##n h) { \\
  float##n scaled = as_float##n(convert_uint##n(h & (ushort)0x7fff) << 13) * 0x1p112f; \\
  uint##n u = as_uint##n(scaled); \\
  u = select(u, u | 0x7f800000u, (scaled >= 65536.0f) CONDITION); \\
  return as_float##n(u | convert_uint##n(h & (ushort)0x8000) << 16); } \\
static ushort##n __attribute__((overloadable)) to_float16(float##n x) { \\
  uint##n u = as_uint##n(x), m = u & 0x7fffffff; \\
  uint##n r = (m - (112u << 23) + 0xfff + (m >> 13 & 1)) >> 13; \\
  r = select(r, as_uint##n(as_float##n(m) + 0.5f) - 0x3f000000u, (m < 113u << 23) CONDITION); \\
  r = select(r, (uint##n)(0x7c00u), (m >= 143u << 23) CONDITION); \\
  r = select(r, (uint##n)(0x7e00u), (m > 0x7f800000u) CONDITION); \\
  return convert_ushort##n(r | (u >> 16 & 0x8000)); }
#define CONDITION
SHORT_FLOATS()
SHORT_FLOATS(2)
SHORT_FLOATS(4)
SHORT_FLOATS(8)
SHORT_FLOATS(16)
"""


class OpenCL(Dialect):
    """OpenCL C; a kernel takes a buffer and an offset in bytes for every pointer.

    Pointers are to global memory all of them, so that kernels may choose between memory of their
    own and results. On processors memory is one, and private arrays are reached by such pointers.
    On other devices memory of a call is a piece of scratch memory that the launch passes, which a
    note before the kernel asks for (`scratch_bytes`).

    Args:
        single: for processors: every work group has one item, which the compiler is told.
    """

    name = "OpenCL C"
    prelude = _SCALARS + _SHORTS
    function = "static void"

    def __init__(self, single: bool) -> None:
        self.single = single
        if single:
            # PoCL makes three functions of every kernel, and would compile the body for each.
            self.function = "static __attribute__((noinline)) void"
        self.carried = ("", "") if single else ("global uchar *scratch", "scratch")
        self._scratch = 0

    def pointer(self, dtype: DType) -> str:
        return f"global {c_type(dtype)} *"

    def vector(self, type_: Type) -> str:
        return named(type_) if self.has(type_) else super().vector(type_)

    def definition(self, type_: Type) -> str:
        return "" if self.has(type_) else super().definition(type_)

    def has(self, type_: Type) -> bool:
        return not type_.pointer and type_.lanes in WIDTHS

    def lane(self, vector: str, lane: str, type_: Type) -> str:
        if not self.has(type_):
            return super().lane(vector, lane, type_)
        if not lane.isdecimal():
            raise KernelError(f"lane {lane} of {type_}, which has to be a number")
        return f"{vector}.s{int(lane):x}"

    def entry(self, symbol: str, body: str, parameters: Sequence[InstructionOperand]) -> list[str]:
        taken, passed = [], []
        for i, parameter in enumerate(parameters):
            if parameter.type.pointer:
                taken.append(f"global uchar *b{i}, long a{i}")
                passed.append(f"({self.pointer(parameter.dtype)})(b{i} + a{i})")
            else:
                taken.append(f"long a{i}")
                passed.append(f"a{i}")
        lines, kind = [], "kernel __attribute__((reqd_work_group_size(1, 1, 1)))"
        if not self.single:
            lines, kind = [f"{_NOTE} {symbol} {self._scratch}"], "kernel"
            taken = ["global uchar *scratch", "long slab", *taken]
            passed = ["scratch + g * slab", *passed]
            self._scratch = 0
        return [
            *lines,
            f"{kind} void {symbol}({', '.join((*taken, 'long items'))}) {{",
            "  long g = get_global_id(0), n = get_global_size(0);",
            f"  {body}({', '.join((*passed, 'items * g / n', 'items * (g + 1) / n'))});",
            "}",
            "",
        ]

    def stack(self, dtype: DType, declared: str, name: str, count: int) -> list[str]:
        of = self.pointer(dtype)
        if not self.single:
            place, nbytes = f"scratch + {self._scratch}", count * dtype.itemsize
            self._scratch += -(-nbytes // ALIGNMENT) * ALIGNMENT
            return [f"{declared} = ({of})({place});"]
        own = f"{name}_memory"
        return [
            f"{c_type(dtype)} {own}[{count}] __attribute__((aligned({ALIGNMENT})));",
            f"{declared} = ({of})(ulong){own};",
        ]

    def load(self, name: str, type_: Type, place: str) -> str:
        if type_.lanes == 1:
            return f"{name} = *({place});"
        if self.has(type_):
            return f"{name} = vload{type_.lanes}(0, {place});"
        return f"for (int i = 0; i < {type_.lanes}; i++) {name}.v[i] = ({place})[i];"

    def bitcast(self, name: str, type_: Type, value: str, source: Type) -> str:
        if (self.has(type_) or type_.lanes == 1) and (self.has(source) or source.lanes == 1):
            return f"{name} = as_{named(type_)}({value});"
        of, to = (c_type(t.dtype) if t.lanes == 1 else self.vector(t) for t in (source, type_))
        return f"{{ union {{ {of} x; {to} y; }} both; both.x = {value}; {name} = both.y; }}"

    def copy(self, target: str, source: str, count: str, dtype: DType) -> str:
        return f"for (long k = 0; k < {count}; k++) ({target})[k] = ({source})[k];"

    def zero(self, target: str, count: str, dtype: DType) -> str:
        return f"for (long k = 0; k < {count}; k++) ({target})[k] = 0;"


_ELEMENTS: dict[DType, str] = {
    dt.bool_: "uchar",
    dt.float16: "ushort",
    dt.bfloat16: "ushort",
    dt.float32: "float",
    dt.float64: "double",
}
_INTEGERS = {1: "char", 2: "short", 4: "int", 8: "long"}


def named(type_: Type) -> str:
    """The language's own name of a type, which its builtins are named after."""
    dtype = type_.dtype
    if dtype.is_integer:
        name = ("u" if dtype.kind == "uint" else "") + _INTEGERS[dtype.itemsize]
    else:
        name = _ELEMENTS[dtype]
    return name + (str(type_.lanes) if type_.lanes > 1 else "")


# -- vectors as a whole ------------------------------------------------------------------------

_FLOAT = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}"}
_FLOAT |= {"rem": "fmod({0}, {1})", "copysign": "copysign({0}, {1})", "neg": "-{0}"}
_FLOAT |= {"abs": "fabs({0})"} | {
    c: f"{c}({{0}})" for c in ("sqrt", "floor", "ceil", "trunc", "rint")
}
_ORDERED = {"min": "{0} < {1} ? {0} : {1}", "max": "{0} > {1} ? {0} : {1}"}
# Integers wrap, which the language promises of unsigned ones only.
_INTEGER = {
    "add": "as_{t}(as_{u}({0}) + as_{u}({1}))",
    "sub": "as_{t}(as_{u}({0}) - as_{u}({1}))",
    "mul": "as_{t}(as_{u}({0}) * as_{u}({1}))",
    "neg": "as_{t}(-as_{u}({0}))",
    "shl": "as_{t}(as_{u}({0}) << as_{u}({1}))",
    "shr": "{0} >> {1}",
}
_BITS = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}"}
_BOOL = _BITS | {"min": _BITS["and"], "max": _BITS["or"]}
_COMPARE = {"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}"}


def _template(code: str, dtype: DType) -> str | None:
    """An instruction on vectors, where there is an expression for it."""
    if dtype is dt.bool_:
        return _BOOL.get(code)
    if dtype.is_float:
        return (_FLOAT | _ORDERED).get(code)
    return (_INTEGER | _BITS | _ORDERED).get(code)


def _unsigned(type_: Type) -> str:
    return named(type_) if type_.dtype.kind == "uint" else "u" + named(type_)


def _integers(dtype: DType, lanes: int) -> str:
    """Return the type that comparing vectors of such elements gives: -1 where it holds, else 0."""
    size = 4 if is_short(dtype) else dtype.itemsize
    return f"{_INTEGERS[size]}{lanes}"


def _wide(p: Printer, value: InstructionOperand) -> str:
    return widen(value.dtype, p.whole(value))


def _define(p: Printer, result: InstructionOperand, text: str) -> None:
    p.line(f"{p.declare(result)} = {text};")


def _arithmetic(p: Printer, instruction: Instruction) -> bool:
    result = result_of(instruction)
    template = _template(instruction.code, result.dtype)
    if template is None:
        return False
    args = [_wide(p, a) for a in instruction.arguments]
    text = template.format(*args, t=named(result.type), u=_unsigned(result.type))
    _define(p, result, narrow(result.dtype, text))
    return True


def _truth(mask: str, integers: str) -> str:
    """Return a comparison's result as bools; `integers` is its type."""
    lanes = integers.lstrip("abcdefghijklmnopqrstuvwxyz")
    return f"convert_uchar{lanes}(({mask}) & ({integers})(1))"


def _compare(p: Printer, instruction: Instruction) -> bool:
    result = result_of(instruction)
    text = _COMPARE[instruction.code].format(*(_wide(p, a) for a in instruction.arguments))
    _define(p, result, _truth(text, _integers(instruction.arguments[0].dtype, result.lanes)))
    return True


def _mask(p: Printer, condition: InstructionOperand, dtype: DType) -> str:
    """A bool as what `?:` chooses by between vectors of elements as they are held."""
    of = f"{_INTEGERS[dtype.itemsize]}{condition.lanes}"
    return f"(convert_{of}({p.whole(condition)}) != ({of})(0))"


def _select(p: Printer, instruction: Instruction) -> bool:
    condition, x, y = instruction.arguments
    mask = _mask(p, condition, x.dtype)
    _define(p, result_of(instruction), f"{mask} ? {p.whole(x)} : {p.whole(y)}")
    return True


def _fma(p: Printer, instruction: Instruction) -> bool:
    result = result_of(instruction)
    x, y, z = (_wide(p, a) for a in instruction.arguments)
    text = f"fma({x}, {y}, {z})" if p.fused or instruction.detail else f"{x} * {y} + {z}"
    _define(p, result, narrow(result.dtype, text))
    return True


def _cast(p: Printer, instruction: Instruction) -> bool:
    (x,) = instruction.arguments
    result, text = result_of(instruction), _wide(p, x)
    to, lanes = result.dtype, result.lanes
    source = dt.float32 if is_short(x.dtype) else x.dtype
    if to is dt.bool_:
        of = "float" if is_short(x.dtype) else named(Type(source))
        text = _truth(f"{text} != ({of}{lanes})(0)", _integers(source, lanes))
    elif is_short(to):
        text = narrow(to, text if source is dt.float32 else f"convert_float{lanes}({text})")
    elif source.is_float and to.is_integer and to.bits < 32:
        text = f"convert_{named(result.type)}(convert_int{lanes}({text}))"
    else:
        text = f"convert_{named(result.type)}({text})"
    _define(p, result, text)
    return True


def _splat(p: Printer, instruction: Instruction) -> bool:
    result = result_of(instruction)
    _define(p, result, f"({p.type(result.type)})({p.lane(instruction.arguments[0])})")
    return True


def _lanes(type_: Type, texts: Iterable[str]) -> str:
    return f"({named(type_)})({', '.join(texts)})"


def _iota(p: Printer, instruction: Instruction) -> bool:
    result = result_of(instruction)
    if is_short(result.dtype):
        return False
    _define(p, result, _lanes(result.type, map(str, range(result.lanes))))
    return True


def _first_lanes(p: Printer, instruction: Instruction) -> bool:
    result = result_of(instruction)
    lanes = result.lanes
    numbers = _lanes(Type(dt.int32, lanes), map(str, range(lanes)))
    count = f"(int{lanes})((int)clamp({p.lane(instruction.arguments[0])}, 0L, {lanes}L))"
    _define(p, result, _truth(f"{numbers} < {count}", f"int{lanes}"))
    return True


def _shuffle(p: Printer, instruction: Instruction) -> bool:
    x, y = instruction.arguments
    result, order = result_of(instruction), instruction.detail
    if not all(-1 <= lane < 2 * x.lanes for lane in order):
        raise KernelError(f"shuffle of {x.type} by {order}")
    lanes = [max(lane, 0) for lane in order]
    texts = [p.lane(*((x, str(k)) if k < x.lanes else (y, str(k - x.lanes)))) for k in lanes]
    _define(p, result, _lanes(result.type, texts))
    return True


def _dot(p: Printer, instruction: Instruction) -> bool:
    """Products of integers, which wrap; other kinds lane by lane."""
    total, x, y = instruction.arguments
    lanes = total.lanes
    many = x.lanes // max(lanes, 1)
    if total.dtype is not dt.int32 or lanes == 1 or x.lanes != y.lanes:
        return False
    if (x.dtype, y.dtype, many) not in _PRODUCTS:
        return False
    products = []
    for first in range(many):
        picked = "".join(f"{k:x}" for k in range(first, x.lanes, many))
        pair = [f"convert_int{lanes}({p.whole(v)}.s{picked})" for v in (x, y)]
        products.append(f"as_uint{lanes}({pair[0]} * {pair[1]})")
    text = " + ".join((f"as_uint{lanes}({p.whole(total)})", *products))
    _define(p, result_of(instruction), f"as_int{lanes}({text})")
    return True


_PRODUCTS = (
    (dt.uint8, dt.int8, 4),
    (dt.int8, dt.int8, 4),
    (dt.int16, dt.int16, 2),
)
"""Integers that a dot multiplies, and how many pairs of them each sum has."""


def _lookup(p: Printer, instruction: Instruction) -> bool:
    (x,) = instruction.arguments
    entries = ", ".join(map(str, instruction.detail))
    _define(p, result_of(instruction), f"shuffle((uchar16)({entries}), {p.whole(x)})")
    return True


def _reduce(p: Printer, instruction: Instruction) -> bool:
    (x,) = instruction.arguments
    result, code = result_of(instruction), instruction.detail[0]
    template = _template(code, x.dtype)
    if template is None or is_short(x.dtype):
        return False
    text = p.whole(x)
    lanes = x.lanes
    while lanes > 1:
        lanes //= 2
        half = Type(x.dtype, lanes)
        name = p.fresh()
        whole = text if text.isidentifier() else f"({text})"
        pair = [f"{whole}.{part}" for part in ("lo", "hi")]
        if lanes > 1:
            both = template.format(*pair, t=named(half), u=_unsigned(half))
        else:
            both = arithmetic(code, x.dtype, pair)
        p.line(f"{named(half)} {name} = {both};")
        text = name
    _define(p, result, text)
    return True


def _load(p: Printer, instruction: Instruction) -> bool:
    pointer, index, *mask = instruction.arguments
    if not mask:
        return False
    result = result_of(instruction)
    of, lanes, scalar = p.type(result.type), result.lanes, c_type(result.dtype)
    name = f"load_{named(result.type)}"
    picked = ", ".join(f"m.s{k:x} ? p[{k}] : 0" for k in range(lanes))
    p.unit.vectors[name] = (
        f"static {of} {name}(global {scalar} *p, uchar{lanes} m) {{\n  return ({of})({picked});\n}}"
    )
    place = f"{p.lane(pointer)} + {p.lane(index)}"
    _define(p, result, f"{name}({place}, {p.whole(mask[0])})")
    return True


def _store(p: Printer, instruction: Instruction) -> bool:
    pointer, index, value, *mask = instruction.arguments
    place, lanes = f"{p.lane(pointer)} + {p.lane(index)}", value.lanes
    if not mask:
        p.line(f"vstore{lanes}({p.whole(value)}, 0, {place});")
        return True
    name = f"store_{named(value.type)}"
    kept = " ".join(f"if (m.s{k:x}) p[{k}] = x.s{k:x};" for k in range(lanes))
    p.unit.vectors[name] = (
        f"static void {name}(global {c_type(value.dtype)} *p, {p.type(value.type)} x, "
        f"uchar{lanes} m) {{\n  {kept}\n}}"
    )
    p.line(f"{name}({place}, {p.whole(value)}, {p.whole(mask[0])});")
    return True


Native = Callable[[Printer, Instruction], bool]
"""Prints an instruction on vectors of the language; false where there is no expression for it."""

_NATIVE: dict[str, Native] = {
    **dict.fromkeys(ARITHMETIC | BITWISE | UNARY, _arithmetic),
    **dict.fromkeys(COMPARE, _compare),
    "fma": _fma,
    "select": _select,
    "cast": _cast,
    "splat": _splat,
    "iota": _iota,
    "first_lanes": _first_lanes,
    "shuffle": _shuffle,
    "dot": _dot,
    "lookup": _lookup,
    "reduce": _reduce,
    "load": _load,
    "store": _store,
}


def _either(native: Native, lanewise: Handler) -> Handler:
    """The vector as a whole where all are of the language, else lane by lane."""

    def handler(p: Printer, instruction: Instruction) -> None:
        values = [v for v in (instruction.result, *instruction.arguments) if v is not None]
        vectors = [v.type for v in values if v.lanes > 1]
        if not vectors or not all(map(p.dialect.has, vectors)) or not native(p, instruction):
            lanewise(p, instruction)

    return handler


VECTORS: dict[str, Handler] = HANDLERS | {c: _either(f, HANDLERS[c]) for c, f in _NATIVE.items()}
"""Handlers for `OpenCL`."""


def opencl_source(kernels: Sequence[KernelModule], target: Target, *, single: bool) -> str:
    """An OpenCL program with a kernel for each of `kernels`; see `OpenCL`.

    Raises:
        KernelError: a kernel is not of the language, or cannot be said in this one.
    """
    return c_source(kernels, target, OpenCL(single), VECTORS)


def scratch_bytes(source: str) -> Mapping[str, int]:
    """Bytes of scratch memory that every item of a launch needs, by kernel, where any does."""
    return {symbol: int(nbytes) for symbol, nbytes in _NOTES.findall(source) if int(nbytes)}
