"""A map in worker processes gives what the loop gives."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.data import get_worker_info, parallel_map

BATCHES = [np.random.default_rng(i).standard_normal((3, 4)).astype(np.float32) for i in range(7)]


def normalized(batch: Any) -> Any:
    return F.softmax(mge.tensor(batch) @ mge.tensor(batch.T), axis=1).numpy(), os.getpid()


def noisy(batch: Any) -> Any:
    return batch + np.random.standard_normal(batch.shape) + random.random()


def broken(batch: Any) -> Any:
    raise KeyError(f"no {batch}")


def dropped(batch: Any) -> Any:
    return F.dropout(mge.tensor(batch), 0.5).numpy() + mge.random.normal(size=batch.shape).numpy()


def places(_: Any) -> bool:
    return get_worker_info() is not None


@pytest.mark.parametrize(("workers", "at_once", "context"), [(2, 1, None), (3, 3, "fork")])
def test_results_are_those_of_the_loop(workers: int, at_once: int, context: Any) -> None:
    loop = [normalized(batch) for batch in BATCHES]
    found = parallel_map(normalized, BATCHES, workers, batch_size=at_once, context=context)
    assert len(found) == len(loop)
    for (y, here), (want, this) in zip(found, loop, strict=True):
        np.testing.assert_array_equal(y, want)
        assert y.dtype == want.dtype and here != this
    assert len({pid for _, pid in found}) == workers


def test_random_numbers_do_not_depend_on_workers() -> None:
    np.random.seed(5)
    random.seed(5)
    before = np.random.get_state()[1].tolist(), random.getstate()
    serial = parallel_map(noisy, BATCHES, seed=3)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before
    for workers, at_once in ((2, 1), (2, 4)):
        found = parallel_map(noisy, BATCHES, workers, batch_size=at_once, seed=3, context="fork")
        np.testing.assert_array_equal(found, serial)
    assert np.abs(np.subtract(serial, parallel_map(noisy, BATCHES, seed=4))).max() > 0.1
    assert np.abs(np.subtract(serial[0] - BATCHES[0], serial[1] - BATCHES[1])).max() > 0.01


def test_random_numbers_of_treadle_do_not_depend_on_workers() -> None:
    mge.random.seed(5)
    before = mge.random.default_generator().get_state()
    serial = parallel_map(dropped, BATCHES, seed=3)
    assert mge.random.default_generator().get_state() == before
    for workers in (1, 2):
        found = parallel_map(dropped, BATCHES, workers, seed=3)
        np.testing.assert_array_equal(found, serial)
    assert np.abs(np.subtract(serial[0] - BATCHES[0], serial[1] - BATCHES[1])).max() > 0.01


def test_mistakes_and_small_cases() -> None:
    assert parallel_map(broken, [], 2) == []
    assert parallel_map(len, ["a", "bc"]) == [1, 2]
    assert parallel_map(abs, (i - 2 for i in range(3))) == [2, 1, 0]
    assert parallel_map(places, [1], 4, context="fork") == [True]
    with pytest.raises(KeyError, match="no 1") as caught:
        parallel_map(broken, [1, 2], 2, context="fork")
    assert any("0" in note for note in caught.value.__notes__)
    for wrong in ({"num_workers": -1}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            parallel_map(len, ["a"], **wrong)
