"""Result types of operators on tensors, numbers and arrays, and what operators refuse."""

import math
import operator
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import DTypeError, ShapeError
from treadle.tensor import Parameter, Tensor

DTYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip


# -- promotion: the table of megengine-semantics, section 2 ------------------------------------

_NAMES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "float16", "float32"]
_TABLE = """
float32 float32 float32 float32 float32 float32 float32 float32
float32 uint8   int16   int16   uint16  int32   float32 float32
float32 int16   int8    int16   int32   int32   float32 float32
float32 int16   int16   int16   int32   int32   float32 float32
float32 uint16  int32   int32   uint16  int32   float32 float32
float32 int32   int32   int32   int32   int32   float32 float32
float32 float32 float32 float32 float32 float32 float16 float32
float32 float32 float32 float32 float32 float32 float32 float32
"""
"""MegEngine's, with a common type where it has no kernel (bool + bool, uint8 with signed types)."""
PAIRS = [
    (a, b, result)
    for a, row in zip(_NAMES, _TABLE.split("\n")[1:], strict=False)
    for b, result in zip(_NAMES, row.split(), strict=True)
]
WIDE = [
    ("int64", "int32", "int64"),
    ("int64", "bool", "float32"),
    ("int64", "float16", "float32"),
    ("int64", "float32", "float32"),
    ("uint32", "int32", "int64"),
    ("uint64", "int64", "int64"),
    ("float64", "bool", "float64"),
    ("float64", "int64", "float64"),
    ("float64", "float16", "float64"),
    ("float64", "float32", "float64"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "float16", "float32"),
    ("bfloat16", "float32", "float32"),
    ("bfloat16", "int8", "float32"),
    ("bfloat16", "float64", "float64"),
]


def test_the_table_has_every_pair() -> None:
    assert len(PAIRS) == len(_NAMES) ** 2


@pytest.mark.parametrize(("a", "b", "expected"), PAIRS + WIDE)
def test_promotion_of_two_tensors(a: str, b: str, expected: str) -> None:
    x, y = mge.tensor([1, 0], dtype=a), mge.tensor([1, 1], dtype=b)
    for first, second in ((x, y), (y, x)):
        for _ in range(2):  # the second time the launch is known
            total = first + second
            assert total.dtype.name == expected and total.tolist() == [2, 1]
    assert (x == y).dtype == np.bool_
    assert F.concat([x, y]).dtype.name == (a if a == b else expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_python_scalars_are_weak(dtype: str) -> None:
    x = mge.tensor([1, 0], dtype=dtype)
    is_float = "float" in dtype
    assert (x + 1).dtype.name == ("float32" if dtype == "bool" else dtype)
    assert (1 - x).dtype.name == ("float32" if dtype == "bool" else dtype)
    assert (x * 2.5).dtype.name == (dtype if is_float else "float32")
    assert (2.5 * x).tolist() == [2.5, 0]
    assert (x / 2).dtype.name == (x / x).dtype.name == (dtype if is_float else "float32")
    # MegEngine's integers give float32; the types that it lacks stay what they are.
    stays = is_float or dtype in ("uint32", "int64", "uint64")
    assert (x**2).dtype.name == (dtype if stays else "float32")
    assert (x > 0).dtype == np.bool_ and (x == 0.5).tolist() == [False, False]
    if dtype != "bool":
        for op in (operator.floordiv, operator.mod, operator.mul):
            assert op(x, 2).dtype.name == dtype


def test_scalars_do_not_teach_the_operator_wrong_types() -> None:
    x = mge.tensor([3], dtype="int16")
    assert (x + x).dtype == np.int16
    for _ in range(3):
        assert (x + 0.5).tolist() == (0.5 + x).tolist() == [3.5]
        assert (x - 1).dtype == (1 - x).dtype == (x + x).dtype == np.int16
        assert (1 - x).tolist() == [-2] and x.__rsub__(mge.tensor([5], dtype="int16")).item() == 2


def test_numpy_values_are_strong() -> None:
    half = mge.tensor([1.0], dtype="float16")
    assert (half + np.float32(1)).dtype == np.float32
    assert (half + np.float64(1)).dtype == np.float32, "float64 data is taken as float32"
    assert (half + np.array([1, 2])).dtype == np.float32
    assert (mge.tensor([1]) + np.int64(2)).dtype == np.int32
    assert (np.float64(1.5) + mge.tensor([1])).tolist() == [2.5]
    wide = mge.tensor([0.1], dtype="float64")
    assert (wide + np.array([0.1])).tolist() == [0.2], "float64 beside float64 is not narrowed"
    assert operator.add(wide, [0.1]).dtype == np.float64


def test_bool_tensors_compare_with_numbers_by_value() -> None:
    b = mge.tensor([True, False])
    assert (b == 2).tolist() == [False, False] and (b == 1).tolist() == [True, False]
    assert (b == True).tolist() == [True, False]  # noqa: E712
    assert (b < 0.5).tolist() == [False, True]


@pytest.mark.parametrize("literal", [2**40, -(2**31) - 1, 2**70])
@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.lt])
def test_literals_that_do_not_fit_are_refused(op: Any, literal: int) -> None:
    x = mge.tensor([1, 2])
    for _ in range(2):
        with pytest.raises(DTypeError, match=r"does not fit int32[^$]*hint: .*astype") as caught:
            op(x, literal)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert (x.astype("int64") + 2**40).tolist() == [2**40 + 1, 2**40 + 2]
    assert (mge.tensor([1.0]) + 2**40).dtype == np.float32


# -- operators ---------------------------------------------------------------------------------


def test_division_and_remainder() -> None:
    x = mge.tensor([7, -7])
    assert (x // 2).tolist() == [3, -4] and (x % 3).tolist() == [1, 2]
    f = mge.tensor([7.0, -7.0])
    assert (f // 2).tolist() == [3, -4]
    assert (f % 3).tolist() == [1, -1], "floats: the sign of the dividend, as C's fmod"
    assert (x // 0).tolist() == [0, 0] and (x % 0).tolist() == [0, 0]
    assert (x / 0).tolist() == [math.inf, -math.inf]
    assert (5 // mge.tensor([2, -2])).tolist() == [2, -3]


def test_logic_wants_bools_or_integers_and_shifts_integers() -> None:
    b, c = mge.tensor([True, True, False]), mge.tensor([True, False, False])
    assert (b & c).tolist() == [True, False, False] and (b | c).tolist() == [True, True, False]
    assert (b ^ c).tolist() == [False, True, False] and (~c).tolist() == [False, True, True]
    assert (b & True).tolist() == [True, True, False]
    x = mge.tensor([6, 5])
    assert (x & 3).tolist() == [2, 1] and (~x).tolist() == [-7, -6]
    assert (x << 1).tolist() == [12, 10] and (x >> mge.tensor(1)).tolist() == [3, 2]
    f = mge.tensor([1.0, 2.0, 3.0])
    for broken in (
        lambda: f & f, lambda: f | 1, lambda: ~f, lambda: f ^ f, lambda: b & mge.tensor([1, 2, 3]),
        lambda: b << b, lambda: f << 1, lambda: 1 >> f, lambda: b & 1,
    ):  # fmt: skip
        with pytest.raises(TypeError, match="does not take"):
            broken()


@pytest.mark.parametrize(
    "op", [operator.add, operator.mul, operator.pow, operator.eq, operator.ne, operator.lt]
)
def test_none_has_its_own_message(op: Any) -> None:
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            op(mge.tensor([1.0]), None)
        assert str(caught.value) == "the operand is None and is not supported."


@pytest.mark.parametrize("other", ["text", object(), {}, [object()]])
def test_foreign_objects_are_refused(other: Any) -> None:
    for op in (operator.add, operator.eq, operator.matmul):
        with pytest.raises(TypeError, match="as an operand"):
            op(mge.tensor([1.0]), other)


def test_lists_and_arrays_mix_on_both_sides() -> None:
    t = mge.tensor([1, 2])
    assert operator.add(t, [1, 2]).tolist() == operator.add([1, 2], t).tolist() == [2, 4]
    array = np.array([5, 7])
    for op in (
        operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv,
        operator.mod, operator.pow, operator.matmul, operator.eq, operator.lt, operator.ge,
        operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
    ):  # fmt: skip
        for x, y in ((array, t), (t, array)):
            mixed = op(x, y)
            assert isinstance(mixed, Tensor), "also where NumPy looks at its operator first"
            np.testing.assert_allclose(mixed.numpy(), op(np.asarray(x), np.asarray(y)), 1e-6)
    assert isinstance(np.sin(mge.tensor([1])), Tensor), "NumPy's functions give tensors"
    assert np.sin(mge.tensor([1])).dtype == np.float32
    for function in (np.maximum, np.minimum, np.power):
        assert isinstance(function(t, t), Tensor)
    assert np.sign(t).tolist() == [1, 1]
    assert np.add(t, 1.5).tolist() == [2.5, 3.5]


def test_shapes_that_do_not_broadcast_name_both() -> None:
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"add: .*3 against 2[^$]*float32\[3\].*float32\[2\]"):
            mge.tensor([1.0, 2.0, 3.0]) + mge.tensor([1.0, 2.0])
    with pytest.raises(ShapeError, match="matmul"):
        F.zeros((2, 3)) @ F.zeros((2, 3))
    with pytest.raises(ShapeError):
        mge.tensor(1.0) @ mge.tensor(2.0)


def test_matrix_products() -> None:
    a, v = mge.tensor([[1.0, 2.0], [3.0, 4.0]]), mge.tensor([1.0, 1.0])
    for _ in range(2):
        assert (a @ a).tolist() == [[7, 10], [15, 22]]
        assert (a @ v).tolist() == [3, 7] and (v @ a).tolist() == [4, 6] and (v @ v).item() == 2
    assert (np.ones((2, 2), "float32") @ a).tolist() == [[4, 6], [4, 6]]
    assert (mge.tensor([[1, 2]]) @ mge.tensor([[3], [4]])).tolist() == [[11]]


def test_parameters_mix_with_tensors_and_give_tensors() -> None:
    p, t = Parameter([1.0, 2.0]), mge.tensor([3.0, 4.0])
    for result in (p + t, t + p, p**t, F.maximum(p, t), p[0:1], p.detach(), p.astype("float16")):
        assert type(result) is Tensor
    manager = mge.autodiff.GradManager().attach([p, t])
    with manager:
        manager.backward(F.maximum(p, t).sum() + (p**t).sum() + (p.astype("float64") * t).sum())
    assert t.grad is not None and p.grad is not None
    np.testing.assert_allclose(t.grad.numpy(), [1 + 1, 1 + 2 + 16 * math.log(2)], 1e-5)


def test_in_place_forms_rebind_the_same_object() -> None:
    x = alias = mge.tensor([4.0, 9.0])
    x += 1
    x -= mge.tensor([1.0, 1.0])
    x *= 2
    x /= 4
    x **= 2
    assert x is alias and alias.tolist() == [4, 20.25]
    x //= 3
    x %= 4
    assert alias.tolist() == [1, 2]
    i = mge.tensor([1, 2])
    i <<= 2
    i |= 1
    i &= 5
    i ^= 4
    i >>= 0
    assert i.tolist() == [1, 5]
    i /= 2
    assert i.dtype == np.float32, "a changed operand may change its type"
    m = mge.tensor([[1.0, 1.0], [0.0, 1.0]])
    m @= m
    assert m.tolist() == [[1, 2], [0, 1]]


def test_set_value_and_reset_zero() -> None:
    p = Parameter([1.0, 2.0])
    p.set_value(np.array([3.0, 4.0]))
    assert isinstance(p, Parameter) and p.tolist() == [3, 4] and p.dtype == np.float32
    p.reset_zero()
    assert p.tolist() == [0, 0]


def test_unary_operators_and_rounding() -> None:
    x = mge.tensor([-1.5, 2.5])
    assert (-x).tolist() == [1.5, -2.5] and abs(x).tolist() == [1.5, 2.5]
    assert round(x).tolist() == [-2, 3], "halves away from zero"
    assert math.floor(x).tolist() == [-2, 2] and math.ceil(x).tolist() == [-1, 3]
    for unsupported in (lambda: math.trunc(x), lambda: divmod(x, 2)):
        with pytest.raises(TypeError):
            unsupported()
