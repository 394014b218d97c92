"""Messages between a loader and its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.data.failure import RemoteException


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """To a worker: forget older tasks, seed the generators, open the stream anew."""

    epoch: int
    seed: int


@dataclass(frozen=True, slots=True)
class LoadIndices:
    """Work: a batch of these samples of a map-style dataset."""

    indices: list[Any]


@dataclass(frozen=True, slots=True)
class MergeSamples:
    """Work: a batch of these samples, read from a stream by the loader; `start` numbers them."""

    samples: list[Any]
    start: int


@dataclass(frozen=True, slots=True)
class ReadStream:
    """Work: a batch of the next `size` samples of the worker's own stream."""

    size: int


Work = LoadIndices | MergeSamples | ReadStream


@dataclass(frozen=True, slots=True)
class Task:
    """To a worker: make batch `batch` of epoch `epoch`."""

    epoch: int
    batch: int
    work: Work


@dataclass(frozen=True, slots=True)
class Locate:
    """To a worker: say at once which line its main thread is at."""


@dataclass(frozen=True, slots=True)
class StopWorker:
    """To a worker: finish what is running and leave."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: the dataset has arrived and the first task is welcome."""


@dataclass(frozen=True, slots=True)
class Batch:
    """From a worker: the batch of a task."""

    epoch: int
    batch: int
    content: Any


@dataclass(frozen=True, slots=True)
class Exhausted:
    """From a worker: its stream had ended when the task came."""

    epoch: int
    batch: int


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: the task raised."""

    epoch: int
    batch: int
    error: RemoteException


@dataclass(frozen=True, slots=True)
class Unable:
    """From a worker: it could not start, or not even understand a task."""

    error: RemoteException


@dataclass(frozen=True, slots=True)
class Located:
    """From a worker: the innermost lines of its main thread's stack."""

    stack: str
