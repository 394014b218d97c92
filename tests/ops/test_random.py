"""Philox and what is drawn with it."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.symbol import symbol
from treadle.ops.distribution import RandomNormal, RandomPermutation, RandomUniform
from treadle.ops.random import RandomBits, blocks_used, philox4x32


def state(key0: int = 1, key1: int = 2, counter: int = 0) -> np.ndarray:
    return np.array([key0, key1, counter & 0xFFFFFFFF, counter >> 32], np.uint32)


# Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    words = philox4x32(np.array(counter, np.uint64)[:, None], key)
    assert tuple(int(w) for w in words[:, 0]) == expected


def test_element_is_word_of_block() -> None:
    bits = RandomBits((3, 7)).reference(state(9, 8, 100)).reshape(-1)
    for i in (0, 3, 4, 20):
        counter = np.array([100 + i // 4, 0, 0, 0], np.uint64)[:, None]
        assert bits[i] == philox4x32(counter, (9, 8))[i % 4, 0]


def test_counter_carries_into_its_high_word() -> None:
    first = RandomBits((8,)).reference(state(counter=0xFFFFFFFF))
    carried = RandomBits((4,)).reference(state(counter=1 << 32))
    np.testing.assert_array_equal(first[4:], carried)


def test_a_draw_continues_where_the_last_one_ended() -> None:
    whole = RandomBits((90_000,)).reference(state())
    part = RandomBits((70_001,))
    used = blocks_used(part)
    assert used == 17_501
    rest = RandomBits((90_000 - 4 * 17_501,)).reference(state(counter=17_501))
    np.testing.assert_array_equal(part.reference(state()), whole[:70_001])
    np.testing.assert_array_equal(rest, whole[4 * 17_501 :])


@pytest.mark.parametrize(
    ("op", "blocks"),
    [
        (RandomBits(()), 1),
        (RandomBits((0,)), 0),
        (RandomUniform((5,)), 2),
        (RandomUniform((5,), dt.float64), 3),
        (RandomNormal((5,)), 2),
        (RandomNormal((5,), dt.float64), 3),
        (RandomPermutation(5), 3),
    ],
)
def test_blocks_used(op: RandomBits, blocks: int) -> None:
    assert blocks_used(op) == blocks


def test_blocks_of_a_symbolic_shape() -> None:
    n = symbol("n", multiple=4)
    assert str(blocks_used(RandomBits((n, 3)))) == "((3*n + 3) // (4))"


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16, dt.bfloat16])
def test_uniform_fills_the_unit_interval(dtype: dt.DType) -> None:
    values = RandomUniform((20_000,), dtype).reference(state()).astype(np.float64)
    assert values.min() >= 0 and values.max() < 1
    np.testing.assert_allclose(values.mean(), 0.5, atol=0.01)
    np.testing.assert_allclose(values.var(), 1 / 12, atol=0.005)


def test_uniform_keeps_the_top_bits_of_words() -> None:
    words = RandomBits((6,)).reference(state())
    values = RandomUniform((6,)).reference(state())
    np.testing.assert_array_equal(values, (words >> 8).astype(np.float32) / np.float32(2**24))
    pairs = words.astype(np.uint64).reshape(3, 2)
    doubles = RandomUniform((3,), dt.float64).reference(state())
    expected = ((pairs[:, 1] >> 5) * 2.0**26 + (pairs[:, 0] >> 6)) / 2.0**53
    np.testing.assert_array_equal(doubles, expected)


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16])
def test_normal_has_normal_moments(dtype: dt.DType) -> None:
    values = RandomNormal((40_001,), dtype).reference(state()).astype(np.float64)
    assert np.isfinite(values).all()
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        np.testing.assert_allclose((values**power).mean(), moment, atol=0.12)
    pairs = values[:-1].reshape(-1, 2)
    np.testing.assert_allclose(np.corrcoef(pairs.T)[0, 1], 0, atol=0.02)


def test_keys_and_counters_give_different_streams() -> None:
    draws = [
        RandomBits((64,)).reference(s) for s in (state(), state(2, 2), state(1, 3), state(1, 2, 16))
    ]
    assert len({d.tobytes() for d in draws}) == 4


def test_permutation_is_one_and_is_uniform() -> None:
    counts = np.zeros((4, 4))
    for counter in range(400):
        order = RandomPermutation(4).reference(state(counter=2 * counter))
        assert order.dtype == np.int32 and sorted(order) == [0, 1, 2, 3]
        counts[np.arange(4), order] += 1
    np.testing.assert_allclose(counts / 400, 0.25, atol=0.09)
