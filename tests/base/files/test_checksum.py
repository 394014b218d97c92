"""Checksums of large data: what damage they find."""

import numpy as np
import pytest

from treadle.base.files.checksum import _COLUMNS, _ROWS, LaterChecksum, checksum

LENGTHS = [0, 1, 7, 8, 8 * _COLUMNS - 1, 8 * _COLUMNS * _ROWS, 8 * _COLUMNS * (_ROWS + 3) + 13]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_flipped_bit_is_found(length: int) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, length, np.uint8)
    known = checksum(data)
    assert known == checksum(memoryview(data.tobytes())) == LaterChecksum(data).value()
    for place in rng.integers(0, 8 * length, 60 if length else 0):
        data[place // 8] ^= np.uint8(1 << (place % 8))
        assert checksum(data) != known
        data[place // 8] ^= np.uint8(1 << (place % 8))
    assert checksum(np.append(data, np.uint8(0))) != known


@pytest.mark.parametrize("size", [8, 64, 512, 4096, 65536])
def test_what_changed_places_is_found(size: int) -> None:
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, 1 << 20, np.uint8)
    known = checksum(data)
    for _ in range(40):
        one, two = rng.choice(len(data) // size, 2, replace=False) * size
        bad = data.copy()
        bad[one : one + size], bad[two : two + size] = (
            data[two : two + size],
            data[one : one + size],
        )
        assert checksum(bad) != known
        bad = data.copy()
        bad[one : one + size] = 0
        assert checksum(bad) != known


def test_large_data_is_summed_aside() -> None:
    data = np.random.default_rng(2).integers(0, 256, 3 << 20, np.uint8)
    assert LaterChecksum(data).value() == checksum(data)
