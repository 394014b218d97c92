from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.data.sample_datasets import Numbers, Trap, raise_value_error

from treadle.data import DataLoader, SequentialSampler
from treadle.data.preload import preloaded, to_tensors
from treadle.tensor import Tensor

Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize("workers", [0, 1])
def test_preloaded_batches_are_tensors(workers: int) -> None:
    dataset = Numbers(5)
    loader = DataLoader(dataset, SequentialSampler(dataset, 2), num_workers=workers, preload=True)
    batches = list(loader)
    assert all(isinstance(field, Tensor) for batch in batches for field in batch)
    assert [batch[1].numpy().tolist() for batch in batches] == [[0, 1], [2, 3], [4]]


def test_containers_keep_their_form() -> None:
    batch = to_tensors(Pair({"a": np.zeros(2, np.float32)}, ["text", np.ones(1, np.float32)]))
    assert isinstance(batch, Pair)
    assert isinstance(batch.image["a"], Tensor)
    assert batch.label[0] == "text"
    assert batch.label[1].numpy().tolist() == [1]


def test_one_batch_is_ahead_of_the_caller() -> None:
    made: list[int] = []

    def source() -> Iterator[Any]:
        for number in range(3):
            made.append(number)
            yield np.array(number, np.float32)

    batches = preloaded(source())
    next(batches)
    assert made == [0, 1]
    assert len(list(batches)) == 2
    assert list(preloaded(iter([]))) == []


def test_a_failure_waits_for_the_batches_before_it() -> None:
    loader = DataLoader(Trap(4, 2, raise_value_error), preload=True)
    seen = []
    with pytest.raises(ValueError, match="bad sample"):
        for batch in loader:
            seen.append(int(batch[1].numpy()[0]))
    assert seen == [0, 1]


def test_the_place_is_that_of_the_caller() -> None:
    loader = DataLoader(Numbers(4), preload=True)
    next(iter(loader))
    assert loader.state_dict()["position"] == 1
