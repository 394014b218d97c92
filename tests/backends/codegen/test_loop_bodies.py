"""Fused bodies as loop nests: what a training step is made of, at sizes that fit no vector."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.ops.activation import Gelu
from treadle.ops.batch_norm import BatchNormTrain
from treadle.ops.fused import Fused
from treadle.ops.gather import OneHot, Take
from treadle.ops.gather_along import TakeAlongAxis
from treadle.ops.loss import SoftmaxCrossEntropy
from treadle.ops.movement import Concat, Flip, Roll
from treadle.ops.norm import GroupNorm, LayerNorm, Standardize, StandardizeGrad
from treadle.ops.reduce import Max, Mean, Min, Prod, Sum
from treadle.ops.select import Where
from treadle.ops.slicing import Pad, Slice
from treadle.ops.softmax import LogSoftmax, Softmax
from treadle.ops.update import AdamUpdate

SIZES = (1, 7, 8, 9, 17, 1000)
F32, I32 = dt.float32, dt.int32


def drawn(shape: Sequence[int], dtype: DType = F32, seed: int = 0) -> Array:
    rng = np.random.default_rng([seed, *shape])
    if dtype.is_integer:
        return rng.integers(0, 5, tuple(shape)).astype(dtype.numpy)
    if dtype is dt.bool_:
        return rng.random(tuple(shape)) < 0.5
    return rng.uniform(-2, 2, tuple(shape)).astype(dtype.numpy)


def fused(body: Callable[..., Any], arrays: Sequence[Array]) -> Fused:
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    return Fused("loop", trace_body(body, types))


def compare(body: Callable[..., Any], *arrays: Array, launches: int = 1) -> None:
    """Native results are the reference's; other splits of the items give the same bits."""
    op = fused(body, arrays)
    assert len(irregular.lowered(op, arrays).launches) == launches
    irregular.against_reference(op, arrays, exact=False)


# -- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("op", [Softmax(1), LogSoftmax(1)], ids=str)
def test_softmax(op: Any, columns: int) -> None:
    compare(op, drawn((5, columns)))


def test_softmax_of_long_rows_is_computed_again_instead_of_kept() -> None:
    compare(Softmax(1), drawn((9, 20_000)))


def test_softmax_and_what_is_around_it() -> None:
    mask = drawn((1, 9, 9), dt.bool_)

    def body(x: Any, keep: Any) -> Any:
        return Softmax(2)(Where()(keep, x * 0.125, x.constant(float("-inf")))) + 1.0

    mask[:, :, 0] = True
    compare(body, drawn((6, 9, 9)), mask)


@pytest.mark.parametrize("columns", SIZES)
def test_layer_norm(columns: int) -> None:
    compare(LayerNorm(), drawn((4, columns)), drawn((columns,), seed=1), drawn((columns,), seed=2))


def test_layer_norm_of_two_axes() -> None:
    x, plane = drawn((5, 3, 7)), drawn((3, 7))
    compare(LayerNorm(2), x, plane, plane)


def backward(x: Any, weight: Any, dy: Any) -> Any:
    """What the gradient of a layer norm computes, parameters included."""
    y = Standardize((1,))(x)
    return StandardizeGrad((1,))(x, dy * weight), (dy * y).sum((0,)), dy.sum((0,))


@pytest.mark.parametrize("shape", [(5, 9), (64, 17), (700, 256)])
def test_layer_norm_backward_sums_columns_on_the_way(shape: tuple[int, int]) -> None:
    # float64, so that the order of a sum is seen in no digit that is compared.
    wide = dt.float64
    arrays = drawn(shape, wide), drawn(shape[1:], wide), drawn(shape, wide, 1)
    compare(backward, *arrays, launches=2)


@pytest.mark.parametrize("classes", [1, 7, 10, 17, 1000])
def test_cross_entropy(classes: int) -> None:
    labels = np.random.default_rng(0).integers(0, classes, 6).astype(np.int32)
    compare(SoftmaxCrossEntropy(), drawn((6, classes)), labels)


def test_group_norm_splits_the_channels() -> None:
    compare(GroupNorm(4), drawn((3, 8, 5)), drawn((8,)), drawn((8,), seed=1))


@pytest.mark.parametrize("shape", [(5, 3, 4, 5), (4, 17), (3, 1, 9)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    channels = shape[1:2]
    compare(BatchNormTrain().outputs, drawn(shape), drawn(channels), drawn(channels, seed=1))


def test_softmax_over_the_first_axis_keeps_vectors_along_the_last() -> None:
    compare(Softmax(0), drawn((6, 13)))
    compare(Softmax(1), drawn((3, 6, 13)))


@pytest.mark.parametrize("columns", [1, 12])
def test_few_rows_are_computed_stage_by_stage(columns: int) -> None:
    x = drawn((70_000, columns), dt.float64)
    compare(Standardize((0,)), x, launches=3)


# -- reductions ----------------------------------------------------------------------------------

AXES = [a for n in (1, 2, 3) for a in itertools.combinations(range(3), n)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_sums_over_any_axes(axes: tuple[int, ...]) -> None:
    compare(lambda x: (x * x).sum(axes), drawn((5, 9, 17)))
    compare(lambda x: x.sum(axes, keepdims=True) * 2.0, drawn((1, 3, 1)))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("op", [Max, Min, Prod])
def test_other_reductions_and_nan(op: Any, axes: tuple[int, ...]) -> None:
    x = drawn((9, 21))
    compare(op(axes), x)
    x[4, 3] = np.nan
    compare(op(axes), x)


@pytest.mark.parametrize("shape", [(300_001,), (100_003, 10), (3, 100_003), (20_000, 17)])
def test_large_reductions_are_divided(shape: tuple[int, ...]) -> None:
    axes = (0,) if len(shape) < 2 or shape[0] > shape[1] else (1,)
    # Whole numbers, which float32 adds exactly: NumPy's own sums of columns are coarse.
    x = np.rint(drawn(shape))
    compare(lambda x: x.sum(axes), x, launches=2)
    compare(lambda x: Max(axes)(x) - 1.0, x, launches=2)


def test_a_divided_mean_of_half_precision_rounds_once() -> None:
    compare(Mean((0,)), drawn((400_000,), dt.float16), launches=2)


@pytest.mark.parametrize("shape", [(33, 9), (40_000, 12), (500, 1024)])
def test_a_gradient_and_its_column_sums(shape: tuple[int, int]) -> None:
    def body(dy: Any, y: Any) -> Any:
        dx = Where()(y > 0, dy, dy.constant(0.0))
        return dx, dx.sum((0,))

    count = 1 if shape[0] == 33 else 2
    compare(body, np.rint(drawn(shape)), drawn(shape, seed=1), launches=count)


# -- movement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("dtype", [F32, dt.int8, dt.float64, dt.bfloat16], ids=str)
def test_transposes(order: tuple[int, ...], dtype: DType) -> None:
    compare(lambda x: x.transpose(order) + x.transpose(order), drawn((9, 19, 34), dtype))


def test_transposes_of_large_planes() -> None:
    compare(lambda x: x.transpose((1, 0)), drawn((67, 130)))
    compare(lambda x, y: x.transpose((1, 0)) * y, drawn((67, 130)), drawn((130, 67), seed=1))
    compare(lambda x: x.transpose((0, 2, 1)).astype(dt.float16), drawn((3, 33, 70)))


@pytest.mark.parametrize("channels", [2, 3, 4, 6])
def test_few_channels_go_last_and_first(channels: int) -> None:
    to_last, to_first = (0, 2, 3, 1), (0, 3, 1, 2)
    compare(lambda x: x.transpose(to_last) * 2.0 + 1.0, drawn((2, channels, 7, 21)))
    compare(lambda x: x.transpose(to_first) * 2.0 + 1.0, drawn((2, 7, 21, channels)))
    row = drawn((channels,), seed=1)
    compare(lambda x, row: x.transpose(to_last) * row, drawn((2, channels, 7, 21)), row)


def test_costly_work_on_transposed_squares() -> None:
    def body(x: Any, y: Any) -> Any:
        turned = Gelu()(x.transpose((1, 0)))
        return Gelu()(turned * y) * Gelu()(turned + y) + Gelu()(turned - y)

    compare(body, drawn((37, 66)), drawn((66, 37), seed=1))
    compare(body, drawn((32, 64)), drawn((64, 32), seed=1))


def test_heads_there_and_back() -> None:
    x = drawn((2, 5, 24))
    compare(lambda x: x.reshape((2, 5, 3, 8)).transpose((0, 2, 1, 3)), x)
    compare(lambda x: x.transpose((0, 2, 1, 3)).reshape((2, 5, 24)) * 2.0, drawn((2, 3, 5, 8)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pads(mode: Any) -> None:
    compare(lambda x: Pad(((1, 2), (3, 8)), mode, -1.5)(x * 2.0), drawn((5, 19)))


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_slices(step: int) -> None:
    start, stop = (1, 36) if step > 0 else (35, 2)
    compare(lambda x: Slice((0, start), (5, stop), (2, step))(x) + 1.0, drawn((5, 37)))


def test_flips_rolls_and_joins() -> None:
    x, y = drawn((5, 19)), drawn((5, 9), seed=1)
    compare(lambda x: Flip((0, 1))(x) * x, x)
    compare(lambda x: Roll((3, -2), (1, 0))(x) - x, x)
    compare(lambda x, y: Concat(1)(x, y, x) * 0.5, x, y)


def test_a_reshape_that_fits_no_axis() -> None:
    compare(lambda x: x.transpose((1, 0)).reshape((8, 3)) * 2.0, drawn((4, 6)))


PATTERNS = [(4, 9, 17), (9, 17), (17,), (1,), (), (4, 1, 17), (4, 9, 1), (1, 9, 1), (4, 1, 1)]


@pytest.mark.parametrize("shape", PATTERNS, ids=str)
def test_broadcasting(shape: tuple[int, ...]) -> None:
    compare(lambda x, y: x * y + y, drawn((4, 9, 17)), drawn(shape, seed=1))


def test_rows_taken_by_number() -> None:
    index = np.array([[3, 0, -1], [2, 2, 1]], np.int64)
    compare(lambda t, i, p: Take(0)(t, i) * 2.0 + p, drawn((4, 19)), index, drawn((3, 19)))


def test_one_element_per_row_taken() -> None:
    index = np.array([[3], [0], [-1]], np.int32)
    compare(lambda x, i: -TakeAlongAxis(1)(LogSoftmax(1)(x), i), drawn((3, 9)), index)


def test_one_hot_rows() -> None:
    index = np.array([3, 0, 9], np.int32)
    compare(lambda x, i: Softmax(1)(x) - OneHot(10)(i).astype(F32), drawn((3, 10)), index)


# -- elementwise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", SIZES)
def test_gelu_chain(columns: int) -> None:
    x, row = drawn((3, columns)), drawn((columns,), seed=1)
    compare(lambda x, w, b, r: Gelu()(x * w + b) + r, x, row, row, x)


@pytest.mark.parametrize("dtype", [F32, dt.float16, dt.bfloat16, dt.float64], ids=str)
def test_adam(dtype: DType) -> None:
    x, rate = drawn((33, 3), dtype), np.float32(0.1)
    arrays = x, drawn((33, 3), dtype, 1), drawn((33, 3), dtype, 2), np.abs(x)
    numbers = [np.asarray(v, np.float32) for v in (3.0, rate, 0.25)]
    compare(AdamUpdate().outputs, *arrays, *numbers)


@pytest.mark.parametrize("dtype", [dt.int8, dt.int64, dt.uint8, dt.bool_, dt.float64], ids=str)
def test_other_types(dtype: DType) -> None:
    x, y = drawn((5, 37), dtype), drawn((5, 37), dtype, 1)
    compare(lambda x, y: Where()(x.astype(dt.bool_), x, y).astype(F32) * 2.0, x, y)


def test_parts_that_have_nothing_in_common() -> None:
    compare(lambda x, y: (x + 1.0, y * 2.0), drawn((9, 5)), drawn((7,)), launches=2)


def test_results_may_lie_on_their_operands() -> None:
    x, y = drawn((33, 9)), drawn((33, 9), seed=1)
    op = fused(lambda x, y: (x * y, x - y), (x, y))
    assert set(irregular.lowered(op, (x, y)).in_place) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    results = irregular.run(op, (x, y), in_place=True)
    np.testing.assert_array_equal(results[1], x - y)
    moved = fused(lambda x: x.transpose((1, 0)) + x, (drawn((9, 9)),))
    assert irregular.lowered(moved, (drawn((9, 9)),)).in_place == ()


def test_quotients_by_what_no_sum_decides_are_rounded_once() -> None:
    """Times a reciprocal, what lies half a step away was rounded to another step."""
    x, y = drawn((9, 300)), np.abs(drawn((9, 1))) + 0.1
    y = y.astype(np.float32)
    op = fused(lambda x, y: x / (y + 1.0), (x, y))
    np.testing.assert_array_equal(irregular.run(op, (x, y))[0], x / (y + np.float32(1)))
    greatest = fused(lambda x: x / Max((1,), True)(x), (x,))
    np.testing.assert_array_equal(
        irregular.run(greatest, (x,))[0], x / x.max(axis=1, keepdims=True)
    )


@pytest.mark.parametrize("reduced", [Sum, Mean])
@pytest.mark.parametrize("scale", [1e-42, 1e-40, 3e-39, 1e-30, 1.0, 1e36])
def test_quotients_by_sums_of_any_size(reduced: type[Sum] | type[Mean], scale: float) -> None:
    """The inverse of a sum below 3e-39 is infinite, that of one beyond 1e38 has few digits."""
    x = (np.random.default_rng(0).random((3, 300)) * scale).astype(np.float32)
    op = fused(lambda x: x / reduced((1,), True)(x), (x,))
    wide = x.astype(np.float64)
    total = wide.sum(1, keepdims=True) if reduced is Sum else wide.mean(1, keepdims=True)
    total = total.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(irregular.run(op, (x,))[0], wide / total, rtol=1e-6)
