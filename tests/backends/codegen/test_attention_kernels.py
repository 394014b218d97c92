"""Attention and its gradient as kernels, against the oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import object_code
from tests.backends.codegen.irregular import interpreted, one_by_one, run

from treadle.backends.api import Support
from treadle.backends.codegen.attention.lower_attention import lower_attention
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, Target
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.op import Op, as_tuple

RNG = np.random.default_rng(0)
TOLERANCE = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5, "float64": 1e-12}
TINY = ((1, 1, 1, 1), (1, 3, 2, 3), (3, 1, 9, 1), (7, 5, 3, 17), (13, 18, 8, 4))
"""Extents (T, S, D, E) that the interpreter runs through."""
EXTENTS = (
    (1, 130, 32, 32),
    (2, 300, 17, 64),
    (8, 32, 64, 300),
    (17, 64, 300, 8),
    (64, 17, 130, 32),
    (128, 128, 32, 32),
    (130, 300, 64, 64),
    (300, 130, 32, 17),
    (300, 300, 1, 3),
)


def normal(*shape: int, dtype: DType = dt.float32) -> Array:
    return RNG.normal(size=shape).astype(dtype.numpy)


def operands(
    extents: tuple[int, int, int, int], gradient: bool, dtype: DType = dt.float32
) -> list[Array]:
    """q, k, v and, for the gradient, dy, in a batch of two."""
    t, s, d, e = extents
    shapes = [(2, t, d), (2, s, d), (2, s, e), (2, t, e)]
    return [normal(*shape, dtype=dtype) for shape in shapes[: 3 + gradient]]


def attention(gradient: bool, causal: bool = False, scale: float | None = None) -> Op:
    return AttentionGrad(causal, scale) if gradient else Attention(causal, scale)


def close(got: Sequence[Array], expected: Sequence[Array]) -> None:
    """Equal up to the rounding of products, which grows with the largest element."""
    for x, y in zip(got, expected, strict=True):
        tolerance = TOLERANCE[as_dtype(x.dtype).name]
        wide = y.astype(np.float64)
        size = max(1.0, float(np.max(np.abs(wide), initial=0, where=np.isfinite(wide))))
        np.testing.assert_allclose(x.astype(np.float64), wide, tolerance, tolerance * size)


def agrees(op: Op, arrays: Sequence[Array], **options: Any) -> None:
    with np.errstate(all="ignore"):
        expected = as_tuple(op.reference(*arrays))
    close(run(op, arrays, **options), expected)


both = pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])


@both
@pytest.mark.parametrize("number", range(len(EXTENTS)), ids=lambda i: str(EXTENTS[i]))
def test_every_extent(number: int, gradient: bool) -> None:
    """Every second one is causal, and of these every second one in the gradient alone."""
    causal = (number // 2 + gradient) % 2 == 1
    agrees(attention(gradient, causal), operands(EXTENTS[number], gradient))


@both
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("extents", TINY, ids=str)
def test_nothing_outside_is_touched(
    extents: tuple[int, int, int, int], causal: bool, gradient: bool
) -> None:
    mask = normal(extents[0], extents[1])
    arrays = [*operands(extents, gradient), mask]
    agrees(attention(gradient, causal), arrays, runner=interpreted, target=AVX2)


@both
@pytest.mark.parametrize("dtype", [dt.float64, dt.float16, dt.bfloat16], ids=str)
def test_every_element_type(dtype: DType, gradient: bool) -> None:
    arrays = operands((37, 50, 20, 12), gradient, dtype)
    agrees(attention(gradient, True), arrays)
    agrees(attention(gradient), [*arrays, normal(37, 50, dtype=dtype)])
    agrees(attention(gradient), operands((1, 50, 20, 12), gradient, dtype))


@both
@pytest.mark.parametrize("shape", [(37, 50), (50,), (37, 1), (2, 1, 50), (2, 37, 50)], ids=str)
@pytest.mark.parametrize("dtype", [dt.bool_, dt.float32], ids=str)
def test_masks_broadcast(shape: tuple[int, ...], dtype: DType, gradient: bool) -> None:
    if dtype is dt.bool_:
        mask = RNG.random(shape) < 0.7
        mask[..., 0] = True
    else:
        mask = normal(*shape)
    for queries in (37, 1):
        rows = mask[..., :queries, :] if mask.ndim > 1 and mask.shape[-2] > 1 else mask
        for causal in (False, True):
            arrays = operands((queries, 50, 16, 8), gradient)
            agrees(attention(gradient, causal, 0.5), [*arrays, rows])


def test_the_batch_broadcasts() -> None:
    q, k, v = normal(2, 1, 3, 9, 8), normal(4, 3, 20, 8), normal(20, 5)
    for queries in (9, 1):
        agrees(Attention(), [q[..., :queries, :], k, v])
        agrees(Attention(), [q[..., :queries, :], k, v, normal(4, 1, 1, 20)])


def test_the_gradient_of_a_broadcast_operand_is_refused() -> None:
    shapes = ((2, 9, 8), (9, 8), (9, 8), (2, 9, 8))
    types = tuple(TensorType(dt.float32, s) for s in shapes)
    refusal = lower_attention(AttentionGrad(), types, (False,) * 4, AVX2)
    assert isinstance(refusal, Support) and "sum over the batch" in refusal.message


@pytest.mark.parametrize("causal", [False, True])
def test_many_keys_are_taken_in_blocks(causal: bool) -> None:
    arrays = [normal(1, 140, 16), normal(1, 1100, 16), normal(1, 1100, 24)]
    agrees(Attention(causal), arrays)
    agrees(Attention(causal), [*arrays, normal(140, 1100) * 20])
    # Keys of the first block hidden: the running maximum starts at -inf.
    hidden = np.arange(1100) >= 1000
    agrees(Attention(), [*arrays, hidden])
    square = [normal(1, 1100, 16) for _ in range(3)]
    agrees(Attention(causal), square)


@both
@pytest.mark.parametrize("causal", [False, True])
def test_the_split_of_items_changes_no_bit(causal: bool, gradient: bool) -> None:
    for extents in ((130, 140, 32, 16), (1, 70, 32, 16)):
        arrays = operands(extents, gradient)
        together = run(attention(gradient, causal), arrays)
        apart = run(attention(gradient, causal), arrays, split=one_by_one)
        for x, y in zip(together, apart, strict=True):
            assert x.tobytes() == y.tobytes()


def test_the_number_of_items_changes_no_bit() -> None:
    """Small batches get smaller chunks of queries; each row is computed alike."""
    q, k, v = normal(40, 128, 16), normal(40, 128, 16), normal(40, 128, 16)
    (many,) = run(Attention(True), [q, k, v])
    (one,) = run(Attention(True), [q[:1], k[:1], v[:1]])
    assert many[0].tobytes() == one[0].tobytes()


@pytest.mark.parametrize("queries", [1, 20])
def test_a_query_that_sees_nothing_yields_nan(queries: int) -> None:
    arrays = [normal(queries, 4), normal(9, 4), normal(9, 3)]
    seen = np.ones((queries, 9), bool)
    seen[0] = False
    (y,) = run(Attention(), [*arrays, seen])
    assert np.isnan(y[0]).all() and np.isfinite(y[1:]).all()


@pytest.mark.parametrize("queries", [1, 20])
def test_scores_of_any_size_and_infinities(queries: int) -> None:
    q, k, v = normal(queries, 4) * 100, normal(9, 4) * 100, normal(9, 3)
    agrees(Attention(), [q, k, v])
    mask = normal(queries, 9)
    mask[:, ::2] = -math.inf
    agrees(Attention(), [q, k, v, mask])
    k[3] = math.inf
    agrees(Attention(), [np.abs(q), k, v])
    k[3] = math.nan
    agrees(Attention(), [q, k, v])
    # What a mask hides may be anything.
    hidden = np.arange(9) != 3
    (y,) = run(Attention(), [q, k, v, hidden])
    assert np.isfinite(y).all()


@both
@pytest.mark.parametrize("queries", [1, 20])
def test_a_row_of_the_lowest_number_hides_nothing(queries: int, gradient: bool) -> None:
    mask = np.zeros((queries, 9), np.float32)
    mask[0] = np.finfo(np.float32).min
    mask[1:, 4:] = np.finfo(np.float32).min
    agrees(attention(gradient), [*operands((queries, 9, 4, 3), gradient), mask])


def test_what_is_hidden_does_not_reach_the_gradient() -> None:
    q, k, v, dy = (normal(2, 20, 8) for _ in range(4))
    k[:, 15:] = math.nan
    hidden = np.arange(20) < 15
    dq, _, dv = run(AttentionGrad(), [q[:, :7], k, v, dy[:, :7], hidden])
    assert np.isfinite(dv).all() and dq.shape == (2, 7, 8)


def test_gradients_of_decided_queries_hold_no_subnormal_numbers() -> None:
    """Of weights near 0 and small gradients; processors take a hundred cycles for each of them."""
    q, k, v, dy = (
        RNG.normal(scale=scale, size=(1, 64, 64)).astype(np.float32) for scale in (6, 6, 1, 1e-9)
    )
    got = run(attention(True), (q, k, v, dy))
    want = as_tuple(attention(True).reference(q, k, v, dy))
    close([x * np.float32(1e9) for x in got], [y * np.float32(1e9) for y in want])
    for x in got:
        assert not ((x != 0) & (np.abs(x) < np.finfo(np.float32).tiny)).any()


def test_too_much_for_scratch_is_refused() -> None:
    def refused(op: Op, extents: tuple[int, int, int, int]) -> bool:
        t, s, d, e = extents
        shapes = [(t, d), (s, d), (s, e), (t, e)][: len(op.operands) - 1]
        types = tuple(TensorType(dt.float32, shape) for shape in shapes)
        found = lower_attention(op, types, (False,) * len(types), AVX2)  # type: ignore[arg-type]
        return isinstance(found, Support) and found.reason == "size-limit"

    assert refused(Attention(), (8, 8, 2048, 8))
    assert refused(AttentionGrad(), (8, 8, 8, 2048))
    assert refused(AttentionGrad(), (8, 20000, 64, 64))
    assert not refused(Attention(), (8, 20000, 64, 64))


@both
@pytest.mark.parametrize("target", [GENERIC, AVX2, AVX512, NEON], ids=lambda t: t.name)
def test_kernels_compile_for_every_target(target: Target, gradient: bool) -> None:
    for extents in ((64, 64, 32, 40), (1, 64, 32, 40)):
        types = [TensorType(dt.float32, a.shape) for a in operands(extents, gradient)]
        mask = TensorType(dt.bool_, (extents[0], 1))
        op: Any = attention(gradient, True)
        found = lower_attention(op, (*types, mask), (False,) * 5, target)
        assert not isinstance(found, Support)
        kernels = [launch.kernel for launch in found.launches]
        assert object_code(kernels, target)


@both
@pytest.mark.parametrize("target", [GENERIC, AVX512, NEON], ids=lambda t: t.name)
def test_schedules_of_other_targets(target: Target, gradient: bool) -> None:
    arrays = [*operands((11, 21, 5, 3), gradient), normal(11, 21)]
    agrees(attention(gradient, True), arrays, runner=interpreted, target=target)
