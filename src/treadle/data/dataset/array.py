"""Datasets made of what is already there: arrays in memory, other datasets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from treadle.data.dataset.base import Dataset, StreamDataset

Column = np.ndarray[Any, Any] | Sequence[Any]


class ArrayDataset(Dataset):
    """Samples that are rows of one or more arrays: `dataset[i] == (a[i], b[i], ...)`.

    Args:
        arrays: arrays or sequences whose first axis, equally long in all, numbers the samples.

    Raises:
        ValueError: no array was given, or their lengths differ.
    """

    def __init__(self, *arrays: Column) -> None:
        if not arrays:
            raise ValueError("ArrayDataset needs at least one array")
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"lengths of input arrays are inconsistent: {lengths}; "
                "each needs one entry per sample"
            )
        self.arrays = arrays

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


class ConcatDataset(Dataset):
    """Indexable datasets one after the other.

    Args:
        datasets: at least one map-style dataset; negative indices count from the end.

    Raises:
        ValueError: no dataset was given.
        TypeError: one of them is a `StreamDataset`.
    """

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs at least one dataset")
        for position, dataset in enumerate(self.datasets):
            if isinstance(dataset, StreamDataset):
                raise TypeError(f"ConcatDataset: dataset {position} is a stream without index")
        self.cumulative_sizes = list(accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> Any:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for ConcatDataset of {size} samples")
        index %= size
        which = bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - before]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]
