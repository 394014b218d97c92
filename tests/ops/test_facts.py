"""The facts that ops state about themselves hold for their oracles, on samples of every type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.ops import harness

from treadle.base import dtype as dt
from treadle.base.dtype import as_dtype
from treadle.base.types import TensorType
from treadle.ops import REGISTRY
from treadle.ops.composite import Composite
from treadle.ops.elementwise import Add
from treadle.ops.families import Elementwise, Reduce, identity
from treadle.ops.movement import Concat, Reshape, Roll
from treadle.ops.op import Op, as_tuple
from treadle.ops.reduce import Argmax, Argmin, Mean
from treadle.ops.select import Clip
from treadle.ops.slicing import Pad, Slice, SliceUpdate

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


@having("strided")
def test_results_are_read_with_strides(cls: type[Op]) -> None:
    """Where an element comes from is a sum over its position, at least for dense operands."""
    for op, arrays in runs(cls):
        x = np.arange(arrays[0].size).reshape(arrays[0].shape)
        (made,) = results(op, (x.astype(np.int64),))
        if not made.size:
            continue
        steps = [
            made.take(1, i).flat[0] - made.flat[0] if n > 1 else 0 for i, n in enumerate(made.shape)
        ]
        places = sum(
            (i * s for i, s in zip(np.indices(made.shape), steps, strict=True)), made.flat[0]
        )
        assert np.array_equal(made, np.broadcast_to(places, made.shape)), str(op)


MOVING = [c for c in EVERY if c.selects == "first" and len(c.operands) == c.n_outputs == 1]


@pytest.mark.parametrize("cls", MOVING, ids=[c.name for c in MOVING])
def test_what_rearranges_loses_and_repeats_nothing(cls: type[Op]) -> None:
    def keeps(op: Op, arrays: tuple[Array, ...]) -> bool:
        x = np.arange(arrays[0].size).reshape(arrays[0].shape)
        (made,) = results(op, (x,))
        return sorted(made.reshape(-1).tolist()) == list(range(x.size))

    assert cls.rearranges == all(keeps(op, arrays) for op, arrays in runs(cls))


@having("rearranges")
def test_what_rearranges_has_one_operand(cls: type[Op]) -> None:
    assert cls in MOVING


def test_incidental_ops_are_views_in_order_that_mean_nothing_by_themselves() -> None:
    """Or one array, without operands; what a view says to others, its missing gradient tells."""

    def is_in_order(op: Op, arrays: tuple[Array, ...]) -> bool:
        x = np.arange(arrays[0].size).reshape(arrays[0].shape)
        (made,) = results(op, (x,))
        first = list(dict.fromkeys(made.reshape(-1).tolist()))
        return not made.size or first == list(range(x.size))

    for cls in EVERY:
        if not cls.operands:
            assert not cls.incidental or cls.work == "data"
            continue
        views = cls.strided and not cls.no_gradient
        in_order = views and all(is_in_order(op, arrays) for op, arrays in runs(cls))
        assert cls.incidental == in_order, cls.name


@having("converts")
def test_conversions_change_types_and_no_shapes(cls: type[Op]) -> None:
    made = [(arrays[0], results(op, arrays)[0]) for op, arrays in runs(cls)]
    assert all(x.shape == y.shape for x, y in made)
    assert any(x.dtype != y.dtype for x, y in made)


PRODUCTS = [c for c in EVERY if c.work == "product" or c.contraction]


@pytest.mark.parametrize("cls", PRODUCTS, ids=[c.name for c in PRODUCTS])
def test_contractions_are_linear_in_both_operands(cls: type[Op]) -> None:
    """Others are so in some operands, or wrap around in the type of these."""
    rng = np.random.default_rng(7)

    def is_linear(op: Op, arrays: tuple[Array, ...], at: int) -> bool:
        def whole(x: Array) -> Array:
            low = 0 if x.dtype.kind == "u" else -4
            return np.asarray(rng.integers(low, 5, x.shape).astype(x.dtype))

        given, other = [whole(x) for x in arrays], whole(arrays[at])
        both = [*given[:at], given[at] + other, *given[at + 1 :]]
        apart = [*given[:at], other, *given[at + 1 :]]
        one, two, three = (results(op, tuple(xs))[0].astype(float) for xs in (given, apart, both))
        return bool(np.allclose(one + two, three, atol=1e-2))

    wanted, wraps = len(cls.operands) == 2, False
    for op, arrays in runs(cls):
        if arrays[0].dtype.itemsize == 2 and arrays[0].dtype.kind not in "iu":
            continue
        wanted = wanted and all(is_linear(op, arrays, i) for i in range(len(arrays)))
        result = results(op, arrays)[0].dtype
        wraps = wraps or (result.kind in "iu" and result == arrays[0].dtype)
    assert cls.contraction == (wanted and not wraps)


COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum} | {
    "or": np.logical_or,
    "and": np.logical_and,
}
REDUCING = [c for c in EVERY if issubclass(c, Reduce) and not issubclass(c, Composite)]


@pytest.mark.parametrize("cls", REDUCING, ids=[c.name for c in REDUCING])
def test_reductions_combine_elements_from_an_identity_on(cls: type[Reduce]) -> None:
    for op, (x,) in runs(cls):
        if x.dtype.itemsize == 2 and x.dtype.kind not in "iu":
            continue
        assert isinstance(op, Reduce) and cls.combine
        start = identity(cls.combine, as_dtype(x.dtype))
        found = x.astype(x.dtype)
        for axis in reversed(op.axes):
            found = COMBINE[cls.combine].reduce(found, axis, x.dtype, initial=start)
        (made,) = results(op, (x,))
        if cls is Mean:
            with np.errstate(all="ignore"):
                found = found / x.dtype.type(max(np.prod([x.shape[a] for a in op.axes]), 0))
        assert np.allclose(made.reshape(found.shape), found, equal_nan=True), str(op)


BOUNDED = [c for c in EVERY if c.selects == "first" or c.bounds is not Op.bounds]


@pytest.mark.parametrize("cls", BOUNDED, ids=[c.name for c in BOUNDED])
def test_integers_lie_within_their_bounds(cls: type[Op]) -> None:
    checked = 0
    for op, arrays in runs(cls):
        if any(not a.size for a in arrays):
            continue
        kinds = [dt.as_dtype(a.dtype) for a in arrays]
        types = [TensorType(d, a.shape) for d, a in zip(kinds, arrays, strict=True)]
        of = [
            (int(a.min()), int(a.max()) + 1) if d.is_integer else (0, 2)
            for d, a in zip(kinds, arrays, strict=True)
        ]
        for number, (made, type_) in enumerate(
            zip(results(op, arrays), op.infer(*types), strict=True)
        ):
            found = op.bounds(of, types, number) if type_.dtype.is_integer and made.size else None
            info = np.iinfo(made.dtype) if made.dtype.kind in "iu" else None
            if found is None or info is None or found[0] < info.min or found[1] > info.max + 1:
                continue  # It may have wrapped around, and says nothing then.
            checked += 1
            assert found[0] <= made.min() and made.max() < found[1], str(op)
    assert checked or not any(d.is_integer for d in cls.dtypes)


def channels_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


def laid_out(x: Array, rank: int) -> Array:
    if not rank:
        return x
    x = x.reshape((1,) * (rank - x.ndim) + x.shape)
    return np.ascontiguousarray(x.transpose(channels_last(rank)))


OF_MAPS: tuple[tuple[Op, tuple[tuple[int, ...], ...]], ...] = (
    (Argmax(2), ((2, 3, 4, 5),)),
    (Argmax(1, True), ((2, 3, 4),)),
    (Argmin(2), ((2, 3, 4),)),
    (Concat(1), ((2, 3, 4), (2, 1, 4))),
    (Pad(((0, 0), (1, 2), (0, 3), (0, 0)), "edge"), ((2, 3, 4, 5),)),
    (Reshape((2, 3, 4, 1, 5)), ((2, 3, 4, 5),)),
    (Roll((1, 2), (1, 2)), ((2, 3, 4),)),
    (Slice((0, 2, 1), (2, -1, 4), (1, -1, 2)), ((2, 3, 4),)),
    (SliceUpdate((0, 1, 0), (2, 2, 4), (1, 1, 1)), ((2, 3, 4), (2, 1, 4))),
    (Add(), ((2, 3, 4, 5), (3, 1, 1))),
)
"""What samples have no operands of three axes for."""


def test_permuted_operands_give_permuted_results() -> None:
    tried = Counter[str]()
    given = [
        (op, tuple(np.random.default_rng(0).random(s, "float32") for s in shapes))
        for op, shapes in OF_MAPS
    ]
    samples = [
        r
        for cls in EVERY
        if cls.n_outputs == 1 and cls.permuted is not Op.permuted
        for r in runs(cls)
    ]
    for op, arrays in (*given, *samples):
        types = [TensorType(dt.as_dtype(a.dtype), a.shape) for a in arrays]
        if all(t.ndim < 3 for t in types):
            continue
        (result,) = op.infer(*types)
        found = op.permuted(types, result, channels_last)
        if found is None:
            continue
        tried[op.name] += 1
        operands = tuple(laid_out(a, r) for a, r in zip(arrays, found.operands, strict=True))
        (made,), (wanted,) = results(found.op, operands), results(op, arrays)
        order = channels_last(wanted.ndim) if found.held else tuple(range(wanted.ndim))
        assert_close(made, wanted.transpose(order))
    able = {c for c in EVERY if c.permuted not in (Op.permuted, Elementwise.permuted)}
    assert {c.name for c in able} - {"full"} <= tried.keys() and len(tried) > 90


def assert_close(made: Array, wanted: Array) -> None:
    assert made.shape == wanted.shape
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            made.astype(np.complex128), wanted.astype(np.complex128), rtol=1e-2, atol=1e-5
        )
