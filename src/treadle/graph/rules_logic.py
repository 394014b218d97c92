"""Rewrite rules for truth values, comparisons, choices, powers and products with numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.graph.algebra import FLOATS, INTEGERS, NUMBERS, fill, keep, only, use
from treadle.graph.ir import Value, constant_of
from treadle.graph.rewrite import Build, Filled, Found, Level, P, Rule
from treadle.ops.elementwise import Add, Div, Mul, Neg, Pow
from treadle.ops.logic import (
    BitAnd,
    BitOr,
    BitXor,
    Equal,
    Less,
    LessEqual,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    LogicalXor,
    NotEqual,
)
from treadle.ops.movement import Broadcast
from treadle.ops.op import Op
from treadle.ops.select import Clip, Where
from treadle.ops.softmax import LogSoftmax, Softmax
from treadle.ops.unary import Abs, Exp, Log, Reciprocal, Rsqrt, Sqrt, Square

_ALL_INTEGERS = frozenset(d.name for d in dt.INTEGERS)


def _rule(
    name: str,
    pattern: P,
    build: Build,
    example: Callable[..., Any],
    dtypes: tuple[str, ...],
    level: Level = "exact",
    count: int = 1,
) -> Rule:
    return Rule(name, pattern, build, level, example, ((2, 3),) * count, dtypes)


# -- truth values ------------------------------------------------------------------------------


def _same_twice(op: Op, dtypes: tuple[str, ...]) -> Rule:
    name = f"{op.name}(x, x) => x"
    return _rule(name, P(type(op), ("x", "x")), keep("x"), lambda x: op(x, x), dtypes)


def _nothing_left(op: Op, dtypes: tuple[str, ...]) -> Rule:
    name = f"{op.name}(x, x) => 0"
    return _rule(name, P(type(op), ("x", "x")), fill(0), lambda x: op(x, x), dtypes)


def _with_constant(op: Op, value: bool, stays: bool) -> Rule:
    word = str(value).lower()
    result = "x" if stays else word
    return _rule(
        f"{op.name}(x, {word}) => {result}",
        P(type(op), ("x", Filled(value)), commutes=True),
        keep("x") if stays else fill(value),
        lambda x: op(x, x.constant(value)),
        ("bool",),
    )


def _integers(build: Build) -> Build:
    """Restrict a rule to integer operands: NaN compares unlike any number."""

    def checked(m: Found) -> Any:
        return build(m) if m["x"].type.dtype.name in _ALL_INTEGERS else None

    return checked


def _self_compared(op: Op, value: bool, dtypes: tuple[str, ...]) -> Rule:
    build = fill(value) if dtypes is NUMBERS else _integers(fill(value))
    limit = "" if dtypes is NUMBERS else ", integers"
    return _rule(
        f"{op.name}(x, x) => {str(value).lower()}{limit}",
        P(type(op), ("x", "x")),
        build,
        lambda x: op(x, x),
        dtypes,
    )


def _denied(op: Op, opposite: Op, exchanged: bool) -> Rule:
    order = ("y", "x") if exchanged else ("x", "y")
    build = use(opposite, *order)
    exact = isinstance(op, Equal | NotEqual)
    limit = "" if exact else ", integers"
    shown = ", ".join(order)
    return _rule(
        f"not {op.name}(x, y) => {opposite.name}({shown}){limit}",
        P(LogicalNot, (P(type(op), ("x", "y")),)),
        build if exact else _integers(build),
        lambda x, y: LogicalNot()(op(x, y)),
        NUMBERS if exact else INTEGERS,
        count=2,
    )


LOGIC = (
    *(_same_twice(op, ("bool",)) for op in (LogicalAnd(), LogicalOr())),
    *(_same_twice(op, INTEGERS) for op in (BitAnd(), BitOr())),
    _nothing_left(LogicalXor(), ("bool",)),
    _nothing_left(BitXor(), INTEGERS),
    _with_constant(LogicalAnd(), True, True),
    _with_constant(LogicalAnd(), False, False),
    _with_constant(LogicalOr(), False, True),
    _with_constant(LogicalOr(), True, False),
    _self_compared(Less(), False, NUMBERS),
    _self_compared(LessEqual(), True, INTEGERS),
    _self_compared(Equal(), True, INTEGERS),
    _denied(Equal(), NotEqual(), False),
    _denied(NotEqual(), Equal(), False),
    _denied(Less(), LessEqual(), True),
    _denied(LessEqual(), Less(), True),
)


# -- choices -----------------------------------------------------------------------------------


def _chosen(name: str) -> Build:
    def build(m: Found) -> Value | None:
        x = m[name]
        return x if x.type == m.type else m.apply(Broadcast(m.type.shape), x)

    return build


def _inner_choice(kept: str, other: str) -> Build:
    """One of two choices by the same mask, where what is dropped did not widen the result."""

    def build(m: Found) -> Value | None:
        made = m.apply(Where(), m["m"], m[kept], m[other])
        return made if made.type == m.type else None

    return build


def _chosen_twice(first: bool) -> Callable[..., Any]:
    def example(x: Any, y: Any, z: Any) -> Any:
        mask = x < y
        return (
            Where()(mask, Where()(mask, x, y), z)
            if first
            else Where()(mask, x, Where()(mask, y, z))
        )

    return example


CHOICES = (
    _rule(
        "where(true, x, y) => x",
        P(Where, (Filled(True), "x", "y")),
        _chosen("x"),
        lambda x, y: Where()((x < y).constant(True), x, y),
        NUMBERS,
        count=2,
    ),
    _rule(
        "where(false, x, y) => y",
        P(Where, (Filled(False), "x", "y")),
        _chosen("y"),
        lambda x, y: Where()((x < y).constant(False), x, y),
        NUMBERS,
        count=2,
    ),
    _rule(
        "where(not m, x, y) => where(m, y, x)",
        P(Where, (P(LogicalNot, ("m",)), "x", "y")),
        use(Where(), "m", "y", "x"),
        lambda x, y: Where()(LogicalNot()(x < y), x, y),
        NUMBERS,
        count=2,
    ),
    _rule(
        "where(m, where(m, x, y), z) => where(m, x, z)",
        P(Where, ("m", P(Where, ("m", "x", "y")), "z")),
        _inner_choice("x", "z"),
        _chosen_twice(True),
        NUMBERS,
        count=3,
    ),
    _rule(
        "where(m, x, where(m, y, z)) => where(m, x, z)",
        P(Where, ("m", "x", P(Where, ("m", "y", "z")))),
        _inner_choice("x", "z"),
        _chosen_twice(False),
        NUMBERS,
        count=3,
    ),
    _rule(
        "clip(clip(x)) between the same bounds => clip(x)",
        P(Clip, (P(Clip, ("x",), "inner"),)),
        lambda m: m.nodes["inner"].output if m.nodes["inner"].op == m.root.op else None,
        lambda x: Clip(0, 1)(Clip(0, 1)(x)),
        NUMBERS,
    ),
)


# -- powers and functions ----------------------------------------------------------------------


POWERS = (
    _rule(
        "x * x => square(x)",
        P(Mul, ("x", "x")),
        use(Square(), "x"),
        lambda x: x * x,
        NUMBERS,
    ),
    _rule(
        "pow(x, 1) => x",
        P(Pow, ("x", Filled(1))),
        keep("x"),
        lambda x: Pow()(x, x.constant(1)),
        ("float32", "float64"),
    ),
    _rule(
        "pow(x, 0) => 1",
        P(Pow, ("x", Filled(0.0))),
        fill(1),
        lambda x: Pow()(x, x.constant(0)),
        ("float32", "float64"),
    ),
    _rule(
        "pow(x, 2) => square(x)",
        P(Pow, ("x", Filled(2))),
        lambda m: m.apply(Square(), m["x"]) if m["x"].type == m.type else None,
        lambda x: Pow()(x, x.constant(2)),
        ("float32", "float64"),
        "fast",
    ),
    _rule(
        "square(neg(x)) => square(x)",
        P(Square, (P(Neg, ("x",)),)),
        use(Square(), "x"),
        lambda x: Square()(-x),
        NUMBERS,
    ),
    _rule(
        "square(abs(x)) => square(x)",
        P(Square, (P(Abs, ("x",)),)),
        use(Square(), "x"),
        lambda x: Square()(Abs()(x)),
        NUMBERS,
    ),
    _rule(
        "abs(exp(x)) => exp(x)",
        P(Abs, (P(Exp, ("x",)),)),
        use(Exp(), "x"),
        lambda x: Abs()(Exp()(x)),
        FLOATS,
    ),
    _rule(
        "sqrt(square(x)) => abs(x)",
        P(Sqrt, (P(Square, ("x",)),)),
        use(Abs(), "x"),
        lambda x: Sqrt()(Square()(x)),
        ("float32", "float64"),
        "fast",
    ),
    _rule(
        "log(exp(x)) => x",
        P(Log, (P(Exp, ("x",)),)),
        keep("x"),
        lambda x: Log()(Exp()(x)),
        ("float32", "float64"),
        "fast",
    ),
    _rule(
        "reciprocal(sqrt(x)) => rsqrt(x)",
        P(Reciprocal, (P(Sqrt, ("x",)),)),
        use(Rsqrt(), "x"),
        lambda x: Reciprocal()(Sqrt()(Square()(x))),
        ("float32", "float64"),
        "fast",
    ),
    _rule(
        "log(softmax(x)) => log_softmax(x)",
        P(Log, (P(Softmax, ("x",), "inner"),)),
        lambda m: m.apply(LogSoftmax(m.attribute("inner", "axis")), m["x"]),
        lambda x: Log()(Softmax(1)(x)),
        ("float32", "float64"),
        "fast",
    ),
)


# -- numbers that meet -------------------------------------------------------------------------


def _join(op: Op) -> Build:
    """op(op(x, a), b) with constants a and b, computed in their own type."""

    def build(m: Found) -> Value | None:
        a, b = constant_of(m["a"]), constant_of(m["b"])
        if a is None or b is None or not (a.is_present and b.is_present):
            return None
        if a.array.size != 1 or b.array.size != 1 or a.array.ndim or b.array.ndim:
            return None
        both = m.literal(np.asarray(op.reference(a.array, b.array)).astype(a.array.dtype))
        made = m.apply(op, m["x"], both)
        return made if made.type == m.type else None

    return build


def _numbers_meet(op: Op, integers: bool) -> Rule:
    sign = {"add": "+", "mul": "*"}[op.name]
    build = only(tuple(_ALL_INTEGERS), _join(op)) if integers else _join(op)
    inner = P(type(op), ("x", "a"), commutes=True)
    limit = ", integers" if integers else ""
    return _rule(
        f"(x {sign} a) {sign} b => x {sign} (a {sign} b){limit}",
        P(type(op), (inner, "b"), commutes=True),
        build,
        lambda x: op(op(x, x.constant(3)), x.constant(2)),
        INTEGERS if integers else ("float32", "float64"),
        "exact" if integers else "fast",
    )


def _by_number(m: Found) -> Value | None:
    data = constant_of(m["c"])
    if data is None or not data.is_present or data.array.size != 1 or not data.dtype.is_float:
        return None
    number = data.array.astype(np.float64).reshape(-1)[0]
    if not np.isfinite(number) or abs(number) < 1e-30 or abs(number) > 1e30:
        return None
    inverse = np.asarray(1 / number).astype(data.dtype.numpy).reshape(data.shape)
    return m.apply(Mul(), m["x"], m.literal(inverse))


NUMBERS_MEET = (
    _numbers_meet(Add(), True),
    _numbers_meet(Mul(), True),
    _numbers_meet(Add(), False),
    _numbers_meet(Mul(), False),
    _rule(
        "x / number => x * (1 / number)",
        P(Div, ("x", "c")),
        _by_number,
        lambda x: x / x.constant(3),
        ("float32", "float64"),
        "fast",
    ),
)
