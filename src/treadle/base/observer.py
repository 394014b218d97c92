"""Whoever watches every op of the process run, a profiler for instance; at most one at a time.

Launches are found once and kept in tables. While somebody watches, those that are found are
wrapped; tables are emptied when watching begins and ends, so it costs nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from treadle.base.process import RUNTIME


class Observer(Protocol):
    """The interface of profilers."""

    def launch(self, op: Any, launch: Callable[..., Any], /) -> Callable[..., Any]:
        """A launch of `op` that is watched."""
        ...

    def program(self, name: str, run: Callable[[], Any], /) -> Any:
        """The result of `run()`, which is one run of a compiled program."""
        ...

    def module(self, module: Any, inputs: tuple[Any, ...], forward: Callable[[], Any], /) -> Any:
        """The result of `forward()`, which is one call of a module with these inputs."""
        ...


@runtime_checkable
class CompilationObserver(Observer, Protocol):
    """An observer that is told of compilation and of memory as well."""

    def stage(self, program: str, name: str, began: float, ended: float, /) -> None:
        """A stage of a program's compilation ran, by `time.perf_counter`."""
        ...

    def allocated(self, device: str, nbytes: int, held: int, /) -> None:
        """A device's allocator gave bytes, or took them back (negative), and now has `held` out."""
        ...

    def kept(self, name: str, array: Any, /) -> None:
        """Take note that a program has taken memory of the host that it keeps between runs."""
        ...


def recording() -> CompilationObserver | None:
    """Return the observer of compilation and memory, if there is one."""
    now = OBSERVER.now
    return now if isinstance(now, CompilationObserver) else None


class _Slot:
    """The observer, None where nobody watches."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: Observer | None = None


OBSERVER = _Slot()


def observe(observer: Observer | None) -> None:
    """Set the observer of launches, or remove it with None.

    Raises:
        RuntimeError: somebody else watches.
    """
    if observer is not None and OBSERVER.now is not None:
        raise RuntimeError("another profiler is running; stop it first")
    OBSERVER.now = observer
    RUNTIME.invalidate("launches")


_READERS: list[Callable[[Any], Any]] = []


def read_by(reader: Callable[[Any], Any]) -> None:
    """Register a reader of another framework's tensors: it returns arrays, None for others."""
    _READERS.append(reader)


def foreign_array(value: Any) -> Any:
    """Return the elements of another framework's tensor as an array; None of anything else."""
    return next((array for r in _READERS if (array := r(value)) is not None), None)
