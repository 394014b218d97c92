"""Scalar expressions: what an elementwise op does to one element.

`Op.scalar` builds a small expression from which every elementwise kernel is generated (LLVM IR,
OpenCL C, CUDA C) and which `evaluate` interprets with NumPy, so that tests hold it to the oracle.
Values carry no element type of their own: an expression computes in the type of its inputs;
comparisons give truth values.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import DType, bfloat16, int32, int64, uint32, uint64
from treadle.ops import special

Number = bool | int | float


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """One element: an input (`code` "input"), a constant ("const"), or `code` applied to `args`."""

    code: str
    args: tuple[Scalar, ...] = ()
    value: Number = 0
    dtype: DType | None = None

    def __add__(self, other: Scalar | Number) -> Scalar:
        return call("add", self, other)

    def __radd__(self, other: Number) -> Scalar:
        return call("add", other, self)

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return call("sub", self, other)

    def __rsub__(self, other: Number) -> Scalar:
        return call("sub", other, self)

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return call("mul", self, other)

    def __rmul__(self, other: Number) -> Scalar:
        return call("mul", other, self)

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        return call("div", self, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return call("div", other, self)

    def __neg__(self) -> Scalar:
        return call("neg", self)

    def __lt__(self, other: Scalar | Number) -> Scalar:
        return call("lt", self, other)

    def __le__(self, other: Scalar | Number) -> Scalar:
        return call("le", self, other)

    def __gt__(self, other: Scalar | Number) -> Scalar:
        return call("lt", other, self)

    def __ge__(self, other: Scalar | Number) -> Scalar:
        return call("le", other, self)

    def equals(self, other: Scalar | Number) -> Scalar:
        """Return whether two elements are equal (`==` keeps its Python meaning)."""
        return call("eq", self, other)

    def __and__(self, other: Scalar) -> Scalar:
        return call("and", self, other)

    def __or__(self, other: Scalar) -> Scalar:
        return call("or", self, other)

    def __xor__(self, other: Scalar) -> Scalar:
        return call("xor", self, other)

    def __invert__(self) -> Scalar:
        return call("not", self)


def call(code: str, *args: Scalar | Number) -> Scalar:
    """An intrinsic of the table `INTRINSICS` applied to expressions and numbers."""
    if code not in INTRINSICS:
        raise KeyError(f"no scalar intrinsic is named {code!r}")
    return Scalar(code, tuple(a if isinstance(a, Scalar) else const(a) for a in args))


def const(value: Number) -> Scalar:
    """A literal, of the type of what it meets."""
    return Scalar("const", value=value)


def select(condition: Scalar, x: Scalar | Number, y: Scalar | Number) -> Scalar:
    """x where the condition holds, else y."""
    return call("select", condition, x, y)


def cast(x: Scalar, dtype: DType) -> Scalar:
    """x converted to `dtype`, as `Cast` defines it."""
    return Scalar("cast", (x,), dtype=dtype)


def maximum(x: Array, y: Array) -> Array:
    """The larger of x and y; NaN where either is, y where they are equal (zeros have signs)."""
    # NumPy gives its second operand where both are equal, but its first one of float16.
    return np.asarray(np.maximum(y, x) if x.dtype.char == "e" else np.maximum(x, y))


def minimum(x: Array, y: Array) -> Array:
    """The smaller of x and y; NaN where either is, y where they are equal (zeros have signs)."""
    return np.asarray(np.minimum(y, x) if x.dtype.char == "e" else np.minimum(x, y))


def _whole(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A rounding function that leaves integers as they are (older NumPy makes them floats)."""
    return lambda x: x if x.dtype.kind in "iu" else function(x)


def _round(x: Array) -> Array:
    whole = np.trunc(x)
    # x - whole is exact, unlike x + 0.5 just below a half.
    return np.asarray(whole + np.copysign(np.abs(x - whole) >= x.dtype.type(0.5), x))


def _clamp(x: Array, low: Array, high: Array) -> Array:
    return np.asarray(np.fmin(np.fmax(x, low), high))


def _mod(x: Array, y: Array) -> Array:
    return np.asarray(np.remainder(x, y) if x.dtype.kind in "iu" else np.fmod(x, y))


def power(x: Array, y: Array) -> Array:
    """NumPy's power; a negative power of an integer, which NumPy refuses, is cut off."""
    if x.dtype.kind != "i":
        return np.asarray(np.power(x, y))
    cut = np.where(np.abs(x) == 1, np.power(x, y & 1), x.dtype.type(0))
    return np.where(y < 0, cut, np.power(x, np.maximum(y, 0)))


def truncated(x: Array, dtype: DType) -> Array:
    """Floats as integers, truncated; what does not fit as x86 converts it, on every machine."""
    if x.dtype.itemsize == 2:
        x = x.astype(np.float32)  # ml_dtypes leaves what does not fit to the C compiler
    if not _X86:
        return fitting(x, dtype)
    # NumPy converts to uint32 as vectors in one way, and what is left over in another.
    return x.astype(np.int64).astype(np.uint32) if dtype is uint32 else x.astype(dtype.numpy)


def fitting(x: Array, dtype: DType) -> Array:
    """Compute `truncated` without a conversion that C leaves undefined."""
    if dtype is uint64:
        high = x >= 2.0**63
        part = fitting(np.where(high, x - x.dtype.type(2.0**63), x), int64)
        return np.where(high, part ^ np.int64(-(2**63)), part).astype(np.uint64)
    # Narrow types keep the low bits of an int32, uint32 those of an int64.
    wide = int64 if dtype in (int64, uint32) else int32
    limit = x.dtype.type(2.0 ** (wide.bits - 1))
    inside = np.where((x >= -limit) & (x < limit), x, -limit)
    return inside.astype(wide.numpy).astype(dtype.numpy)


_X86 = platform.machine().lower() in ("x86_64", "amd64")


# Rules that a code generator has to follow besides what the names say: an integer division or
# remainder by 0 is 0; `floor_div` rounds down; `mod` takes y's sign among integers and x's among
# floats; `pow` of integers wraps, and a negative power is cut off towards 0; a shift count outside
# [0, width) shifts everything out (`shr` leaves the sign); rounding leaves integers alone, and
# `round` takes halves away from 0; `min` and `max` give NaN where either operand is NaN and their
# second operand where both are equal; `clamp` gives its lower bound where its operand is NaN.
INTRINSICS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor_div": np.floor_divide,
    "mod": _mod,
    "neg": np.negative,
    "abs": np.abs,
    "min": minimum,
    "max": maximum,
    "pow": power,
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": special.erf,
    "floor": _whole(np.floor),
    "ceil": _whole(np.ceil),
    "trunc": _whole(np.trunc),
    "rint": _whole(np.rint),
    "round": _whole(_round),
    "clamp": _clamp,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "select": np.where,
}


def evaluate(expr: Scalar, inputs: Mapping[Scalar, Array]) -> Array:
    """Interpret an expression over whole arrays; bfloat16 is computed in float32 and rounded."""
    done: dict[Scalar, Any] = {}
    arrays = list(inputs.values())
    # A mask in front does not decide what constants are.
    like = next((x for x in arrays if x.dtype != bool), arrays[0])
    compute = np.dtype("float32") if like.dtype == bfloat16.numpy else like.dtype

    def walk(node: Scalar) -> Any:
        if node not in done:
            done[node] = _step(node, [walk(a) for a in node.args], inputs, compute)
        return done[node]

    with np.errstate(all="ignore"):
        return np.asarray(walk(expr))


def _step(node: Scalar, args: list[Any], inputs: Mapping[Scalar, Array], compute: Any) -> Any:
    if node.code == "input":
        x = inputs[node]
        return x.astype(compute) if x.dtype == bfloat16.numpy else x
    if node.code == "const":
        return np.asarray(node.value, dtype=bool if isinstance(node.value, bool) else compute)
    if node.code == "cast":
        if node.dtype is None:
            raise TypeError("a cast names its element type")
        if node.dtype.is_integer and args[0].dtype.kind == "f":
            return truncated(args[0], node.dtype)
        return args[0].astype(node.dtype.numpy)
    return INTRINSICS[node.code](*args)
