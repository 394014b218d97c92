"""Recorder of this thread: one slot that nodes and patched functions look into.

Below everything else of the package, so that nodes can hand the operators that are applied to them
to whoever records, without knowing who that is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol


class Recorder(Protocol):
    """The interface of the tracer for functions, methods and nodes."""

    @property
    def listening(self) -> bool:
        """True if a call made now is the user's; calls that a recorded call makes are not."""
        ...

    @property
    def inserting(self) -> bool:
        """True if nodes, not tensors, are what the user handles."""
        ...

    def call_function(self, func: Any, run: Callable[..., Any], args: Any, kwargs: Any, /) -> Any:
        """Run a function and record the call."""
        ...

    def call_method(self, name: str, run: Callable[..., Any], args: Any, kwargs: Any, /) -> Any:
        """Run a method of a tensor, the first of `args`, and record the call."""
        ...

    def call_definition(self, op: Any, inputs: Any, /) -> Any:
        """Apply the definition of an op to tensors and record that."""
        ...

    def remember(self, extent: Any, /) -> None:
        """An extent was made, which must forget its origin when the trace is over."""
        ...

    def call_node(self, node: Any, method: str, args: Any, kwargs: Any, /) -> Any:
        """Call a method of what a node stands for."""
        ...

    def attribute(self, node: Any, name: str, /) -> Any:
        """An attribute of what a node stands for."""
        ...


class _Slot(threading.local):
    """One thread's recorder."""

    recorder: Recorder | None = None


SLOT = _Slot()


def listening() -> Recorder | None:
    """The recorder of this thread if it wants to see a call that is made now."""
    recorder = SLOT.recorder
    return recorder if recorder is not None and recorder.listening else None


def inserting() -> Recorder | None:
    """The recorder of this thread if nodes are being inserted."""
    recorder = SLOT.recorder
    return recorder if recorder is not None and recorder.inserting else None


class Opener:
    """Opens insertions; filled in by the module that knows how, which stands above graphs."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: Callable[[Any, Any], Any] | None = None


OPENER = Opener()
