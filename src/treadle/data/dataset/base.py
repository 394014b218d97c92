"""Interfaces of datasets: something indexable with a length, or a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NoReturn


class Dataset(ABC):
    """A map-style dataset: a subclass gives `__getitem__` and `__len__`.

    A sample is an array, a number, a string, or a tuple, list or dict of these; arrays are NumPy
    arrays, never Tensors. `dataset[i]` must work for every `0 <= i < len(dataset)` and, when the
    loader has workers, in any process and order.
    """

    @abstractmethod
    def __getitem__(self, index: int) -> Any:
        """Return sample `index`."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""


class MapDataset(Dataset):
    """The same as `Dataset`, under the name that older MegEngine programs derive theirs from."""


class StreamDataset(Dataset):
    """A dataset that can only be read in order: a subclass gives `__iter__`.

    With `DataLoader(parallel_stream=True)` each worker iterates its own copy, so `__iter__` must
    yield a different share in each: `get_worker_info()` tells it which one it is in.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the samples of one epoch."""

    def __getitem__(self, index: int) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is a stream: iterate it, it has no sample {index}")

    def __len__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is a stream and has no length")
