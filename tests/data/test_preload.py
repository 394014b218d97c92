from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.data.sample_datasets import Numbers, Trap, raise_value_error

from treadle.data import DataLoader, SequentialSampler
from treadle.data.preload import preloaded, to_tensors
from treadle.data.transform import Compose, CudaTransform, PseudoTransform
from treadle.tensor import Tensor

Pair = namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize("workers", [0, 1])
def test_preloaded_batches_are_tensors(workers: int) -> None:
    dataset = Numbers(5)
    loader = DataLoader(dataset, SequentialSampler(dataset, 2), num_workers=workers, preload=True)
    batches = list(loader)
    assert all(isinstance(field, Tensor) for batch in batches for field in batch)
    assert [batch[1].numpy().tolist() for batch in batches] == [[0, 1], [2, 3], [4]]


def test_a_plain_cuda_transform_only_makes_tensors() -> None:
    dataset = Numbers(3)
    loader = DataLoader(dataset, SequentialSampler(dataset, 2), CudaTransform())
    batches = list(loader)
    assert len(loader) == len(batches) == 2
    assert all(isinstance(field, Tensor) for batch in batches for field in batch)
    assert [batch[1].numpy().tolist() for batch in batches] == [[0, 1], [2]]


def test_containers_keep_their_form() -> None:
    batch = to_tensors(Pair({"a": np.zeros(2, np.float32)}, ["text", np.ones(1, np.float32)]))
    assert isinstance(batch, Pair)
    assert isinstance(batch.image["a"], Tensor)
    assert batch.label[0] == "text"
    assert batch.label[1].numpy().tolist() == [1]
    pair = to_tensors((np.zeros(2, np.float32), ("text", np.ones(1, np.float32))))
    assert isinstance(pair, tuple) and isinstance(pair[1], tuple)
    assert isinstance(pair[0], Tensor) and isinstance(pair[1][1], Tensor) and pair[1][0] == "text"


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


class Double(CudaTransform):
    """Doubles the first field of a batch of Tensors."""

    def apply(self, input: Any) -> Any:
        assert isinstance(input[0], Tensor)
        return [input[0] * 2, *input[1:]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("preload", [False, True])
def test_transforms_of_batches_come_last(workers: int, preload: bool) -> None:
    dataset = Numbers(5)
    chain = Compose([PseudoTransform(), Double()])
    loader = DataLoader(
        dataset, SequentialSampler(dataset, 2), chain, num_workers=workers, preload=preload
    )
    plain = list(DataLoader(dataset, SequentialSampler(dataset, 2)))
    for batch, expected in zip(loader, plain, strict=True):
        np.testing.assert_array_equal(batch[0].numpy(), expected[0] * 2)
        np.testing.assert_array_equal(batch[1].numpy(), expected[1])
    assert loader.transform is chain


def test_a_transform_of_batches_alone() -> None:
    (batch, *_) = DataLoader(Numbers(2), transform=Double())
    assert isinstance(batch[0], Tensor)


@pytest.mark.parametrize(
    "chain",
    [
        Compose([Double(), PseudoTransform()]),
        Compose([PseudoTransform(), Double()], shuffle_indices=[(1, 2)]),
    ],
)
def test_a_transform_of_batches_before_one_of_samples_is_refused(chain: Compose) -> None:
    with pytest.raises(ValueError, match="comes after all others"):
        DataLoader(Numbers(2), transform=chain)
