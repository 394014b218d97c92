"""Rewrite rules for arithmetic, each with the promise it keeps and an example it fires on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.graph.ir import Value, constant_of
from treadle.graph.rewrite import Build, Filled, Found, Level, P, Pattern, Rule
from treadle.ops.elementwise import Add, Cast, Div, Maximum, Minimum, Mul, Neg, Sub
from treadle.ops.logic import LogicalNot
from treadle.ops.movement import Broadcast
from treadle.ops.op import Op
from treadle.ops.quant import Saturate
from treadle.ops.select import Where
from treadle.ops.unary import Abs, Ceil, Exp, Floor, Log, Log1p, Relu, Round, RoundEven, Sign, Trunc

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int32", "uint8", "int64")
NUMBERS = (*FLOATS, *INTEGERS)


# -- ways to build a result --------------------------------------------------------------------


def keep(name: str) -> Build:
    """Replace by a captured value, where it has the type of the result."""

    def build(m: Found) -> Value | None:
        return m[name] if m[name].type == m.type else None

    return build


def use(op: Op, *names: str) -> Build:
    """Replace by an op on captured values."""

    def build(m: Found) -> Value | None:
        return m.apply(op, *(m[n] for n in names))

    return build


def only(kinds: tuple[str, ...], build: Build) -> Build:
    """Decline unless the result's element type is one of these."""

    def checked(m: Found) -> Any:
        return build(m) if m.type.dtype.name in kinds else None

    return checked


def fill(number: float) -> Build:
    """Replace by a constant repeated to the shape of the result."""

    def build(m: Found) -> Value | None:
        scalar = m.constant(number)
        return scalar if m.type.shape == () else m.apply(Broadcast(m.type.shape), scalar)

    return build


def commuting(op: type[Op], x: Pattern, y: Pattern) -> P:
    """A binary op with its inputs either way round."""
    return P(op, (x, y), commutes=True)


def _log_of_sum(m: Found) -> Value | None:
    """The logarithm of a sum of powers, without the powers, which may be infinite."""
    x, y = m["x"], m["y"]
    if x.type != m.type or y.type != m.type:
        return None
    apart = m.apply(Neg(), m.apply(Abs(), m.apply(Sub(), x, y)))
    return m.apply(Add(), m.apply(Maximum(), x, y), m.apply(Log1p(), m.apply(Exp(), apart)))


# -- identities --------------------------------------------------------------------------------

_ALL_INTEGERS = tuple(d.name for d in dt.INTEGERS)

IDENTITIES = (
    Rule(
        "x + -0 => x",
        commuting(Add, "x", Filled(-0.0)),
        keep("x"),
        example=lambda x: x + x.constant(-0.0),
        dtypes=FLOATS,
    ),
    Rule(
        "x + 0 => x, integers",
        commuting(Add, "x", Filled(0)),
        only(_ALL_INTEGERS, keep("x")),
        example=lambda x: x.constant(0) + x,
        dtypes=INTEGERS,
    ),
    Rule(
        "x - 0 => x",
        P(Sub, ("x", Filled(0.0))),
        keep("x"),
        example=lambda x: x - x.constant(0),
        dtypes=NUMBERS,
    ),
    Rule(
        "x * 1 => x",
        commuting(Mul, "x", Filled(1)),
        keep("x"),
        example=lambda x: x * x.constant(1),
        dtypes=NUMBERS,
    ),
    Rule(
        "x / 1 => x",
        P(Div, ("x", Filled(1))),
        keep("x"),
        example=lambda x: x / x.constant(1),
        dtypes=FLOATS,
    ),
    Rule(
        "x * 0 => 0, integers",
        commuting(Mul, "x", Filled(0)),
        only(_ALL_INTEGERS, fill(0)),
        example=lambda x: x * x.constant(0),
        dtypes=INTEGERS,
    ),
    Rule(
        "x - x => 0, integers",
        P(Sub, ("x", "x")),
        only(_ALL_INTEGERS, fill(0)),
        example=lambda x: x - x,
        dtypes=INTEGERS,
    ),
    Rule(
        "max(x, x) => x",
        P(Maximum, ("x", "x")),
        keep("x"),
        example=lambda x: Maximum()(x, x),
        dtypes=NUMBERS,
    ),
    Rule(
        "min(x, x) => x",
        P(Minimum, ("x", "x")),
        keep("x"),
        example=lambda x: Minimum()(x, x),
        dtypes=NUMBERS,
    ),
    Rule(
        "where(m, x, x) => x",
        P(Where, ("m", "x", "x")),
        keep("x"),
        example=lambda x, y: Where()(x < y, x, x),
        shapes=((2, 3), (2, 3)),
        dtypes=NUMBERS,
    ),
)


# -- signs -------------------------------------------------------------------------------------


def _sign_rule(
    name: str, pattern: P, build: Build, example: Callable[..., Any], level: Level = "exact"
) -> Rule:
    return Rule(name, pattern, build, level, example, ((2, 3), (3,)), NUMBERS)


SIGNS = (
    Rule(
        "neg(neg(x)) => x",
        P(Neg, (P(Neg, ("x",)),)),
        keep("x"),
        example=lambda x: Neg()(Neg()(x)),
        dtypes=NUMBERS,
    ),
    _sign_rule(
        "x + neg(y) => x - y",
        commuting(Add, "x", P(Neg, ("y",))),
        use(Sub(), "x", "y"),
        lambda x, y: -y + x,
    ),
    _sign_rule(
        "x - neg(y) => x + y",
        P(Sub, ("x", P(Neg, ("y",)))),
        use(Add(), "x", "y"),
        lambda x, y: x - -y,
    ),
    _sign_rule(
        "neg(x) * neg(y) => x * y",
        P(Mul, (P(Neg, ("x",)), P(Neg, ("y",)))),
        use(Mul(), "x", "y"),
        lambda x, y: -x * -y,
    ),
    Rule(
        "neg(x) / neg(y) => x / y",
        P(Div, (P(Neg, ("x",)), P(Neg, ("y",)))),
        use(Div(), "x", "y"),
        example=lambda x, y: -x / -y,
        shapes=((2, 3), (3,)),
        dtypes=FLOATS,
    ),
    Rule(
        "x * -1 => neg(x)",
        commuting(Mul, "x", Filled(-1)),
        lambda m: m.apply(Neg(), m["x"]) if m["x"].type == m.type else None,
        example=lambda x: x * x.constant(-1),
        dtypes=(*FLOATS, "int32", "int64"),
    ),
    Rule(
        "abs(neg(x)) => abs(x)",
        P(Abs, (P(Neg, ("x",)),)),
        use(Abs(), "x"),
        example=lambda x: Abs()(-x),
        dtypes=(*FLOATS, "int32", "int64"),
    ),
    _sign_rule(
        "neg(x - y) => y - x",
        P(Neg, (P(Sub, ("x", "y")),)),
        use(Sub(), "y", "x"),
        lambda x, y: -(x - y),
        "fast",  # Of equal numbers it is 0 in place of -0, so that quotients by it change sign.
    ),
    Rule(
        "x + 0 => x",
        commuting(Add, "x", Filled(0.0)),
        keep("x"),
        "fast",  # -0 + 0 is 0.
        example=lambda x: x + x.constant(0),
        dtypes=FLOATS,
    ),
    Rule(
        "saturate(x + 0) => saturate(x)",  # Integers have one zero.
        P(Saturate, (commuting(Add, "x", Filled(0.0)),)),
        lambda m: m.apply(m.root.op, m["x"]) if m["x"].type.shape == m.type.shape else None,
        example=lambda x: Saturate()(x + x.constant(0)),
        dtypes=FLOATS,
    ),
    Rule(
        "x - x => 0",
        P(Sub, ("x", "x")),
        fill(0),
        "fast",  # Infinity minus itself is NaN, which people look for.
        example=lambda x: x - x,
        dtypes=FLOATS,
    ),
    Rule(
        "x / x => 1",
        P(Div, ("x", "x")),
        fill(1),
        "fast",
        example=lambda x: (lambda y: y / y)(Abs()(x) + x.constant(1)),
        dtypes=FLOATS,
    ),
    Rule(
        "log(exp(x) + exp(y)) => max(x, y) + log1p(exp(-|x - y|))",
        P(Log, (P(Add, (P(Exp, ("x",)), P(Exp, ("y",)))),)),
        only(("float32", "float64"), _log_of_sum),
        "fast",
        example=lambda x: Log()(Exp()(x) + Exp()(Neg()(x))),
        dtypes=("float32", "float64"),
    ),
    Rule(
        "x * 0 => 0",
        commuting(Mul, "x", Filled(0.0)),
        fill(0),
        "fast",
        example=lambda x: x * x.constant(0),
        dtypes=FLOATS,
    ),
)


# -- functions that change nothing the second time ---------------------------------------------


def _twice(op: Op, dtypes: tuple[str, ...] = NUMBERS) -> Rule:
    cls, name = type(op), op.name
    return Rule(
        f"{name}({name}(x)) => {name}(x)",
        P(cls, (P(cls, ("x",)),)),
        use(op, "x"),
        example=lambda x: op(op(x)),
        dtypes=dtypes,
    )


REPEATED = (
    *(_twice(op) for op in (Abs(), Relu(), Sign())),
    *(_twice(op, FLOATS) for op in (Floor(), Ceil(), Trunc(), Round(), RoundEven())),
    Rule(
        "logical_not(logical_not(x)) => x",
        P(LogicalNot, (P(LogicalNot, ("x",)),)),
        keep("x"),
        example=lambda x: LogicalNot()(LogicalNot()(x)),
        dtypes=("bool",),
    ),
)


# -- division by powers of two -----------------------------------------------------------------


def _reciprocal(m: Found) -> Value | None:
    """Multiply instead, where 1 / y is exact and neither it nor y is subnormal."""
    data = constant_of(m["y"])
    if data is None or not data.is_present or data.array.size != 1:
        return None
    y = float(data.array.reshape(-1)[0])
    if y == 0 or not math.isfinite(y) or abs(math.frexp(y)[0]) != 0.5:
        return None
    # 2**-100 to 2**100 is normal in float32, bfloat16 and float64; 2**-14 to 2**14 in float16.
    if abs(math.frexp(y)[1]) > (13 if m.type.dtype is dt.float16 else 100):
        return None
    inverse = np.asarray(1 / y).astype(data.dtype.numpy).reshape(data.shape)
    return m.apply(Mul(), m["x"], m.literal(inverse))


# -- casts -------------------------------------------------------------------------------------

_MANTISSA = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
_EXPONENT = {"bfloat16": 8, "float16": 5, "float32": 8, "float64": 11}


def holds(narrow: DType, wide: DType) -> bool:
    """Return whether every value of `narrow` is a value of `wide`."""
    if narrow is wide or narrow is dt.bool_:
        return wide.kind != "complex"
    if narrow.is_integer and wide.is_integer:
        bits = wide.bits - (wide.kind == "int") - (narrow.bits - (narrow.kind == "int"))
        return bits >= 0 and not (narrow.kind == "int" and wide.kind == "uint")
    if narrow.is_integer and wide.is_float:
        digits = narrow.bits - (narrow.kind == "int")
        return _MANTISSA[wide.name] >= digits and 2 ** (_EXPONENT[wide.name] - 1) > digits
    if narrow.is_float and wide.is_float:
        wider = _MANTISSA[wide.name] >= _MANTISSA[narrow.name]
        return wider and _EXPONENT[wide.name] >= _EXPONENT[narrow.name]
    return False


def _skip_middle(m: Found) -> Value | None:
    """Drop the middle type of two casts, where it holds every value of the first."""
    source, middle = m["x"].type.dtype, m.attribute("inner", "dtype")
    final = m.type.dtype
    # What does not fit an integer is converted as the machine does, for each source differently.
    unspecified = source.is_float and final.is_integer
    if unspecified or not holds(source, middle):
        return None
    return m["x"] if m["x"].type == m.type else m.apply(Cast(final), m["x"])


CASTS = (
    Rule(
        "cast(x) to its own type => x",
        P(Cast, ("x",)),
        keep("x"),
        example=lambda x: Cast(x.type.dtype)(x),
        dtypes=NUMBERS,
    ),
    Rule(
        "cast(cast(x)) => cast(x), where the middle type holds every x",
        P(Cast, (P(Cast, ("x",), "inner"),)),
        _skip_middle,
        example=lambda x: Cast(dt.bfloat16)(Cast(dt.float64)(x)),
        dtypes=("float32", "float16", "int32", "uint8", "bool"),
    ),
)

DIVISION = (
    Rule(
        "x / 2**n => x * 2**-n",
        P(Div, ("x", "y")),
        _reciprocal,
        example=lambda x: x / x.constant(-8),
        dtypes=FLOATS,
    ),
)

ARITHMETIC = (*IDENTITIES, *SIGNS, *REPEATED, *DIVISION, *CASTS)
