"""Byte code of integer expressions: what it computes, asks and refuses, here and in native code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treadle.backends import registry
from treadle.backends.program import OpenCompiler
from treadle.base.arithmetic import (
    ADD,
    CODES,
    DIVIDE,
    DONE,
    MULTIPLY,
    OVERFLOW,
    REMAINDER,
    ExpressionWriter,
    Questions,
    Rows,
    Words,
    evaluate,
)
from treadle.base.symbol import Dim, Expr, Relation, equal, less_equal, maximum, minimum, symbol
from treadle.base.symbol import evaluate as value_of

NAMES = ("m", "n", "k")
SYMBOLS = [symbol(name, 0) for name in NAMES]


def native(rows: Rows, registers: Words) -> int:
    """The same by the processor."""
    (engine,) = (e for e in registry.engines("cpu") if e.name == "cpu")
    compiler = engine.compiler()  # type: ignore[attr-defined]
    assert isinstance(compiler, OpenCompiler)
    return compiler.evaluator(rows)(registers)


WAYS = pytest.mark.parametrize("run", [evaluate, native])


def _apart(x: Dim, y: Dim) -> Dim:
    return x // (y if isinstance(y, int) and y > 0 else 3)


def _rest(x: Dim, y: Dim) -> Dim:
    return x % (y if isinstance(y, int) and y > 0 else 7)


OPERATIONS = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    _apart,
    _rest,
    minimum,
    maximum,
]
EXTENTS = st.recursive(
    st.one_of(st.sampled_from(SYMBOLS), st.integers(-9, 70)),
    lambda inner: st.builds(lambda f, x, y: f(x, y), st.sampled_from(OPERATIONS), inner, inner),
    max_leaves=8,
)
VALUES = st.tuples(*(st.integers(0, 5000),) * len(NAMES))


@settings(deadline=None)
@given(st.lists(EXTENTS, min_size=1, max_size=4), VALUES)
def test_code_computes_what_expressions_are(extents: list[Dim], values: tuple[int, ...]) -> None:
    named = dict(zip(NAMES, values, strict=True))
    writer = ExpressionWriter(NAMES)
    code, places = writer.finished([writer.of(x) for x in extents])
    assert len(places) >= len(NAMES)
    for run in (evaluate, native):
        registers = code.start.copy()
        registers[: len(values)] = values
        assert run(code.rows, registers) == DONE
        assert registers[code.first :].tolist() == [value_of(x, named) for x in extents]


@settings(deadline=None)
@given(EXTENTS, EXTENTS, VALUES)
@example(SYMBOLS[0], 4, (4, 0, 0))
def test_code_asks_what_relations_ask(x: Dim, y: Dim, values: tuple[int, ...]) -> None:
    named = dict(zip(NAMES, values, strict=True))
    same = equal(x, y)
    for relation in (same, same.opposite, less_equal(x, y), less_equal(y, x).opposite):
        writer = ExpressionWriter(NAMES)
        writer.ask(Relation(">=0", 0))
        writer.ask(relation)
        code, _ = writer.finished()
        asked = len(code.rows) - 1
        for run in (evaluate, native):
            registers = code.start.copy()
            registers[: len(values)] = values
            assert run(code.rows, registers) == (DONE if relation.holds(named) else asked)


@settings(deadline=None)
@given(st.lists(st.tuples(EXTENTS, EXTENTS), max_size=4), VALUES)
def test_questions_are_answered_as_relations_are(
    pairs: list[tuple[Dim, Dim]], values: tuple[int, ...]
) -> None:
    named = dict(zip(NAMES, values, strict=True))
    asked = [f(x, y) for x, y in pairs for f in (less_equal, equal)]
    asked.append(less_equal(5, symbol("not known")))
    found = Questions(asked, NAMES).answered(values)
    assert found == all(r.holds(named) for r in asked[:-1])


def test_questions_beyond_64_bits_have_no_answer() -> None:
    m, n, _ = SYMBOLS
    large = Questions([less_equal(5, m * n * n)], NAMES)
    assert large.answered((1 << 30, 1 << 20, 0)) is None
    assert large.answered((3, 2, 0)) is True and large.answered((1, 2, 0)) is False
    assert Questions([less_equal(m, 1 << 70)], NAMES).answered((1, 1, 1)) is None
    assert Questions([equal(m % n, 0)], NAMES).answered((4, 0, 0)) is None


@WAYS
@pytest.mark.parametrize(
    ("code", "x", "y"),
    [
        (ADD, 2**63 - 1, 1),
        (ADD, -(2**63), -1),
        (MULTIPLY, 2**32, 2**31),
        (MULTIPLY, -(2**62), 3),
        (DIVIDE, 5, 0),
        (DIVIDE, 5, -1),
        (REMAINDER, 5, 0),
    ],
)
def test_what_64_bits_do_not_hold_ends_evaluation(run: object, code: int, x: int, y: int) -> None:
    registers = np.array([x, y, 0], np.int64)
    rows = np.array([[code, 2, 0, 1]], np.int32)
    assert run(rows, registers) == OVERFLOW  # type: ignore[operator]


@WAYS
@pytest.mark.parametrize(("x", "y"), [(7, 2), (-7, 2), (-8, 2), (6, 7), (-1, 64), (0, 5)])
def test_quotients_are_rounded_down(run: object, x: int, y: int) -> None:
    registers = np.array([x, y, 0, 0], np.int64)
    rows = np.array([[DIVIDE, 2, 0, 1], [REMAINDER, 3, 0, 1]], np.int32)
    assert run(rows, registers) == DONE  # type: ignore[operator]
    assert registers[2:].tolist() == [x // y, x % y]


def test_equal_parts_are_computed_once() -> None:
    n, m = SYMBOLS[1], SYMBOLS[0]
    writer = ExpressionWriter(NAMES)
    first = writer.of(4 * n * m + 5)
    assert writer.of(4 * n * m + 5) == first
    writer.of(4 * n * m + 9)
    code, _ = writer.finished()
    assert [row[0] for row in code.rows.tolist()] == [MULTIPLY, MULTIPLY, ADD, ADD]
    assert isinstance(4 * n * m, Expr) and CODES > ADD


def test_what_is_asked_for_comes_last_in_order() -> None:
    n = SYMBOLS[1]
    writer = ExpressionWriter(("n",))
    wanted = [writer.of(n * 2), writer.of(n), writer.of(7), writer.of(n * 2), writer.of(n + 1)]
    code, places = writer.finished(wanted)
    registers = code.start.copy()
    registers[0] = 5
    assert evaluate(code.rows, registers) == DONE
    assert registers[code.first :].tolist() == [10, 5, 7, 10, 6]
    assert registers[places[wanted[0]]] == 10
