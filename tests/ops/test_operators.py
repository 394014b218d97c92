"""Python operators: promotion, casts, reflected forms, and the methods gradient rules use."""

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.harness import TapeOperand

from treadle.base import dtype as dt
from treadle.base.errors import DTypeError
from treadle.ops import elementwise as ew
from treadle.ops.operators import binary


def wrap(array: Any) -> TapeOperand:
    return TapeOperand(array, [])


def operand(values: Any, dtype: Any) -> TapeOperand:
    return wrap(np.array(values, dt.as_dtype(dtype).numpy))


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ("bool", "bool", "float32"),
        ("bool", "uint8", "float32"),
        ("uint8", "uint16", "uint16"),
        ("int8", "int16", "int16"),
        ("int16", "int32", "int32"),
        ("int32", "float16", "float32"),
        ("float16", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("uint8", "int8", "int16"),
    ],
)
def test_two_operands_meet_in_one_type(x: str, y: str, expected: str) -> None:
    for first, second in ((x, y), (y, x)):
        total = operand([1, 0], first) + operand([1, 1], second)
        assert total.type.dtype.name == expected
        assert total.array.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("x", "scalar", "expected"),
    [
        ("int8", 2, "int8"),
        ("int8", 2.0, "float32"),
        ("float16", 2, "float16"),
        ("float16", 2.0, "float16"),
        ("bfloat16", 2.0, "bfloat16"),
        ("float64", 2.0, "float64"),
        ("bool", 2, "float32"),
        ("int32", True, "int32"),
        ("float32", np.float64(2), "float64"),
    ],
)
def test_python_scalars_are_weak_and_numpy_scalars_are_not(
    x: str, scalar: Any, expected: str
) -> None:
    assert (operand([1], x) * scalar).type.dtype.name == expected


REAL = np.array([4.0, -3.0, 2.0], np.float32)


@pytest.mark.parametrize(
    "function",
    [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv],
)
@pytest.mark.parametrize("other", [2.0, 3, REAL])
def test_arithmetic_and_its_reflected_form(function: Any, other: Any) -> None:
    x = wrap(REAL)
    np.testing.assert_allclose(function(x, other).array, function(REAL, other), 1e-6)
    if not isinstance(other, np.ndarray):  # NumPy arrays look at their own operators first
        np.testing.assert_allclose(function(other, x).array, function(other, REAL), 1e-6)


def test_powers_and_remainders() -> None:
    x = operand([4.0, -3.0], "float32")
    assert (x**2).array.tolist() == [16, 9] and (2.0**x).array.tolist() == [16, 0.125]
    assert (x % 2.5).array.tolist() == [1.5, -0.5], "floats: the sign of the dividend"
    assert (operand([7, -7], "int32") % 3).array.tolist() == [1, 2], "integers: of the divisor"
    assert (7 % operand([4, -4], "int32")).array.tolist() == [3, -1]
    assert abs(x).array.tolist() == [4, 3] and (-x).array.tolist() == [-4, 3]


@pytest.mark.parametrize(
    "exponent", [2, 2.0, 0.5, -0.5, -1, 3, 0, 1, True, np.float32(2), np.float64(2)]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
def test_scalar_exponents_agree_with_the_general_power(exponent: Any, dtype: str) -> None:
    x = operand([1, 4, 9], dtype)
    general = binary(ew.Pow(), x, exponent)
    result = x**exponent
    assert result.type == general.type
    np.testing.assert_allclose(result.array, general.array, 1e-3)


def test_true_division_and_powers_of_integers_are_float32() -> None:
    x = operand([6, 9], "int32")
    for result in (x / 3, 3 / x, x**2, x / operand([2, 2], "int8")):
        assert result.type.dtype is dt.float32
    assert (x // 4).type.dtype is dt.int32 and (x // 4).array.tolist() == [1, 2]


def test_integer_division_by_zero_is_zero() -> None:
    x = operand([6, -9], "int32")
    with np.errstate(divide="ignore"):
        assert (x // 0).array.tolist() == [0, 0] and (x % 0).array.tolist() == [0, 0]


@pytest.mark.parametrize("function", [operator.lt, operator.le, operator.gt, operator.ge])
def test_comparisons_promote_and_give_bool(function: Any) -> None:
    result = function(operand([1, 2, 3], "int32"), operand([2.0, 2.0, 2.0], "float32"))
    assert result.type.dtype is dt.bool_
    assert result.array.tolist() == function(np.array([1, 2, 3]), 2.0).tolist()
    assert function(operand([True, False], "bool"), operand([True], "bool")).type.dtype is dt.bool_


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor])
def test_logic_of_truth_values_and_of_bits(function: Any) -> None:
    truth = np.array([True, True, False]), np.array([True, False, False])
    assert function(*map(wrap, truth)).array.tolist() == function(*truth).tolist()
    assert function(True, wrap(truth[0])).type.dtype is dt.bool_
    bits = np.array([12, 10], np.int32), np.array([10, 7], np.int32)
    assert function(*map(wrap, bits)).array.tolist() == function(*bits).tolist()
    assert function(6, wrap(bits[0])).array.tolist() == function(6, bits[0]).tolist()
    with pytest.raises(DTypeError, match="does not take float32"):
        function(operand([1], "float32"), operand([1], "float32"))


def test_not_and_shifts() -> None:
    assert (~operand([True, False], "bool")).array.tolist() == [False, True]
    assert (~operand([0, 5], "int8")).array.tolist() == [-1, -6]
    x = operand([1, -8], "int8")
    assert (x << 2).array.tolist() == [4, -32] and (x >> 1).array.tolist() == [0, -4]
    assert (1 << operand([3, 9], "int8")).array.tolist() == [8, 0]
    with pytest.raises(DTypeError, match=r"^shift_left: does not take float32"):
        operand([1], "float32") << 1


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 2)),
    ],
)
def test_matrix_products_take_vectors(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=x), rng.normal(size=y)
    result = wrap(first) @ wrap(second)
    np.testing.assert_allclose(result.array, first @ second)
    assert result.shape == (first @ second).shape
    np.testing.assert_allclose((first.tolist() @ wrap(second)).array, first @ second)


def test_foreign_operands_are_refused() -> None:
    x = operand([1.0], "float32")
    with pytest.raises(TypeError, match=r"^the operand is None and is not supported\.\n  hint: "):
        x + None
    with pytest.raises(DTypeError, match=r"^add: cannot use a dict as an operand"):
        x + {}
    listed = [1, 2]
    assert (x + listed).array.tolist() == [2, 3]


def test_swap_puts_the_other_first() -> None:
    x = operand([2.0], "float32")
    assert binary(ew.Sub(), x, 5.0).array.tolist() == [-3]
    assert binary(ew.Sub(), x, 5.0, swap=True).array.tolist() == [3]


def test_methods_that_change_nothing_return_the_operand() -> None:
    x = operand([[1.0, 2.0]], "float32")
    assert x.astype("float32") is x and x.reshape((1, 2)) is x
    assert x.broadcast_to((1, 2)) is x and x.sum_to((1, 2)) is x and +x is x


def test_sum_takes_negative_axes_and_none() -> None:
    x = wrap(np.arange(6.0).reshape(2, 3))
    assert x.sum().array.item() == 15
    assert x.sum(-1).array.tolist() == [3, 12]
    assert x.sum((0, -1), keepdims=True).shape == (1, 1)


@given(st.data())
def test_sum_to_is_the_transpose_of_broadcast_to(data: st.DataObject) -> None:
    """<broadcast(x), y> = <x, sum_to(y)>, for every shape that broadcasts to another."""
    target = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    drop = data.draw(st.integers(0, len(target)))
    shape = tuple(d if data.draw(st.booleans()) else 1 for d in target[drop:])
    rng = np.random.default_rng(0)
    x, y = wrap(rng.normal(size=shape)), wrap(rng.normal(size=target))
    back = y.sum_to(shape)
    assert back.shape == shape
    np.testing.assert_allclose(
        np.sum(x.broadcast_to(target).array * y.array), np.sum(x.array * back.array)
    )
