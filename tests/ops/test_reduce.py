"""Corner cases of reductions and running totals that no sample states."""

import numpy as np
import pytest
from tests.ops.harness import gradients

from treadle.base import dtype as dt
from treadle.base.errors import ShapeError
from treadle.base.guards import recording_guards
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.ops.cumulative import CumProd, CumSum, LinearRecurrence
from treadle.ops.op import Op
from treadle.ops.reduce import Argmax, Argmin, Max, Mean, Min, Prod, Sum


@pytest.mark.parametrize("kind", [np.float16, dt.bfloat16.numpy], ids=["float16", "bfloat16"])
def test_half_types_accumulate_in_float32(kind: np.dtype[np.generic]) -> None:
    x = np.full(4096, 1.0).astype(kind)
    assert float(Sum((0,)).reference(x)) == 4096  # bfloat16 alone stops at 256
    assert float(Mean((0,)).reference(x)) == 1
    assert float(CumSum(0).reference(x)[-1]) == 4096


def test_integers_wrap() -> None:
    x = np.array([100, 100, 100], np.int8)
    assert Sum((0,)).reference(x) == 44
    assert Prod((0,)).reference(x).dtype == np.int8
    assert list(CumSum(0).reference(x)) == [100, -56, 44]


@pytest.mark.parametrize(("op", "value"), [(Max((0,)), 2.0), (Min((0,)), 1.0)], ids=str)
def test_every_tied_element_gets_the_whole_gradient(op: Op, value: float) -> None:
    x = np.array([2.0, 1.0, 2.0, 1.0])
    (dx,) = gradients(lambda xs: [op(*xs)], [x], [np.array(3.0)])
    np.testing.assert_array_equal(dx, np.where(x == value, 3.0, 0.0))


def test_nan_wins_and_its_place_is_found() -> None:
    x = np.array([1.0, np.nan, 2.0, np.nan])
    assert np.isnan(Max((0,)).reference(x)) and np.isnan(Min((0,)).reference(x))
    assert Argmax(0).reference(x) == 1 and Argmin(0).reference(x) == 1


def test_reducing_nothing_raises_only_where_a_result_is_wanted() -> None:
    none = TensorType(dt.float32, (0, 3))
    assert Max((1,)).infer(none)[0].shape == (0,)
    assert Max((0, 1)).infer(TensorType(dt.float32, (2, 3)))[0].shape == ()
    with pytest.raises(ShapeError, match="axis 0 has no elements"):
        Max((0,)).infer(none)
    maybe = TensorType(dt.float32, (symbol("n", low=0),))
    with recording_guards() as guards:
        Argmax(0).infer(maybe)
    assert [g.holds({"n": 0}) for g in guards] == [False]


def test_products_with_zeros_have_exact_gradients() -> None:
    x = np.array([[0.0, 2.0, 3.0], [0.0, 2.0, 0.0]])
    (dx,) = gradients(lambda xs: [Prod((1,))(*xs)], [x], [np.ones(2)])
    np.testing.assert_array_equal(dx, [[6, 0, 0], [0, 0, 0]])
    (dx,) = gradients(lambda xs: [CumProd(0)(*xs)], [np.array([2.0, 0.0, 3.0])], [np.ones(3)])
    np.testing.assert_array_equal(dx, [1, 8, 0])


def test_recurrence_is_a_running_state() -> None:
    a, b = np.array([9.0, 0.5, 2.0]), np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(LinearRecurrence(0).reference(a, b), [1, 2.5, 8])
    np.testing.assert_array_equal(LinearRecurrence(0, True).reference(a, b), [32.5, 3.5, 3])


def test_exclusive_totals_start_with_the_unit() -> None:
    x = np.array([2, 3, 4])
    assert list(CumSum(0, exclusive=True).reference(x)) == [0, 2, 5]
    assert list(CumProd(0, exclusive=True, reverse=True).reference(x)) == [12, 4, 1]
