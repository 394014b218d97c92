"""The default way to start worker processes."""

from __future__ import annotations


class WorkerStart:
    """The process-wide default.

    Attributes:
        method: "fork", "forkserver", "spawn", or "" for what suits the platform.
    """

    method: str = ""
