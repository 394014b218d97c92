"""`parallel_map`: a function of samples that do not depend on each other, in worker processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Generic, TypeVar

import numpy as np

from treadle.data.collator import Collator
from treadle.data.dataloader import DataLoader
from treadle.data.dataset import Dataset
from treadle.data.sampler import SequentialSampler
from treadle.random import default_generator
from treadle.tensor import Tensor

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
        own = default_generator()
        before = random.getstate(), np.random.get_state(), own.get_state()
        drawn = np.random.SeedSequence([self._seed, int(index)]).generate_state(4)
        random.seed(int(drawn[0]))
        np.random.seed(int(drawn[1]))
        own.seed(int(drawn[2]) << 32 | int(drawn[3]))
        try:
            return self._function(self._samples[index])
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            own.set_state(before[2])


def parallel_map(
    function: Callable[[S], R],
    samples: Iterable[S],
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
    `seed`: the generators of `random`, `numpy.random` and `treadle.random`, dropout included, then
    begin anew for every sample.

    Args:
        function: of one sample, which may be a batch; it and its results can be pickled. What it
            changes in its process stays there.
        samples: large arrays in it are shared with the workers, not copied; what is not a sequence,
            such as a generator, is read as a whole first.
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
    known = isinstance(samples, Sequence | np.ndarray | Tensor)
    given: Any = samples if known else list(samples)
    if not len(given):
        return []
    mapped = _Mapped(function, given, seed)
    loader = DataLoader(
        mapped,
        SequentialSampler(mapped, batch_size=batch_size, drop_last=False),
        collator=_AsMade(),
        num_workers=min(num_workers, -(-len(given) // batch_size)),
        timeout=timeout,
        context=context,
        seed=0,
    )
    return [result for batch in loader for result in batch]


__all__ = ["parallel_map"]
