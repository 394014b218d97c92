"""Corner cases of gather and scatter that no sample states."""

import itertools

import numpy as np
import pytest
from tests.ops.harness import check_against_differences, gradients

from treadle.base import dtype as dt
from treadle.base.errors import IndexRangeError
from treadle.base.symbol import bounds
from treadle.base.types import TensorType
from treadle.ops.gather import Index, IndexAdd, IndexUpdate, Nonzero, OneHot, Take
from treadle.ops.gather_along import AddAlongAxis, ScatterAlongAxis, TakeAlongAxis
from treadle.ops.index_numpy import add_rows, writable

RNG = np.random.default_rng(11)
AXES = [c for n in (1, 2, 3, 4) for c in itertools.combinations(range(4), n)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_indices_stand_where_numpy_puts_them(axes: tuple[int, ...]) -> None:
    x = RNG.normal(size=(2, 3, 4, 5))
    shapes = [(3, 1), (2,), (), (3, 2)][: len(axes)]
    indices = [
        RNG.integers(-x.shape[a], x.shape[a], s).astype(np.int32)
        for a, s in zip(axes, shapes, strict=True)
    ]
    key: list[object] = [slice(None)] * 4
    for axis, index in zip(axes, indices, strict=True):
        key[axis] = index
    picked = Index(axes).reference(x, *indices)
    np.testing.assert_array_equal(picked, x[tuple(key)])
    v = RNG.normal(size=picked.shape)
    added, written = x.copy(), x.copy()
    np.add.at(added, tuple(key), v)
    written[tuple(key)] = v
    np.testing.assert_allclose(IndexAdd(axes).reference(x, v, *indices), added, 1e-14)
    np.testing.assert_array_equal(IndexUpdate(axes).reference(x, v, *indices), written)


def test_the_last_write_stays_and_alone_gets_the_gradient() -> None:
    x, v = np.zeros(3), np.array([1.0, 2.0, 3.0])
    index = np.array([1, 1, -1], np.int64)
    np.testing.assert_array_equal(IndexUpdate((0,)).reference(x, v, index), [0, 2, 3])
    np.testing.assert_array_equal(ScatterAlongAxis(0).reference(x, index, v), [0, 2, 3])
    seed = [np.array([5.0, 7.0, 9.0])]
    dx, dv, _ = gradients(lambda xs: [IndexUpdate((0,))(*xs)], [x, v, index], seed)
    np.testing.assert_array_equal(dx, [5, 0, 0])
    np.testing.assert_array_equal(dv, [0, 7, 9])
    check_against_differences(
        lambda xs: [ScatterAlongAxis(0)(*xs)], [x, index, v], "scatter with duplicates"
    )


def test_repeated_indices_add_up_in_every_type() -> None:
    index = np.zeros(300, np.int32)
    for kind in dt.REALS:
        ones = np.ones((300, 2)).astype(kind.numpy)
        total = IndexAdd((0,)).reference(np.zeros((1, 2), kind.numpy), ones, index)
        assert total.dtype == kind.numpy
        # 300 wraps in eight bits; bfloat16 alone would stop at 256.
        wanted = np.asarray(300).astype(kind.numpy)
        np.testing.assert_array_equal(total.astype(np.float64), float(wanted))


def test_long_scatters_go_in_pieces() -> None:
    rows = np.ones((3, 700_000), np.float32)
    table = np.zeros((2, 700_000), np.float32)
    add_rows(table, np.array([1, 0, 1]), rows)
    assert (table[0] == 1).all() and (table[1] == 2).all()


def test_a_broadcast_base_is_copied_exactly() -> None:
    minus = np.broadcast_to(np.float32(-0.0), (3,))
    assert np.signbit(writable(minus)).all()
    two = writable(np.broadcast_to(np.int64(2), (2, 2)), np.float32)
    assert two.flags.writeable and two.dtype == np.float32 and (two == 2).all()


def test_an_index_may_be_smaller_than_x_besides_its_axis() -> None:
    x = np.arange(12.0).reshape(3, 4)
    index = np.array([[3, -4]], np.int32)
    np.testing.assert_array_equal(TakeAlongAxis(1).reference(x, index), [[3, 0]])
    added = AddAlongAxis(1).reference(x, index, np.array([[10.0, 20.0]]))
    np.testing.assert_array_equal(added[0], [20, 1, 2, 13])
    np.testing.assert_array_equal(added[1:], x[1:])


def test_the_message_names_index_axis_and_extent() -> None:
    with pytest.raises(IndexRangeError) as caught:
        Take(1).reference(np.zeros((2, 3)), np.array([[0, 1], [7, -9]], np.int32))
    assert str(caught.value).startswith(
        "take: index 7 is out of range for axis 1 with extent 3\n"
        "  saw:  x float64[2,3], index int32[2,2]\n"
        "  hint: use -3 to 2\n"
    )


def test_one_hot_counts_from_zero_only() -> None:
    np.testing.assert_array_equal(OneHot(2).reference(np.array([1, 0], np.int64)), [[0, 1], [1, 0]])
    with pytest.raises(IndexRangeError, match="index -1 is out of range"):
        OneHot(2).reference(np.array([-1], np.int64))


def test_nonzero_has_a_count_of_its_own_each_time() -> None:
    x = TensorType(dt.bool_, (2, 3))
    (first,), (second,) = Nonzero().infer(x), Nonzero().infer(x)
    assert first.shape[0] is not second.shape[0]
    assert bounds(first.shape[0]) == (0, 6)
    assert Nonzero().infer(TensorType(dt.bool_, (0, 3)))[0].shape == (0, 2)
