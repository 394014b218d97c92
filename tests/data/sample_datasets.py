"""Datasets, transforms and functions for the loader's tests; importable from worker processes."""

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from treadle.data import Collator, get_worker_info
from treadle.data.dataset import Dataset, StreamDataset
from treadle.data.transform import Transform

HANG_SECONDS = 600


class Numbers(Dataset):
    """Sample i is `(array of i, i)`."""

    def __init__(self, size: int, shape: tuple[int, ...] = (2,)) -> None:
        self.size = size
        self.shape = shape

    def __getitem__(self, index: int) -> Any:
        return np.full(self.shape, index, np.float32), index

    def __len__(self) -> int:
        return self.size


class Trap(Numbers):
    """Calls `action` where sample `at` is read."""

    def __init__(self, size: int, at: int, action: Callable[[], object]) -> None:
        super().__init__(size)
        self.at = at
        self.action = action

    def __getitem__(self, index: int) -> Any:
        return self.action() if index == self.at else super().__getitem__(index)


class OwnError(Exception):
    """An exception whose constructor pickling cannot satisfy."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Unrebuildable:
    """An object that pickles here and refuses to be rebuilt in a worker."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _only_in, (os.getpid(),)


def _only_in(process: int) -> Unrebuildable:
    if os.getpid() != process:
        raise LookupError("not in a worker")
    return Unrebuildable()


def raise_value_error() -> None:
    raise ValueError("bad sample")


def raise_own_error() -> None:
    raise OwnError(1, 2)


def raise_stop_iteration() -> None:
    raise StopIteration


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_hard() -> None:
    os._exit(7)


def exit_soft() -> None:
    sys.exit(3)


def crash() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def hang() -> None:
    time.sleep(HANG_SECONDS)


def unpicklable_sample() -> dict[str, Any]:
    return {"image": 1, "meta": (i for i in range(3))}


class Listing(Collator):
    """Leaves the samples of a batch as they are."""

    def apply(self, inputs: Any) -> Any:
        return list(inputs)


class Ragged(Dataset):
    """Sample 5 has a shape of its own."""

    def __getitem__(self, index: int) -> Any:
        return np.zeros((3, 4 if index == 5 else 3), np.float32)

    def __len__(self) -> int:
        return 8


class Lying(Numbers):
    """Has fewer samples than it says."""

    def __getitem__(self, index: int) -> Any:
        return [np.zeros(1)] * 6 if index < 0 else ([np.zeros(1)] * 6)[index]


class Pids(Numbers):
    """Every sample is the process that read it; reading hangs from `stuck_from` on."""

    def __init__(self, size: int, stuck_from: int | None = None) -> None:
        super().__init__(size)
        self.stuck_from = size if stuck_from is None else stuck_from

    def __getitem__(self, index: int) -> Any:
        if index >= self.stuck_from:
            hang()
        return np.array([os.getpid()])


class Draws(Numbers):
    """Sample i holds what the generators of its process draw."""

    def __getitem__(self, index: int) -> Any:
        return random.random(), float(np.random.rand()), get_worker_info().seed


class CountUp(StreamDataset):
    """Yields 0 to `size` - 1, or a worker's share of them; `action` runs at number `at`."""

    def __init__(
        self, size: int, at: int = -1, action: Callable[[], object] = raise_value_error
    ) -> None:
        self.size = size
        self.at = at
        self.action = action

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.idx, info.worker)
        for number in range(start, self.size, step):
            if number == self.at:
                self.action()
            yield np.array([number])


class AddOne(Transform):
    def apply(self, input: Any) -> Any:
        return input[0] + 1, input[1]


class Refusing(Transform):
    """Refuses sample 5."""

    def apply(self, input: Any) -> Any:
        if input[1] == 5:
            raise KeyError("five")
        return input


def note_start(index: int) -> None:
    np.random.seed(1000 + index)


def fail_to_start(index: int) -> None:
    raise ValueError(f"no start for {index}")
