"""Watching nodes while a traced module runs, sub-graphs included."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from treadle.traced_module.node import Node


class EndReached(Exception):
    """All end points have values: the run stops."""


class Probe:
    """Keeps the values of some nodes; stops the run when all `ends` have been seen."""

    def __init__(self, watched: Sequence[Node], ends: Sequence[Node]) -> None:
        self._wanted = {*watched, *ends}
        self._missing = set(ends)
        self._stops = bool(ends)
        self.values: dict[Node, Any] = {}

    def see(self, made: Mapping[Node, Any]) -> None:
        """Look at what an expression made."""
        for node in self._wanted & made.keys():
            self.values[node] = made[node]
            self._missing.discard(node)
        if self._stops and not self._missing:
            raise EndReached


@dataclass(slots=True)
class RunRecord:
    """Record of a traced module's runs; an object, so that it is not a part of the tree."""

    nodes: tuple[Node, ...] = ()
    ends: tuple[Node, ...] = ()
    values: dict[Node, Any] = field(default_factory=dict)


class _Local(threading.local):
    """One thread's probe."""

    probe: Probe | None = None


_LOCAL = _Local()


def active() -> Probe | None:
    """The probe of the run that is going on in this thread."""
    return _LOCAL.probe


@contextmanager
def watching(probe: Probe) -> Iterator[None]:
    """Show a probe the runs made in the block."""
    before, _LOCAL.probe = _LOCAL.probe, probe
    try:
        yield
    finally:
        _LOCAL.probe = before
