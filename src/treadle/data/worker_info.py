"""The worker that the running code is in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker process the caller runs in.

    Attributes:
        idx: its number, from 0.
        worker: how many workers the loader has.
        seed: what Python's and NumPy's generators were seeded with, the epoch's base plus `idx`.
    """

    idx: int
    worker: int
    seed: int


_current: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return the worker this code runs in, or None in the main process."""
    return _current


def set_worker_info(info: WorkerInfo) -> None:
    """Declare this process to be a worker."""
    global _current
    _current = info
