"""Samplers: which samples make up which batch, in which order, on which rank."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle, islice
from typing import Any

import numpy as np

from treadle import distributed
from treadle.data.dataset import Dataset
from treadle.runtime.comm import groups

State = dict[str, Any]
Samples = Dataset | Sequence[Any]


class Sampler(ABC):
    """Yields one list of sample indices per batch."""

    @abstractmethod
    def __iter__(self) -> Iterator[list[Any]]:
        """Start an epoch."""

    def state_dict(self) -> State:
        """Return the state that the next epoch's order depends on, as JSON values; empty if on
        nothing.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")


class MapSampler(Sampler):
    """Base of the samplers of map-style datasets: a subclass gives `sample` (or `batch`).

    Args:
        dataset: what to sample from; only its length is used.
        batch_size: samples in a batch, on this rank.
        drop_last: leave out an incomplete last batch.
        num_samples: samples in an epoch, over all ranks; the dataset's length if None.
        world_size: number of ranks that share an epoch; that of the process group if None, 1
            without one.
        rank: which of them this is; this process's rank if None, 0 without a group.
        seed: of the sampler's own generator, which runs on from epoch to epoch. With several
            ranks it must be the same on all, so it is then 0 if None.

    Where ranks are lost (`distributed.shrink`), the next epoch is dealt out to those that are left,
    unless `world_size` or `rank` is given.

    With several ranks every rank gets `num_samples = ceil(total / world_size)` samples: indices
    from the start are repeated until they divide evenly, then dealt out one by one.

    Raises:
        ValueError: an argument is out of its range, the dataset is empty, or a batch is larger
            than a rank's share of the samples.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        _require_positive("batch_size", batch_size)
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        if num_samples is not None:
            _require_positive("num_samples", num_samples)
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.follows = world_size is None and rank is None
        self.world_size = distributed.get_world_size() if world_size is None else world_size
        self.rank = distributed.get_rank() if rank is None else rank
        _require_positive("world_size", self.world_size)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank should be in [0, {self.world_size}), but got rank={rank}")
        self.total = len(dataset) if num_samples is None else num_samples
        self.num_samples = self._share(self.total)
        self._losses, self._left_out = groups.losses(), 0
        self.rng = np.random.RandomState(0 if seed is None and self.world_size > 1 else seed)

    def _share(self, total: int) -> int:
        if len(self.dataset) == 0:
            raise ValueError(f"cannot sample from an empty dataset ({type(self.dataset).__name__})")
        share = math.ceil(total / self.world_size)
        if share < self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the {share} samples of this rank; "
                "num_samples / world_size should be at least batch_size"
            )
        return share

    def leave_out(self, count: int) -> None:
        """Leave `count` samples, over all ranks, out of the order of the next epoch."""
        self._left_out = count

    def _follow(self) -> None:
        """Deal out to the ranks that there are, if some have been lost."""
        if self.follows and self._losses != groups.losses():
            self._losses = groups.losses()
            self.world_size, self.rank = distributed.get_world_size(), distributed.get_rank()
            self.num_samples = math.ceil(self.total / self.world_size)

    def __iter__(self) -> Iterator[list[Any]]:
        return self.batch()

    def __len__(self) -> int:
        self._follow()
        full, rest = divmod(self.num_samples, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def sample(self) -> Sequence[Any]:
        """Return the indices of an epoch over all ranks, in order."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither sample() nor batch()")

    def scatter(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Return this rank's part of the indices of an epoch."""
        return self._dealt(indices, self.num_samples)

    def _dealt(self, indices: Sequence[Any], share: int) -> Sequence[Any]:
        padded = list(islice(cycle(indices), share * self.world_size))
        return padded[self.rank :: self.world_size]

    def batch(self) -> Iterator[list[Any]]:
        """Draw the order of an epoch and cut it into batches."""
        self._follow()
        indices = self.sample()
        done, self._left_out = self._left_out, 0
        if done:
            rest = indices[done:]
            indices = self._dealt(rest, math.ceil(len(rest) / self.world_size))
        elif self.world_size > 1:
            indices = self.scatter(indices)
        stop = len(indices)
        if self.drop_last:
            stop -= stop % self.batch_size
        for start in range(0, stop, self.batch_size):
            yield list(indices[start : start + self.batch_size])

    def state_dict(self) -> State:
        state = self.rng.get_state(legacy=False)
        key = [int(word) for word in state["state"]["key"]]
        return {**state, "state": {"key": key, "pos": int(state["state"]["pos"])}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        key = np.array(state["state"]["key"], dtype=np.uint32)
        self.rng.set_state({**state, "state": {"key": key, "pos": state["state"]["pos"]}})


class SequentialSampler(MapSampler):
    """Takes the samples in order.

    Args:
        dataset: see `MapSampler`, as the rest.
        batch_size: samples in a batch.
        drop_last: leave out an incomplete last batch.
        indices: take only these, in this order; a sequence.
        world_size: number of ranks.
        rank: this rank.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.indices = _checked_indices(indices)
        size = None if indices is None else len(indices)
        super().__init__(dataset, batch_size, drop_last, size, world_size, rank)

    def sample(self) -> Sequence[Any]:
        return range(len(self.dataset)) if self.indices is None else self.indices


class RandomSampler(MapSampler):
    """Takes every sample once, in an order drawn anew for each epoch.

    Args:
        dataset: see `MapSampler`, as the rest.
        batch_size: samples in a batch.
        drop_last: leave out an incomplete last batch.
        indices: take only these; a sequence.
        world_size: number of ranks.
        rank: this rank.
        seed: of the order.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int = 1,
        drop_last: bool = False,
        indices: Sequence[int] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.indices = _checked_indices(indices)
        size = None if indices is None else len(indices)
        super().__init__(dataset, batch_size, drop_last, size, world_size, rank, seed)

    def sample(self) -> Sequence[Any]:
        pool = len(self.dataset) if self.indices is None else self.indices
        order: list[Any] = self.rng.permutation(pool).tolist()
        return order


class ReplacementSampler(MapSampler):
    """Draws each sample independently, so that some come twice and some not at all.

    Args:
        dataset: see `MapSampler`, as the rest.
        batch_size: samples in a batch.
        drop_last: leave out an incomplete last batch.
        num_samples: draws in an epoch, over all ranks.
        weights: relative probability of each sample; all equal if None.
        world_size: number of ranks.
        rank: this rank.
        seed: of the draws.

    Raises:
        ValueError: `weights` is not a sequence, has another length than the dataset, a negative or
            infinite entry, or no positive one.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int = 1,
        drop_last: bool = False,
        num_samples: int | None = None,
        weights: Sequence[float] | np.ndarray[Any, Any] | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last, num_samples, world_size, rank, seed)
        self.weights = None if weights is None else _normalized(weights, len(dataset))

    def sample(self) -> Sequence[Any]:
        total = self.num_samples * self.world_size
        draws = self.rng.choice(len(self.dataset), size=total, replace=True, p=self.weights)
        indices: list[Any] = draws.tolist()
        return indices


class StreamSampler(Sampler):
    """Groups the samples of a stream; its indices only count them, without end.

    Args:
        batch_size: samples in a batch. The last batch of a stream may be smaller.
    """

    def __init__(self, batch_size: int = 1) -> None:
        _require_positive("batch_size", batch_size)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[Any]]:
        return self.batch()

    def batch(self) -> Iterator[list[Any]]:
        """Yield the running numbers of each batch's samples."""
        numbers = self.sample()
        while group := list(islice(numbers, self.batch_size)):
            yield group

    def sample(self) -> Iterator[int]:
        """Yield 0, 1, 2, ..."""
        return count()


class Infinite(Sampler):
    """Starts a map-style sampler again whenever it ends, so that there is one endless epoch.

    Args:
        sampler: what to repeat; its attributes (`batch_size`, ...) can be read from here too.
    """

    def __init__(self, sampler: MapSampler) -> None:
        self.sampler = sampler
        self._start_pass()

    def _start_pass(self) -> None:
        self._pass_start = self.sampler.state_dict()
        self._passed = 0
        self.sampler_iter = iter(self.sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        batch = next(self.sampler_iter, None)
        if batch is None:
            self._start_pass()
            batch = next(self.sampler_iter)
        self._passed += 1
        return batch

    def __len__(self) -> int:
        return int(np.iinfo(np.int64).max)

    def __getattr__(self, name: str) -> Any:
        # While unpickling there is no sampler yet to ask.
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def sample(self) -> Sequence[Any]:
        """Refuse: an endless epoch cannot be listed."""
        raise NotImplementedError("sample method not supported in Infinite")

    def state_dict(self) -> State:
        return {"pass_start": self._pass_start, "passed": self._passed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state["pass_start"])
        self._start_pass()
        for _ in range(state["passed"]):
            next(self)


def _require_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value}")


def _checked_indices(indices: Sequence[int] | None) -> Sequence[int] | None:
    if indices is not None and not isinstance(indices, Sequence):
        raise ValueError(f"indices should be None or a sequence, but got indices={indices}")
    return indices


def _normalized(
    weights: Sequence[float] | np.ndarray[Any, Any], size: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    if not isinstance(weights, Sequence | np.ndarray):
        raise ValueError(f"weights should be None or a sequence, but got weights={weights}")
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (size,):
        raise ValueError(f"weights should have len(dataset)={size} entries, but got {array.shape}")
    total = array.sum()
    if not (np.isfinite(total) and total > 0 and array.min() >= 0):
        raise ValueError("weights should be finite and not negative, with a positive sum")
    probabilities: np.ndarray[Any, np.dtype[np.float64]] = array / total
    return probabilities
