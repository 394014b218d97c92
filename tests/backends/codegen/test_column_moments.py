"""Statistics that convolutions leave beside their results."""

import numpy as np
import pytest
from tests.backends.codegen.channels_last import channels_last, last, moved, to_first, to_last
from tests.backends.codegen.contractions import (
    check,
    fused,
    interpreted,
    lowered,
    run,
    types_of,
    values,
)
from tests.backends.codegen.execution import assembly
from tests.backends.codegen.irregular import HOST

from treadle.backends.api import Support
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX2, AVX512, NEON
from treadle.base import dtype as dt
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.conv import Conv, IntConv
from treadle.ops.unary import Relu

# x, weight, stride, padding
LAYERS = [
    ((2, 5, 13, 11), (7, 5, 3, 3), 1, 1),
    ((3, 4, 23, 19), (40, 4, 3, 3), 2, 1),
    ((2, 16, 15, 9), (16, 16, 1, 1), 1, 0),
    ((4, 700, 5, 5), (33, 700, 1, 1), 1, 0),
    ((1, 520, 12, 10), (18, 520, 3, 3), 1, 1),
    ((2, 3, 30, 28), (64, 3, 7, 7), 2, 3),
]


def layer(x, weight, stride, padding, dtype=dt.float32, *, bias=None, rows=96):
    """A convolution that leaves its result and the statistics of its columns."""
    rng = np.random.default_rng(2)
    op = Conv((stride,) * 2, ((padding, padding),) * 2, (1, 1), 1)
    operands = [values(rng, x, dtype), values(rng, weight, dtype)]
    others = [] if bias is None else [np.full(weight[0], bias, dtype.numpy)]

    def after(y, *more):
        y = y + more[0] if more else y
        return (y, *ColumnMoments(rows).outputs(y))

    group, arrays = channels_last(op, *operands, others, after)
    return group, arrays, int(np.prod(weight[1:]))


@pytest.mark.parametrize("shape", LAYERS, ids=lambda s: f"{s[0]}-{s[1]}")
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_statistics_are_those_of_the_result(shape, dtype):
    """For every split of the items into runs, with the same bits."""
    group, arrays, terms = layer(*shape, dtype)
    y, means, squares = run(group, arrays)
    check_moments(y, means, squares, 96)
    exact = group.reference(*arrays)[0]
    np.testing.assert_allclose(y, exact, atol=1e-5 * terms if dtype is dt.float32 else 1e-11)
    check(group, arrays, terms * 96)


def check_moments(y, means, squares, rows):
    matrix = y.reshape(-1, y.shape[-1]).astype(np.longdouble)
    for i, (mean, square) in enumerate(zip(means, squares, strict=True)):
        block = matrix[i * rows : (i + 1) * rows]
        roundoff = np.finfo(y.dtype).eps
        limit = 16 * roundoff * np.abs(block).mean(0)
        assert (np.abs(mean - block.mean(0)) <= limit).all()
        exact = np.square(block - block.mean(0)).sum(0)
        # About a mean that is off by `limit`, squares are larger by its square for every row.
        assert (np.abs(square - exact) <= 64 * roundoff * exact + len(block) * limit**2).all()


@pytest.mark.parametrize("rows", [6, 50, 96])
def test_large_means_do_not_cancel(rows):
    group, arrays, _ = layer((2, 9, 20, 17), (24, 9, 3, 3), 1, 1, bias=1e4, rows=rows)
    y, means, squares = run(group, arrays)
    assert means.shape == (-(-2 * 20 * 17 // rows), 24)
    check_moments(y, means, squares, rows)


@pytest.mark.parametrize("target", [AVX2, AVX512, NEON], ids=lambda t: t.name)
def test_all_targets(target):
    group, arrays, terms = layer((1, 3, 9, 12), (21, 3, 3, 3), 1, 1, rows=40)
    check(group, arrays, terms * 40, runner=interpreted, target=target)
    for launch in lowered(group, arrays, target=target).launches:
        text = assembly([launch.kernel], target)
        assert text


def test_one_kernel_does_both():
    group, arrays, _ = layer((4, 32, 24, 24), (64, 32, 1, 1), 1, 0)
    plain, _ = channels_last(
        Conv((1, 1), ((0, 0),) * 2, (1, 1), 1), arrays[0].transpose(0, 3, 1, 2), arrays[1]
    )
    how, alone = lowered(group, arrays), lowered(plain, arrays)
    assert len(how.launches) == len(alone.launches)
    assert "moments" in how.launches[-1].kernel.name


def refused(group, arrays):
    how = lower(group, types_of(arrays), (), HOST)
    assert isinstance(how, Support) and not how
    return how.message


def test_what_is_refused():
    rng = np.random.default_rng(0)
    x, w = values(rng, (2, 8, 9, 9), dt.float32), values(rng, (16, 4, 3, 3), dt.float32)
    op = Conv((1, 1), ((1, 1),) * 2, (1, 1), 2)
    both = channels_last(op, x, w, (), lambda y: (y, *ColumnMoments().outputs(y)))
    assert "other rows" in refused(*both)
    op = Conv((1, 1), ((1, 1),) * 2, (1, 1), 1)
    w = values(rng, (16, 8, 3, 3), dt.float32)

    def unstored(y):
        return (Relu()(y), *ColumnMoments().outputs(y))

    assert "not stored" in refused(*channels_last(op, x, w, (), unstored))

    def many(y):
        return (y, *ColumnMoments(5000).outputs(y))

    assert "in order" in refused(*channels_last(op, x, w, (), many))
    whole = values(rng, x.shape, dt.int8), values(rng, w.shape, dt.int8)

    def widened(y):
        y = y.astype(dt.float32)
        return (y, *ColumnMoments().outputs(y))

    integers = IntConv((1, 1), ((1, 1),) * 2, (1, 1), 1)
    assert "floats" in refused(*channels_last(integers, *whole, (), widened))

    def by_line(x, w):
        y = moved(x.apply(op, (moved(x, to_first(4)), w))[0], to_last(4))
        return (y, *ColumnMoments().outputs(moved(y, (0, 2, 1, 3))))

    operands = [last(x), w]
    assert "not stored" in refused(fused(by_line, operands), operands)
