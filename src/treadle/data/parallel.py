"""`parallel_map`: a function of samples that do not depend on each other, in worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Generic, TypeVar

import numpy as np

from treadle.data.collator import Collator
from treadle.data.dataloader import DataLoader
from treadle.data.dataset import Dataset
from treadle.data.sampler import SequentialSampler

S = TypeVar("S")
R = TypeVar("R")


class _AsMade(Collator):
    """Leaves a batch the list of its results."""

    def apply(self, inputs: Any) -> Any:
        return list(inputs)


class _Mapped(Dataset, Generic[S, R]):
    """The results, as a dataset whose samples are made when they are asked for."""

    def __init__(self, function: Callable[[S], R], samples: Sequence[S], seed: int | None) -> None:
        self._function, self._samples, self._seed = function, samples, seed

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> R:
        if self._seed is None:
            return self._function(self._samples[index])
        before = random.getstate(), np.random.get_state()
        drawn = np.random.SeedSequence([self._seed, int(index)]).generate_state(2)
        random.seed(int(drawn[0]))
        np.random.seed(int(drawn[1]))
        try:
            return self._function(self._samples[index])
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def parallel_map(
    function: Callable[[S], R],
    samples: Sequence[S],
    num_workers: int = 0,
    *,
    batch_size: int = 1,
    seed: int | None = None,
    timeout: float = 0,
    context: str | BaseContext | None = None,
) -> list[R]:
    """Return `[function(sample) for sample in samples]`, computed in worker processes.

    The results are those of the loop, to the bit and in its order, whatever the number of workers,
    if a result depends on its sample alone. A function that draws random numbers does so with
    `seed`: Python's and NumPy's global generators then begin anew for every sample.

    Args:
        function: of one sample, which may be a batch; it and its results can be pickled. What it
            changes in its process stays there.
        samples: a sequence; large arrays in it are shared with the workers, not copied.
        num_workers: processes; 0 runs the loop in this one.
        batch_size: samples that a worker is given at a time: more where the function is short.
        seed: for functions that draw random numbers.
        timeout, context: as `DataLoader` takes them.

    Raises:
        ValueError: a number is out of range.
        DataLoaderError: a worker died, or exceeded the timeout; what the function raises is
            raised, with the number of its sample.

    Example:
        >>> from treadle.data import parallel_map
        >>> parallel_map(abs, [-1, 2, -3])
        [1, 2, 3]
    """
    if batch_size < 1:
        raise ValueError(f"parallel_map: batch_size should be at least 1, got {batch_size}")
    if num_workers < 0:
        raise ValueError(f"parallel_map: num_workers should not be negative, got {num_workers}")
    if not len(samples):
        return []
    mapped = _Mapped(function, samples, seed)
    loader = DataLoader(
        mapped,
        SequentialSampler(mapped, batch_size=batch_size, drop_last=False),
        collator=_AsMade(),
        num_workers=min(num_workers, -(-len(samples) // batch_size)),
        timeout=timeout,
        context=context,
        seed=0,
    )
    return [result for batch in loader for result in batch]


__all__ = ["parallel_map"]
