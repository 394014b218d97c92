"""Groups of ops that the user wants to be one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from treadle.base.errors import TraceError
from treadle.base.modes import LOCAL
from treadle.jit.capture import Capture


@contextmanager
def fuse(name: str) -> Iterator[None]:
    """Ask that the ops captured inside the block run as one kernel.

    Composites among them are taken apart first. All ops of the name are merged, wherever in the
    program they stand, if no op outside lies between them and the compiler has a kernel for all
    of them together; otherwise they are grouped as usual. `explain()` says what became of the name.
    Without a capture, and with level 0 or fusion turned off, the block changes nothing.

    Args:
        name: of the group. A block inside another one has its own name.

    Raises:
        TraceError: the name is empty.

    Example:
        >>> import treadle as mge
        >>> @mge.jit.compile
        ... def scaled(x, y):
        ...     with mge.jit.fuse("scale"):
        ...         return (x * 2 + y) / 3
        >>> _ = scaled(mge.tensor([1.0, 4.0]), mge.tensor([1.0, 1.0]))
        >>> scaled.explain(form="json")["groups"][0]["name"]
        'scale'
    """
    if not name:
        raise TraceError("jit.fuse", "a group has no name", hint='write fuse("name")')
    capture = LOCAL.capture
    if not isinstance(capture, Capture):
        yield
        return
    with capture.grouped(name):
        yield


__all__ = ["fuse"]
