"""Attention over caches, and writing them, as kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.execution import object_code
from tests.backends.codegen.irregular import (
    FAMILIES,
    check_op,
    interpreted,
    one_by_one,
    run,
    runner_of,
)
from tests.backends.codegen.test_pairs import TARGETS as PAIRS_OF_TERMS
from tests.backends.codegen.test_pairs import runner as runner_of_pairs

from treadle.backends.codegen.attention.cached import CachedConfig, cached_kernel
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX2, AVX512, Target
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.ops.cache import CachedAttention, CacheUpdate

CASES: tuple[tuple[Any, ...], ...] = (
    # Steps, query heads, heads of keys, capacity, D, E, window, softcap, sinks.
    (1, 14, 2, 150, 64, 64, None, None, False),
    (1, 1, 1, 3, 1, 1, None, None, False),
    (3, 6, 2, 40, 20, 36, None, 5.0, True),
    (5, 4, 4, 300, 16, 33, 7, None, True),
    (33, 8, 2, 290, 32, 16, 130, None, False),
    (70, 3, 1, 140, 40, 24, None, 30.0, False),
    (2, 4, 2, 20, 140, 130, 1, None, False),
)


def case(
    number: int, dtype: DType, kept: DType, seed: int = 0, cases: Any = CASES
) -> tuple[CachedAttention, list[Array]]:
    """An op and operands: a full, a new and an idle sequence, padding, NaN where nothing is."""
    time, heads, shared, capacity, d, e, window, softcap, sinks = cases[number]
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(3, heads, time, d)).astype(dtype.numpy)
    k, v = (rng.normal(size=(4, shared, capacity, n)).astype(kept.numpy) for n in (d, e))
    late = capacity - time
    starts = np.array([late, 0, min(2, late)], np.int32)
    ends = np.array([capacity, (time + 1) // 2, min(2, late)], np.int32)
    rows = np.array([2, 0, 3], np.int32)
    for b, row in enumerate(rows):
        k[row, :, ends[b] :], v[row, :, ends[b] :] = np.nan, np.nan
    k[1], v[1] = np.nan, np.nan
    more = [rng.normal(size=heads).astype(dtype.numpy)] if sinks else []
    op = CachedAttention(None if number % 2 else 0.2, window, softcap)
    return op, [q, k, v, starts, ends, rows, *more]


def as_bytes(arrays: list[Array]) -> list[Array]:
    """The same with caches of int8 and scales of their rows."""
    q, k, v, starts, ends, rows, *sinks = arrays
    scales = [np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30) / 127 for x in (k, v)]
    with np.errstate(invalid="ignore"):
        kept = [np.rint(x / s).astype(np.int8) for x, s in zip((k, v), scales, strict=True)]
    scales = [s.astype(np.float32) for s in scales]
    return [q, *kept, starts, ends, rows, *scales, *sinks]


def agrees(op: CachedAttention, arrays: list[Array], tolerance: float, **options: Any) -> None:
    (got,) = run(op, arrays, **options)
    want = op.reference(*arrays).astype(np.float64)
    assert np.isfinite(want).all()
    np.testing.assert_allclose(got.astype(np.float64), want, tolerance, tolerance)


@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_case(number: int, target: Target) -> None:
    op, arrays = case(number, dt.float32, dt.float32)
    if target is not AVX2 and number > 4:
        return
    agrees(op, arrays, 2e-5, runner=runner_of(target), split=one_by_one, target=target)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_nothing_outside_is_touched(number: int) -> None:
    op, arrays = case(number, dt.float32, dt.float32)
    for target in (AVX2, AVX512):
        agrees(op, arrays, 2e-5, runner=interpreted, target=target)


@pytest.mark.parametrize(
    ("dtype", "kept", "tolerance"),
    [
        (dt.float32, dt.bfloat16, 2e-5),
        (dt.bfloat16, dt.bfloat16, 2e-2),
        (dt.float16, dt.float16, 3e-3),
        (dt.float64, dt.float64, 1e-12),
    ],
    ids=str,
)
def test_element_types(dtype: DType, kept: DType, tolerance: float) -> None:
    for number in (0, 2, 4):
        agrees(*case(number, dtype, kept, 1), tolerance)


@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_bytes_with_scales(number: int, target: Target) -> None:
    op, arrays = case(number, dt.float32, dt.float32, 2)
    given, options = as_bytes(arrays), {"runner": runner_of(target), "target": target}
    agrees(op, given, 2e-5, split=one_by_one, **options)
    if number in (1, 2):
        agrees(op, given, 2e-5, runner=interpreted, target=target)


def test_bytes_are_near_floats() -> None:
    for number in (0, 4):
        op, arrays = case(number, dt.float32, dt.float32, 3)
        (got,) = run(op, as_bytes(arrays))
        assert np.abs(got - op.reference(*arrays)).max() < 0.02


def test_random_calls() -> None:
    """Lengths, windows and groups; every split gives the same bits."""
    rng = np.random.default_rng(3)
    for turn in range(25):
        time, shared, group = (int(rng.integers(1, n)) for n in (9, 4, 6))
        capacity = time + int(rng.integers(0, 200))
        q = rng.normal(size=(2, shared * group, time, 24)).astype(np.float32)
        k, v = (rng.normal(size=(2, shared, capacity, 24)).astype(np.float32) for _ in "kv")
        starts = rng.integers(0, capacity - time + 1, 2)
        ends = starts + rng.integers(0, time + 1, 2)
        window = int(rng.integers(1, 150)) if turn % 2 else None
        op, arrays = CachedAttention(window=window), [q, k, v, starts, ends, np.array([1, 0])]
        agrees(op, arrays, 2e-5)
        (one,), (other,) = run(op, arrays), run(op, arrays, split=one_by_one)
        assert one.tobytes() == other.tobytes()


def test_scores_beyond_range_do_not_spoil_sums() -> None:
    op, arrays = case(0, dt.float32, dt.float32)
    arrays[0] *= 300
    agrees(op, arrays, 1e-4)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
def test_nothing_is_multiplied_in_parts(target: Target) -> None:
    """Products and sums are vector multiply-adds, whose code the target has."""
    places = (dt.int32,) * 3
    spec = CachedConfig(
        dt.float32, dt.bfloat16, 64, 64, 0.125, None, None, False, None, None, places, target
    )
    assert object_code([cached_kernel(spec).kernel], target)


def test_updates_write_what_the_reference_writes() -> None:
    check_op(CacheUpdate)


def test_updates_in_place_touch_only_new_positions() -> None:
    rng = np.random.default_rng(5)
    kept = rng.normal(size=(4, 3, 9, 5)).astype(np.float32)
    x = rng.normal(size=(3, 3, 4, 5)).astype(np.float32)
    starts, ends = np.array([0, 7, 5], np.int32), np.array([4, 9, 5], np.int32)
    arrays = [kept, x, starts, ends, np.array([3, 0, 1], np.int64)]
    (got,) = run(CacheUpdate(), arrays, in_place=True, split=one_by_one)
    np.testing.assert_array_equal(got, CacheUpdate().reference(*arrays))
    changed = np.unique(np.argwhere(got != kept)[:, [0, 2]], axis=0)
    wanted = [[0, 7], [0, 8], [3, 0], [3, 1], [3, 2], [3, 3]]
    assert changed.tolist() == wanted


PAIRED = (
    # As in `CASES`; features fill steps of 32.
    (33, 4, 2, 290, 32, 32, None, None, False),
    (70, 3, 1, 140, 64, 96, None, 30.0, True),
    (40, 2, 2, 300, 64, 32, 70, None, False),
    (16, 4, 2, 50, 128, 64, 3, 5.0, True),
)


@pytest.mark.parametrize("target", PAIRS_OF_TERMS, ids=lambda t: t.name)
@pytest.mark.parametrize("number", range(len(PAIRED)))
def test_many_queries_in_bfloat16(number: int, target: Target) -> None:
    """Instructions that multiply bfloat16 round operands; others compute as ever."""
    for kept in (dt.float32, dt.bfloat16, dt.int8):
        floats = dt.float32 if kept is dt.int8 else kept
        op, arrays = case(number, dt.float32, floats, cases=PAIRED)
        arrays = as_bytes(arrays) if kept is dt.int8 else arrays
        op = CachedAttention(op.scale, op.window, op.softcap, True)
        (got,) = run(op, arrays, runner_of_pairs(target), one_by_one, target)
        want = op.reference(*arrays)
        assert np.isfinite(got).all()
        apart = np.abs(got - want).max() / np.abs(want).max()
        assert 1e-6 < apart < 2e-2
        types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
        names = [launch.kernel.name for launch in lower(op, types, (), target).launches]
        assert names == ["words_of_cache", "cached_attention_pairs"]


def test_queries_in_other_pieces_have_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    q = rng.normal(size=(1, 4, 80, 32)).astype(np.float32)
    k, v = (rng.normal(size=(1, 2, 300, 32)).astype(np.float32) for _ in range(2))
    op = CachedAttention(rounded=True)
    row, target = np.zeros(1, np.int32), PAIRS_OF_TERMS[-1]

    def read(first: int, last: int, start: int) -> Array:
        ends = np.array([start + last], np.int32)
        operands = [q[:, :, first:last], k, v, row + start + first, ends, row]
        (y,) = run(op, operands, runner_of_pairs(target), target=target)
        return y

    whole = read(0, 80, 200)
    for first, last in ((0, 33), (33, 80), (64, 80)):
        np.testing.assert_array_equal(read(first, last, 200), whole[:, :, first:last])


def test_few_queries_and_other_processors_are_exact() -> None:
    for target, number in ((AVX2, 0), (AVX512, 0)):
        op, arrays = case(number, dt.float32, dt.float32, cases=PAIRED)
        (got,) = run(
            CachedAttention(op.scale, rounded=True), arrays, runner_of(target), target=target
        )
        (exact,) = run(op, arrays, runner_of(target), target=target)
        np.testing.assert_array_equal(got, exact)


def in_ring(x: Array, ends: Array, rows: Array, slots: int) -> Array:
    """What a ring has of sequences that lie in a cache: their last positions, else NaN."""
    made = np.full((*x.shape[:2], slots, x.shape[3]), np.nan, x.dtype)
    for end, row in zip(ends, rows, strict=True):
        held = np.arange(max(end - slots, 0), end)
        made[row][:, held % slots] = x[row][:, held]
    return made


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
def test_rings(target: Target) -> None:
    """A ring gives what a cache of all positions does, wherever it begins; NaN where nothing is."""
    rng = np.random.default_rng(5)
    for turn in range(12):
        time, group, window = (int(rng.integers(1, n)) for n in (9, 4, 150))
        slots = window + time - 1 + int(rng.integers(0, 40)) * (turn % 2)
        starts = rng.integers(0, 600, 2)
        starts[0] = turn  # before its first turn
        ends = starts + rng.integers(0, time + 1, 2)
        rows, far = np.array([1, 0]), 620
        q = rng.normal(size=(2, 2 * group, time, 24)).astype(np.float32)
        k, v = (rng.normal(size=(2, 2, far, 24)).astype(np.float32) for _ in "kv")
        whole = CachedAttention(window=window).reference(q, k, v, starts, ends, rows)
        kept = [in_ring(x, ends, rows, slots) for x in (k, v)]
        op = CachedAttention(window=window, ring=True)
        np.testing.assert_allclose(op.reference(q, *kept, starts, ends, rows), whole, 1e-5, 1e-5)
        arrays = [q, *kept, starts, ends, rows]
        for given in (arrays, as_bytes(arrays)):
            agrees(op, given, 2e-5, target=target, runner=runner_of(target))


def test_rings_are_written_where_positions_fall() -> None:
    rng = np.random.default_rng(6)
    for _ in range(8):
        slots, time = int(rng.integers(6, 20)), int(rng.integers(1, 7))
        kept = rng.normal(size=(3, 2, slots, 5)).astype(np.float32)
        x = rng.normal(size=(2, 2, time, 5)).astype(np.float32)
        starts = rng.integers(0, 100, 2)
        ends = starts + rng.integers(0, time + 1, 2)
        op, arrays = CacheUpdate(ring=True), [kept, x, starts, ends, np.array([2, 0])]
        for options in ({"in_place": True}, {"runner": interpreted}):
            (got,) = run(op, arrays, **options)
            np.testing.assert_array_equal(got, op.reference(*arrays))


@pytest.mark.parametrize("window", [None, 3, 37, 150])
def test_a_query_is_the_same_in_any_company(window: int | None) -> None:
    """Read alone or with others, in whichever piece of a text: the same bits."""
    rng = np.random.default_rng(7)
    q = rng.normal(size=(1, 6, 40, 24)).astype(np.float32)
    k, v = (rng.normal(size=(1, 2, 400, 24)).astype(np.float32) for _ in "kv")
    op, rows = CachedAttention(window=window), np.array([0])

    def read(first: int, count: int, form: Callable[[list[Array]], list[Array]]) -> Array:
        at = np.array([300 + first])
        (y,) = run(op, form([q[:, :, first : first + count], k, v, at, at + count, rows]))
        return y

    for form in (list, as_bytes):
        whole = read(0, 40, form)
        for first, count in ((0, 1), (7, 1), (3, 8), (13, 20), (39, 1)):
            part = whole[:, :, first : first + count]
            assert read(first, count, form).tobytes() == part.tobytes()


def in_pages(
    rng: np.random.Generator, rows: Array, kept: list[Array], ends: Array
) -> tuple[Array, list[Array]]:
    """A table, and caches cut into pages of 128 in any order; NaN where no sequence has anything.

    Sequences share the pages that are equal in all caches.
    """
    count = -(-kept[0].shape[2] // 128)
    pools: list[list[Array]] = [[] for _ in kept]
    table, known = np.zeros((len(rows), count), np.int32), dict[bytes, int]()
    for b, i in rng.permutation([(b, i) for b in range(len(rows)) for i in range(count)]):
        if i * 128 >= ends[b]:
            continue
        pages = []
        for x in kept:
            line = x[rows[b]][:, i * 128 : (i + 1) * 128]
            page = np.full((line.shape[0], 128, x.shape[3]), np.nan).astype(x.dtype)
            page[:, : line.shape[1]] = line
            pages.append(page)
        key = b"".join(page.tobytes() for page in pages)
        if key not in known:
            known[key] = len(pools[0])
            for pool, page in zip(pools, pages, strict=True):
                pool.append(page)
        table[b, i] = known[key]
    return table, [np.concatenate(pool, 1)[None] for pool in pools]


@pytest.mark.filterwarnings("ignore:invalid value")  # NaN as an integer
@pytest.mark.parametrize("kept", [dt.float32, dt.bfloat16, dt.int8], ids=str)
@pytest.mark.parametrize("rounded", [False, True])
def test_pages_have_the_bits_of_rows(kept: DType, rounded: bool) -> None:
    """Whichever the order of pages, and where two sequences begin with the same one."""
    floats = dt.float32 if kept is dt.int8 else kept
    rng = np.random.default_rng(8)
    few, many = ((0, AVX2), (0, AVX512), (3, AVX2), (4, AVX512)), PAIRS_OF_TERMS[-1]
    for number, target in ((1, many), (2, many)) if rounded else few:
        cases = PAIRED if rounded else CASES
        op, arrays = case(number, dt.float32, floats, 4, cases)
        for x in arrays[1:3]:
            x[0, :, :128] = x[2, :, :128]  # Also what lies behind the end.
        arrays = as_bytes(arrays) if kept is dt.int8 else arrays
        op = CachedAttention(op.scale, op.window, op.softcap, rounded)
        runner = runner_of_pairs(target) if rounded else runner_of(target)
        (want,) = run(op, arrays, runner, target=target)
        caches = [i for i in (1, 2, 6, 7) if i < 3 or kept is dt.int8]
        arrays[5], pools = in_pages(rng, arrays[5], [arrays[i] for i in caches], arrays[4])
        for i, pool in zip(caches, pools, strict=True):
            arrays[i] = pool
        op = CachedAttention(op.scale, op.window, op.softcap, rounded, page=128)
        (got,) = run(op, arrays, runner, one_by_one, target)
        assert got.tobytes() == want.tobytes()
        with np.errstate(all="ignore"):
            near = op.reference(*arrays).astype(np.float64)
        np.testing.assert_allclose(got, near, 2e-2 if rounded else 2e-5, 2e-2 if rounded else 2e-5)


def test_pages_of_other_sizes_are_left_to_the_body() -> None:
    places = [TensorType(dt.int32, shape) for shape in ((1,), (1,), (1, 3))]
    q, kept = TensorType(dt.float32, (1, 2, 1, 8)), TensorType(dt.float32, (1, 1, 400, 8))
    answer = lower(CachedAttention(page=100), [q, kept, kept, *places], (), AVX512)
    assert "multiple of 128" in str(answer)


def test_pages_are_written_where_positions_fall() -> None:
    """In place, and nothing else: also where tokens of a row lie in several pages."""
    rng = np.random.default_rng(9)
    for turn in range(12):
        size, pages, time = (int(rng.integers(1, n)) for n in (9, 6, 20))
        count = 2 * pages + 3
        kept = rng.normal(size=(1, 2, count * size, 5)).astype(np.float32)
        x = rng.normal(size=(2, 2, time, 5)).astype(np.float32)
        table = rng.permutation(count)[: 2 * pages].reshape(2, pages)
        starts = rng.integers(0, size * pages + 1, 2)
        ends = np.minimum(starts + rng.integers(0, time + 1, 2), size * pages)
        op, arrays = CacheUpdate(page=size), [kept, x, starts, ends, table]
        want = kept.copy()
        for b in range(2):
            for p in range(starts[b], ends[b]):
                want[0, :, table[b, p // size] * size + p % size] = x[b, :, p - starts[b]]
        np.testing.assert_array_equal(op.reference(*arrays), want)
        for options in ({"in_place": True}, {"in_place": True, "split": one_by_one}):
            (got,) = run(op, arrays, **options)
            np.testing.assert_array_equal(got, want)
        if turn < 4:
            (got,) = run(op, arrays, runner=interpreted)
            np.testing.assert_array_equal(got, want)
