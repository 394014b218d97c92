"""DataLoader: batches of a dataset, from this process or from workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from treadle.base.log import get_logger
from treadle.data.collator import Collator
from treadle.data.dataset import Dataset, StreamDataset
from treadle.data.failure import DataLoaderError
from treadle.data.messages import Work
from treadle.data.pipeline import Pipeline
from treadle.data.pool import WorkerPool, start_context
from treadle.data.preload import preloaded, split_transform, transformed
from treadle.data.sampler import Sampler, SequentialSampler, StreamSampler
from treadle.data.schedule import (
    map_works,
    own_stream_works,
    parallel_batches,
    serial_batches,
    stream_works,
)
from treadle.data.transform import PseudoTransform, Transform
from treadle.data.worker import WorkerSpec
from treadle.data.worker_info import WorkerInfo, get_worker_info

__all__ = ["DataLoader", "WorkerInfo", "get_worker_info"]


@dataclass(slots=True)
class _Progress:
    """Position of the newest iteration: enough to come back to it."""

    epoch: int
    position: int
    sampler: dict[str, Any]


class DataLoader:
    """Iterates over a dataset in batches, any number of times.

    A batch is what the collator makes of its samples, by default a list with one NumPy array per
    field. Batch size and order belong to the sampler. Batches come in the sampler's order,
    whatever the number of workers.

    Args:
        dataset: a map-style dataset (or any sequence of samples), or a `StreamDataset`.
        sampler: which samples make up a batch; one at a time in order if None. A stream needs a
            `StreamSampler`.
        transform: applied to the samples of a batch. A `CudaTransform`, or those at the end of a
            `Compose`, are applied to merged batches of Tensors, in this process.
        collator: merges the transformed samples.
        num_workers: processes that make batches; 0 makes them in this one. Python's and NumPy's
            generators of worker i start an epoch with the epoch's base seed plus i.
        timeout: longest wait for a batch in seconds, once its worker has started; 0 for no limit:
            a worker that hangs is then waited for, and after a minute the log says where it is.
            In this process only the reading of a stream is watched, and reported when it returns.
        preload: yield Tensors on the default device instead of arrays, one batch ahead.
        parallel_stream: let each worker read its own copy of a stream, which must then yield a
            different share in each (`get_worker_info`). Otherwise this process reads the stream
            and the workers transform and collate.
        prefetch_factor: batches under way per worker.
        persistent_workers: keep the workers from one epoch to the next.
        worker_init_fn: called with the worker's number when it starts, after seeding.
        context: how workers start: "forkserver" (the default where there is one), "spawn",
            "fork" or a `multiprocessing` context. The first two need a dataset that can be
            pickled, made of classes that can be imported, and a script whose entry is guarded by
            `if __name__ == "__main__":`; large arrays in it are shared by all workers, not
            copied. "fork" needs none of that but is unsafe when other threads run. If None and
            the dataset cannot be pickled (or is of an interactive session), workers are forked
            after all, and the log says why.
        seed: of the workers' base seeds. Drawn from NumPy's global generator if None.
        batch_size, shuffle: refused with the sampler to pass instead.
        divide: of MegEngine before 1.9, whose workers shared batches; says that it has no effect.

    A worker that raises ends the iteration with its exception, carrying the worker's traceback;
    one that dies or exceeds the timeout ends it with `DataLoaderError`. No worker outlives the
    iteration (or, if persistent, the loader) or this process, however either ends.

    Raises:
        ValueError: a number is out of range, or the dataset is empty.
        TypeError: dataset and sampler do not fit together, or `batch_size` or `shuffle` is given.
    """

    def __init__(
        self,
        dataset: Dataset | Sequence[Any],
        sampler: Sampler | None = None,
        transform: Transform | None = None,
        collator: Collator | None = None,
        num_workers: int = 0,
        timeout: float = 0,
        preload: bool = False,
        parallel_stream: bool = False,
        *,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        worker_init_fn: Callable[[int], object] | None = None,
        context: str | BaseContext | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        divide: bool = False,
    ) -> None:
        _refuse_batching(batch_size, shuffle)
        if divide:
            get_logger("data").warning(
                "DataLoader: divide has no effect, each batch is made by one worker"
            )
        if num_workers < 0:
            raise ValueError(f"num_workers should not be negative, got {num_workers}")
        if timeout < 0:
            raise ValueError(f"timeout should not be negative, got {timeout}")
        if prefetch_factor < 1:
            raise ValueError(f"prefetch_factor should be at least 1, got {prefetch_factor}")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers needs num_workers > 0")
        self.dataset = dataset
        self.sampler = _fitting_sampler(dataset, sampler)
        self.transform = PseudoTransform() if transform is None else transform
        self._host_transform, self._batch_transforms = split_transform(self.transform)
        self.collator = Collator() if collator is None else collator
        self.num_workers = num_workers
        self.timeout = timeout
        self.preload = preload
        self.parallel_stream = parallel_stream
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.worker_init_fn = worker_init_fn
        self.seed = seed
        self._context = start_context(context) if num_workers else None
        self._may_fork = context is None
        self._idle_pool: WorkerPool | None = None
        self._progress = _Progress(0, 0, {})
        self._skip = 0

    def __len__(self) -> int:
        if isinstance(self.sampler, StreamSampler):
            raise TypeError("a DataLoader over a stream has no length")
        # Sampler itself promises no length, but every map-style one has it.
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        skip, self._skip = self._skip, 0
        # An iteration that was left early is over, unless it is just being resumed.
        epoch = self._progress.epoch + (self._progress.position > skip)
        progress = _Progress(epoch, skip, self.sampler.state_dict())
        self._progress = progress
        pipeline = Pipeline(self.dataset, self._host_transform, self.collator)
        works = islice(self._works(pipeline), skip, None)
        if self._context is None:
            batches = serial_batches(pipeline, works)
        else:
            pool = self._take_pool(pipeline, self._context)
            pool.begin_epoch(_base_seed(self.seed, progress.epoch))
            batches = self._from_workers(pool, works)
        batches = preloaded(batches) if self.preload else batches
        if self._batch_transforms:
            batches = transformed(batches, self._batch_transforms)
        return self._count(batches, progress)

    def state_dict(self) -> dict[str, Any]:
        """Return where the newest iteration stands, as JSON values.

        A loader of the same arguments that loads it continues with the next batch, in the same
        order. What random transforms draw after that is not part of it.

        Raises:
            TypeError: the dataset is a stream, which cannot be wound forward.
        """
        self._require_map_style()
        progress = self._progress
        sampler = progress.sampler if progress.position else self.sampler.state_dict()
        return {"epoch": progress.epoch, "position": progress.position, "sampler": sampler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration where `state_dict` was taken.

        Raises:
            TypeError: the dataset is a stream.
        """
        self._require_map_style()
        self.sampler.load_state_dict(state["sampler"])
        self._skip = int(state["position"])
        self._progress = _Progress(int(state["epoch"]), self._skip, dict(state["sampler"]))

    def _require_map_style(self) -> None:
        if isinstance(self.dataset, StreamDataset):
            raise TypeError("the position in a stream cannot be saved or restored")

    def _works(self, pipeline: Pipeline) -> Iterator[Work]:
        if not isinstance(self.dataset, StreamDataset):
            return map_works(self.sampler)
        if self.parallel_stream and self.num_workers:
            return own_stream_works(self.sampler)
        return stream_works(pipeline, self.sampler, self.timeout)

    def _take_pool(self, pipeline: Pipeline, context: BaseContext) -> WorkerPool:
        """The idle persistent workers, else new ones; a nested iteration gets its own."""
        pool, self._idle_pool = self._idle_pool, None
        if pool is not None and not pool.is_closed:
            return pool
        spec = WorkerSpec(pipeline, self.worker_init_fn, self.num_workers)
        return WorkerPool(spec, context, self._may_fork)

    def _from_workers(self, pool: WorkerPool, works: Iterable[Work]) -> Iterator[Any]:
        try:
            yield from parallel_batches(pool, works, self.prefetch_factor, self.timeout)
        except GeneratorExit:
            self._release(pool)
            raise
        except DataLoaderError:
            pool.kill()
            raise
        except BaseException:
            pool.close()
            raise
        self._release(pool)

    def _release(self, pool: WorkerPool) -> None:
        if self.persistent_workers and self._idle_pool is None:
            self._idle_pool = pool
        else:
            pool.close()

    def _count(self, batches: Iterator[Any], progress: _Progress) -> Iterator[Any]:
        for batch in batches:
            progress.position += 1
            yield batch
        progress.epoch += 1
        progress.position = 0


def _refuse_batching(batch_size: int | None, shuffle: bool | None) -> None:
    """Answer PyTorch's arguments with the sampler that does what they ask for."""
    if batch_size is None and shuffle is None:
        return
    named = {"batch_size": batch_size, "shuffle": shuffle}
    given = ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None)
    sampler = "RandomSampler" if shuffle else "SequentialSampler"
    size = 1 if batch_size is None else batch_size
    raise TypeError(
        f"DataLoader: batch size and order belong to the sampler, got {given}; "
        f"use DataLoader(dataset, {sampler}(dataset, batch_size={size}))"
    )


def _fitting_sampler(dataset: Any, sampler: Any) -> Sampler:
    if isinstance(dataset, StreamDataset):
        chosen = StreamSampler() if sampler is None else sampler
        if not isinstance(chosen, StreamSampler):
            raise TypeError(f"a stream needs a StreamSampler, got {type(chosen).__name__}")
        return chosen
    if not isinstance(dataset, Dataset | Sequence):
        raise TypeError(
            f"a dataset is a Dataset or a sequence of samples, got {type(dataset).__name__}"
            + ("; ArrayDataset(array) makes one" if hasattr(dataset, "__array__") else "")
        )
    chosen = SequentialSampler(dataset) if sampler is None else sampler
    if not isinstance(chosen, Sampler) or isinstance(chosen, StreamSampler):
        raise TypeError(
            f"an indexable dataset needs a map-style sampler, got {type(chosen).__name__}; "
            "as in DataLoader(dataset, RandomSampler(dataset, batch_size=32))"
        )
    return chosen


def _base_seed(seed: int | None, epoch: int) -> int:
    """Seed of worker 0 in an epoch, with room above it for the other workers' numbers."""
    if seed is None:
        return int(np.random.randint(2**31))
    words = np.random.SeedSequence([seed, epoch]).generate_state(1)
    return int(words[0]) >> 1
