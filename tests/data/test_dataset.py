import numpy as np
import pytest
from tests.data.sample_datasets import CountUp, Numbers

from treadle.data.dataset import ArrayDataset, ConcatDataset, Dataset


def test_array_dataset_yields_rows() -> None:
    images, labels = np.arange(12).reshape(4, 3), [7, 8, 9, 10]
    dataset = ArrayDataset(images, labels)
    assert len(dataset) == 4
    image, label = dataset[2]
    np.testing.assert_array_equal(image, [6, 7, 8])
    assert label == 9


def test_array_dataset_of_one_array_yields_tuples() -> None:
    assert ArrayDataset(np.arange(3))[1] == (1,)


def test_array_dataset_refuses_unequal_lengths_and_nothing() -> None:
    with pytest.raises(ValueError, match=r"inconsistent: \[2, 3\]"):
        ArrayDataset(np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="at least one"):
        ArrayDataset()


def test_concat_dataset_indexes_through_its_parts() -> None:
    parts = [Numbers(2), Numbers(1), Numbers(3)]
    whole = ConcatDataset(parts)
    assert len(whole) == 6
    assert [whole[i][1] for i in range(6)] == [0, 1, 0, 0, 1, 2]
    assert [whole[i][1] for i in range(-6, 0)] == [0, 1, 0, 0, 1, 2]
    for index in (6, -7):
        with pytest.raises(IndexError, match=f"index {index} is out of range"):
            whole[index]


def test_concat_dataset_refuses_streams_and_nothing() -> None:
    with pytest.raises(TypeError, match="dataset 1 is a stream"):
        ConcatDataset([Numbers(1), CountUp(1)])
    with pytest.raises(ValueError, match="at least one"):
        ConcatDataset([])


def test_streams_have_neither_length_nor_index() -> None:
    with pytest.raises(TypeError, match="no length"):
        len(CountUp(3))
    with pytest.raises(TypeError, match="no sample 0"):
        CountUp(3)[0]


def test_dataset_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Dataset()  # type: ignore[abstract]
