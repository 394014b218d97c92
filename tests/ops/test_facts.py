"""The facts that ops state about themselves hold for their oracles, on samples of every type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.ops import harness

from treadle.base import dtype as dt
from treadle.ops import REGISTRY
from treadle.ops.families import Elementwise
from treadle.ops.op import Op, as_tuple
from treadle.ops.select import Clip
from treadle.ops.slicing import Pad

Array = np.ndarray[Any, Any]
EVERY = [REGISTRY[name] for name in harness.OPS]


def having(fact: str) -> Any:
    found = [cls for cls in EVERY if getattr(cls, fact)]
    return pytest.mark.parametrize("cls", found, ids=[cls.name for cls in found])


def runs(cls: type[Op], *, special: bool = False) -> Iterator[tuple[Op, tuple[Array, ...]]]:
    """Samples of an op with arrays, in every element type."""
    for sample, dtype in harness.all_pairs(cls):
        yield sample.op, sample.arrays(dtype)
        found = harness.special_arrays(sample, dtype) if special else None
        if found is not None:
            yield sample.op, found


def results(op: Op, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    return as_tuple(harness.run(op, arrays))


def bits(x: Array) -> Array:
    return x.reshape(-1).view(np.uint8)


@having("commutative")
def test_operands_may_be_swapped(cls: type[Op]) -> None:
    for op, (x, y) in runs(cls, special=True):
        (one,), (other,) = results(op, (x, y)), results(op, (y, x))
        known = np.asarray(one == one)  # Which NaN comes out is open.
        assert np.array_equal(bits(one[known]), bits(other[known]))


def test_maxima_of_zeros_depend_on_the_order() -> None:
    """Why they are not called commutative; the test before would find the difference."""
    zeros = np.zeros(1, np.float32), -np.zeros(1, np.float32)
    for name in ("maximum", "minimum"):
        (one,), (other,) = (results(REGISTRY[name](), order) for order in (zeros, zeros[::-1]))
        assert not REGISTRY[name].commutative and not np.array_equal(bits(one), bits(other))


@having("selects")
def test_results_are_elements_of_operands(cls: type[Op]) -> None:
    for op, arrays in runs(cls):
        given = {v for a in arrays for v in a.reshape(-1).tolist()}
        if isinstance(op, Pad):  # Its filling, as its type holds it.
            given |= {op.value, int(op.value)}
        for made in results(op, arrays):
            assert set(made.reshape(-1).tolist()) <= given, str(op)


@having("is_view")
def test_views_have_the_first_operands_elements_in_order(cls: type[Op]) -> None:
    for op, arrays in runs(cls):
        (made,) = results(op, arrays)
        assert np.array_equal(bits(made), bits(np.ascontiguousarray(arrays[0])))


@having("rounded_once")
def test_results_are_what_more_digits_round_to(cls: type[Op]) -> None:
    """Twice as many digits and two more make a second rounding harmless, for these ops."""
    for op, arrays in runs(cls, special=True):
        if any(a.dtype != np.float32 and a.dtype != np.bool_ for a in arrays):
            continue
        if isinstance(op, Clip):  # Its bounds are rounded to the type first.
            continue
        wide = tuple(a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays)
        with np.errstate(all="ignore"):
            (made,), (more,) = results(op, arrays), results(op, wide)
            rounded = more.astype(made.dtype)
        both_nan = (made != made) & (rounded != rounded)
        assert ((made == rounded) | both_nan).all(), str(op)


def test_functions_of_the_library_are_not_rounded_once() -> None:
    """The mark is for what every processor computes alike; so no function with a series has it."""
    inexact = {"exp", "log", "sin", "cos", "tanh", "erf", "pow", "sigmoid", "gelu", "softplus"}
    assert not [name for name in inexact if REGISTRY[name].rounded_once]
    assert all(issubclass(cls, Elementwise) for cls in EVERY if cls.rounded_once)


@having("homogeneous")
def test_factors_come_out(cls: type[Op]) -> None:
    for op, arrays in runs(cls):
        if arrays[0].dtype not in (np.float32, np.float64, np.int32):
            continue
        (one,) = results(op, arrays)
        (double,) = results(op, tuple(a * a.dtype.type(2) for a in arrays))
        assert np.array_equal(double, one * one.dtype.type(2))


@having("by_sign")
def test_the_place_of_zero_matters(cls: type[Op]) -> None:
    assert cls.homogeneous
    x = np.array([-3.0, -0.5, 0.5, 2.0], np.float32)
    (made,), (moved,) = results(cls(), (x,)), results(cls(), (x + 5,))
    assert not np.array_equal(made + 5, moved)


@having("amp")
def test_mixed_precision_needs_both_types(cls: type[Op]) -> None:
    low = dt.float16 in cls.dtypes and dt.bfloat16 in cls.dtypes
    assert low and dt.float32 in cls.dtypes
