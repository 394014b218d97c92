"""Matrix products: every stride, batch, ragged extent and element type against NumPy."""

import itertools

import numpy as np
import pytest
from tests.backends.codegen.contractions import (
    check,
    fused,
    interpreted,
    lowered,
    run,
    types_of,
    values,
)
from tests.backends.codegen.execution import object_code
from tests.backends.codegen.irregular import HOST

from treadle.backends.api import Support
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX512, NEON, TARGETS
from treadle.base import dtype as dt
from treadle.ops.activation import Gelu
from treadle.ops.conv import Conv, ConvGradInput
from treadle.ops.elementwise import Cast
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.movement import Flip, Reshape, Transpose
from treadle.ops.slicing import Slice
from treadle.ops.unary import Relu

FLAGS = list(itertools.product((False, True), repeat=2))


def operands(op, m, k, n, dtype=dt.float32, other=None, batch=((), ())):
    rng = np.random.default_rng(m * 1000003 + k * 1009 + n)
    x = (*batch[0], *((k, m) if op.transpose_x else (m, k)))
    y = (*batch[1], *((n, k) if op.transpose_y else (k, n)))
    return values(rng, x, dtype), values(rng, y, other or dtype)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("dtype", dt.FLOATS, ids=str)
def test_ragged_extents(flags, dtype):
    op = Matmul(*flags)
    for m, k, n in (
        (1, 1, 1),
        (1, 5, 33),
        (2, 7, 13),
        (5, 31, 17),
        (7, 33, 1),
        (13, 97, 31),
        (33, 13, 97),
        (97, 201, 65),
        (12, 300, 16),
    ):
        check(op, operands(op, m, k, n, dtype), k)


NARROW = [dt.bfloat16, dt.float16, dt.int8, dt.uint8]


def narrowed(x, dtype):
    scaled = np.abs(x * 40) if dtype is dt.uint8 else x * 40 if dtype is dt.int8 else x
    return scaled.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_narrow_operand_is_read_where_it_lies(dtype):
    """Products of float32 are as exact as if the operand had been widened before."""
    op = Matmul(False, True)
    for m, k, n in ((1, 8, 9), (2, 100, 33), (6, 65, 40), (7, 64, 40), (130, 300, 70)):
        for narrow in range(2):
            given = list(operands(op, m, k, n))
            given[narrow] = narrowed(given[narrow], dtype)

            def body(*made, narrow=narrow):
                wide = Cast(dt.float32)(made[narrow])
                return op(*(wide if i == narrow else x for i, x in enumerate(made)))

            group = fused(body, given)
            (got,) = run(group, given, interpreted if m in (2, 7) else None)
            exact = given[0].astype(np.float64) @ given[1].astype(np.float64).T
            scale = 40 if dtype.is_integer else 1
            np.testing.assert_allclose(got, exact, 0, 1e-5 * scale * k**0.5)
            last = lowered(group, given).launches[-1]
            assert last.kernel.name.startswith("dots" if m <= 6 else "contract")


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_many_rows_are_what_they_are_of_a_widened_operand(flags, dtype):
    """In any order of the operands, in batches that share one; a frozen one is kept nowhere."""
    op, wide = Matmul(*flags), Cast(dt.float32)
    batches = ((), ()), ((3,), ()), ((2,), (2,))
    for (m, k, n), batch in zip(((9, 70, 21), (64, 130, 90), (65, 33, 17)), batches, strict=True):
        x, w = operands(op, m, k, n, batch=batch)
        for narrow in range(2):
            given = [x, w]
            given[narrow] = narrowed(given[narrow], dtype)
            exact = list(given)
            exact[narrow] = given[narrow].astype(np.float32)

            def body(*made, narrow=narrow):
                return op(*(wide(v) if i == narrow else v for i, v in enumerate(made)))

            group = fused(body, given)
            kept = lowered(group, given, (False, True)).kept
            assert bool(kept) == (narrow == 0)
            (got,) = run(group, given)
            (want,) = run(op, exact)
            np.testing.assert_allclose(got, want, 1e-5, 1e-4 * np.abs(want).max())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_few_rows_read_a_narrow_operand_through_moves(dtype):
    """A weight that is transposed, before or behind its cast, and a stack of them."""
    m, k, n = 3, 70, 21
    x, w = operands(Matmul(False, True), m, k, n, batch=((2,), (2,)))
    w = narrowed(w, dtype)
    exact = x.astype(np.float64) @ w.astype(np.float64).swapaxes(-1, -2)
    scale = 40 if dtype.is_integer else 1
    turn, wide = Transpose((0, 2, 1)), Cast(dt.float32)
    for moved in (
        lambda w: wide(turn(w)),
        lambda w: turn(wide(w)),
        lambda w: turn(wide(turn(turn(w)))),
    ):
        group = fused(lambda x, w, moved=moved: Relu()(Matmul()(x, moved(w))), (x, w))
        (got,) = run(group, (x, w))
        np.testing.assert_allclose(got, np.maximum(exact, 0), 0, 1e-5 * scale * k**0.5)
        (launch,) = lowered(group, (x, w)).launches
        assert launch.kernel.name.startswith("dots")


def test_operands_of_two_narrow_types():
    """Bytes beside 16-bit floats are read as they are; of two in bytes one is widened before."""
    op, wide = Matmul(False, True), Cast(dt.float32)
    for first, second in itertools.permutations(NARROW, 2):
        x, w = operands(op, 4, 90, 30)
        given = narrowed(x, first), narrowed(w, second)
        group = fused(lambda x, w: op(wide(x), wide(w)), given)
        found = lower(group, types_of(given), (), HOST)
        if first.is_integer and second.is_integer:
            assert isinstance(found, Support)
            continue
        (got,) = run(group, given)
        exact = given[0].astype(np.float64) @ given[1].astype(np.float64).T
        np.testing.assert_allclose(got, exact, 0, 4e-3)


@pytest.mark.parametrize("flags", FLAGS)
def test_larger_extents(flags):
    op = Matmul(*flags)
    for m, k, n in ((201, 129, 333), (66, 2600, 50), (1, 1000, 300), (3, 33001, 9), (400, 64, 9)):
        check(op, operands(op, m, k, n), k)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(
    "batch",
    [((3,), (3,)), ((2, 3), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((2, 3, 2), (3, 1))],
    ids=str,
)
def test_batches_broadcast(flags, batch):
    op = Matmul(*flags)
    for m, k, n in ((5, 9, 17), (1, 12, 7), (14, 200, 20)):
        check(op, operands(op, m, k, n, batch=batch), k)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("types", list(itertools.product((dt.int8, dt.uint8), repeat=2)), ids=str)
def test_integers_are_exact(flags, types):
    op = IntMatmul(*flags)
    for m, k, n in ((1, 3, 5), (7, 300, 17), (13, 1, 31), (2, 1025, 40)):
        check(op, operands(op, m, k, n, *types), k)


def test_largest_integer_sums():
    for low, high in ((255, 255), (0, 255)):
        x = np.full((7, 1000), high, np.uint8)
        y = np.full((1000, 18), low, np.uint8)
        check(IntMatmul(), (x, y), 1000)
    x, y = np.full((7, 1000), -128, np.int8), np.full((1000, 18), -128, np.int8)
    check(IntMatmul(), (x, y), 1000)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float64], ids=str)
def test_every_access_stays_inside(flags, dtype):
    op = Matmul(*flags)
    for m, k, n in ((2, 9, 3), (7, 10, 18), (1, 17, 5)):
        check(op, operands(op, m, k, n, dtype), k, runner=interpreted)


def test_integer_access_stays_inside():
    op = IntMatmul(False, True)
    check(op, operands(op, 3, 9, 17, dt.int8, dt.uint8), 9, runner=interpreted)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.float64], ids=str)
def test_frozen_matrices_are_packed_once(dtype):
    for flags in FLAGS:
        op = Matmul(*flags)
        for m, k, n in ((9, 20, 33), (40, 1500, 17), (1, 30, 50)):
            arrays = operands(op, m, k, n, dtype, batch=((2,), ()))
            found = check(op, arrays, k, frozen=(False, True))
            (plain,) = check(op, arrays, k)
            np.testing.assert_array_equal(found[0], plain)
    how = lowered(Matmul(), operands(Matmul(), 9, 20, 33), (False, True))
    assert how.prelude and how.kept


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_one_kernel_per_tile_serves_every_shape(target):
    kernels, tiles = set(), 1 + (target.registers == 32)
    op = Matmul(False, True)
    for m, k, n in ((16, 20, 33), (50, 700, 70), (128, 64, 256), (96, 33, 129), (40, 90, 512)):
        how = lowered(op, operands(op, m, k, n), target=target)
        kernels |= {launch.kernel for launch in how.launches}
    assert len(kernels) == tiles


def test_strided_operands_need_no_copy():
    rng = np.random.default_rng(5)
    x, y = values(rng, (2, 5, 12), dt.float32), values(rng, (2, 5, 12), dt.float32)

    def heads(v):
        (split,) = v.apply(Reshape((2, 5, 3, 4)), (v,))
        return split.apply(Transpose((0, 2, 1, 3)), (split,))[0]

    def scores(x, y):
        return x.apply(Matmul(False, True), (heads(x), heads(y)))[0]

    op = fused(scores, (x, y))
    assert len(lowered(op, (x, y)).launches) == 1
    check(op, (x, y), 4)


def test_steps_and_flips():
    rng = np.random.default_rng(6)
    x, y = values(rng, (30, 21), dt.float32), values(rng, (21, 18), dt.float32)

    def body(x, y):
        (every_other,) = x.apply(Slice((1, 0), (30, 21), (2, 3)), (x,))
        (flipped,) = x.apply(Flip((0,)), (y,))
        (part,) = x.apply(Slice((0, 17), (7, -1), (1, -2)), (flipped,))
        return x.apply(Matmul(), (every_other, part))[0]

    check(fused(body, (x, y)), (x, y), 7)


def other_cases():
    """Ops and operands that take every kind of kernel there is."""
    for flags in FLAGS:
        op = Matmul(*flags)
        for dtype in dt.FLOATS:
            for m, k, n in ((20, 30, 40), (1, 30, 40), (40, 5000, 33)):
                yield op, operands(op, m, k, n, dtype)
    for m in (1, 20):
        ints = IntMatmul(False, True)
        yield ints, operands(ints, m, 300, 20, dt.uint8, dt.int8)
    rng = np.random.default_rng(0)
    image, weight = values(rng, (2, 4, 9, 9), dt.float32), values(rng, (20, 4, 3, 3), dt.float32)
    yield Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1), (image, weight)
    yield ConvGradInput((2, 2), ((1, 1), (1, 1)), (1, 1), 1, (17, 17)), (image, weight[:4, :3])
    arrays = [*operands(Matmul(), 20, 30, 40), np.ones(40, np.float32)]
    yield fused(lambda x, w, b: x.apply(Gelu(), (x @ w + b,))[0], arrays), arrays


@pytest.mark.parametrize("target", [AVX512, NEON], ids=lambda t: t.name)
def test_kernels_of_other_targets_are_code(target):
    kernels = []
    for op, arrays in other_cases():
        how = lowered(op, arrays, target=target)
        kernels += [launch.kernel for launch in how.launches]
    assert object_code(list(dict.fromkeys(kernels)), target)
