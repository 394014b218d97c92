"""Scalar expressions and their interpreter."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.ops.scalar import Scalar, call, cast, const, evaluate, select

X, Y = Scalar("input"), Scalar("input")


def test_python_operators_build_the_intrinsics() -> None:
    x, y = np.array([5.0, -3.0]), np.array([2.0, 4.0])
    inputs = {X: x, Y: y}
    for expr, expected in (
        (X + Y, x + y),
        (1 + X, 1 + x),
        (X - Y, x - y),
        (1 - X, 1 - x),
        (X * Y, x * y),
        (3 * X, 3 * x),
        (X / Y, x / y),
        (1 / X, 1 / x),
        (-X, -x),
        (X < Y, x < y),
        (X <= 5, x <= 5),
        (X > Y, x > y),
        (X >= 5, x >= 5),
        (X.equals(5), x == 5),
        ((X > 0) & (Y > 3), (x > 0) & (y > 3)),
        ((X > 0) | (Y > 3), (x > 0) | (y > 3)),
        ((X > 0) ^ (Y > 3), (x > 0) ^ (y > 3)),
        (~(X > 0), ~(x > 0)),
        (select(X > 0, X, Y), np.where(x > 0, x, y)),
    ):
        np.testing.assert_array_equal(evaluate(expr, inputs), expected)


def test_a_name_outside_the_table_is_refused() -> None:
    with pytest.raises(KeyError, match="no scalar intrinsic is named 'gamma'"):
        call("gamma", X)


def test_constants_take_the_type_of_what_they_meet() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.int8):
        assert evaluate(X + 1, {X: np.ones(2, dtype)}).dtype == dtype
    mask = np.array([True, False])
    chosen = evaluate(select(X, Y, const(1)), {X: mask, Y: np.zeros(2, np.float32)})
    assert chosen.dtype == np.float32 and chosen.tolist() == [0, 1]


def test_bfloat16_is_computed_in_float32() -> None:
    x = np.array([1.0], dt.bfloat16.numpy)
    # 1 + 2**-9 is no bfloat16: only a wide intermediate result keeps it.
    assert evaluate(X + 2**-9, {X: x}).item() == 1 + 2**-9


def test_cast_changes_the_type_and_needs_one() -> None:
    assert evaluate(cast(X, dt.int32), {X: np.array([1.7])}).dtype == np.int32
    with pytest.raises(TypeError, match="names its element type"):
        evaluate(Scalar("cast", (X,)), {X: np.array([1.7])})


def test_shared_subexpressions_are_evaluated_once() -> None:
    expr = X
    for _ in range(60):
        expr = expr + expr  # 2**60 nodes if walked as a tree
    assert evaluate(expr, {X: np.array([1.0])}).item() == 2.0**60


@pytest.mark.parametrize("code", ["floor_div", "mod"])
def test_integer_division_by_zero_is_zero(code: str) -> None:
    x = np.array([5, -5, 0], np.int32)
    assert evaluate(call(code, X, 0), {X: x}).tolist() == [0, 0, 0]
