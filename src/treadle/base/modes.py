"""Thread-local modes through which autodiff's tape and jit's capture see every op.

A hook belongs to the thread that installed it. `ACTIVE.count` says how many threads have one, so
that the eager fast path pays one attribute read while none has.

A casting rule is what mixed precision installs. It is asked before the hook, for the ops a user's
code applies, and never while gradients are computed.

While a capture is on, ops append to a graph instead of running. The capture stands below the tape:
whatever the tape does not record, and everything it runs itself, goes to the capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Hook(Protocol):
    """The interface by which autodiff's tape and jit's capture see every op of their thread."""

    def apply(self, op: Any, inputs: tuple[Any, ...], /) -> tuple[Any, ...]:
        """Run `op` on operands in place of the plain eager path and return its results."""
        ...

    def binary(self, op: Any, launch: Any, kind: Any, x: Any, y: Any, /) -> Any:
        """The same for an arithmetic operator whose launch and result kind are known."""
        ...


class Capturing(Hook, Protocol):
    """The interface of a capture for code that reads or makes host data."""

    def create(self, op: Any, device: Any, /) -> tuple[Any, ...]:
        """Results of an op without operands."""
        ...

    def born(self, tensor: Any, /) -> None:
        """Take note of a tensor made of host data: it is a constant of the program."""
        ...

    def literal(self, value: Any, kind: Any, /) -> Any:
        """A tensor for a Python number."""
        ...

    def rebound(self, tensor: Any, value: Any, /) -> None:
        """Take note that a handle is about to stand for the value of another one."""
        ...

    def watch_grad(self, tensor: Any, /) -> None:
        """`tensor.grad` is about to be read or replaced."""
        ...

    def host_value(
        self,
        key: Any,
        read: Callable[..., Any],
        kind: Any,
        shape: tuple[int, ...] = (),
        extents: tuple[Any, ...] = (),
        /,
    ) -> Any:
        """A tensor of `shape` that holds what `read(*extents)` returns at each call."""
        ...

    @property
    def for_file(self) -> bool:
        """True if the program is for a model file, which takes nothing from Python."""
        ...

    def random_state(self, stream: Any, blocks: Any, kind: Any, /) -> Any:
        """The state of a generator, which moves on by `blocks`; `stream` is an `RNG`."""
        ...

    def enter_manager(self, outer: bool, /) -> None:
        """Take note of a manager that begins to record; `outer`: inside one that began before."""
        ...

    def guard(self, read: Callable[[], Any], value: Any, /) -> None:
        """Limit the program to calls in which `read()` returns `value`."""
        ...

    @property
    def endings(self) -> list[Callable[[], None]]:
        """Called when the captured function has returned; their ops join the program."""
        ...


class Casting(Protocol):
    """The interface of mixed precision, which casts operands to the precision of an op."""

    @property
    def key(self) -> tuple[str, ...]:
        """Key of the programs that are captured under these rules."""
        ...

    def __call__(self, op: Any, inputs: tuple[Any, ...], /) -> tuple[Any, ...]:
        """The operands, cast where the op asks for it."""
        ...


class Active:
    """Count of hooks and casting rules; read without a lock, as a hint."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class _Local(threading.local):
    """One thread's installed hook, its capture, and its casting rule."""

    hook: Hook | None = None
    capture: Capturing | None = None
    # On the class: the rule of threads that have set none.
    casting: Casting | None = None

    def __init__(self) -> None:
        self.castings: list[Any] = []


ACTIVE = Active()
LOCAL = _Local()
_LOCK = threading.Lock()


def install(hook: Hook | None) -> Hook | None:
    """Make `hook` see this thread's ops, or the capture where it is None; returns the old one."""
    before = LOCAL.hook
    LOCAL.hook = after = LOCAL.capture if hook is None else hook
    with _LOCK:  # `+=` on an attribute is not atomic.
        ACTIVE.count += (after is not None) - (before is not None)
    return before


def install_capture(capture: Capturing | None, hook: Hook | None = None) -> None:
    """Start (or, with None, end) a capture on this thread; `hook` then sees the ops first."""
    LOCAL.capture = capture
    install(hook)


def capturing() -> Capturing | None:
    """Return this thread's capture; None if there is none."""
    return LOCAL.capture if ACTIVE.count else None


# -- mixed precision ---------------------------------------------------------------------------

_NONE_OF_ITS_OWN = object()


def casting() -> Casting | None:
    """The casting rule of this thread, if there is one."""
    return LOCAL.casting if ACTIVE.count else None


def push_casting(rule: Casting | None) -> None:
    """Cast by another rule, or by none, on this thread until `pop_casting`."""
    LOCAL.castings.append(LOCAL.__dict__.get("casting", _NONE_OF_ITS_OWN))
    LOCAL.casting = rule
    _count(1)


def pop_casting() -> None:
    """Go back to what was before the last `push_casting`."""
    before = LOCAL.castings.pop()
    if before is _NONE_OF_ITS_OWN:
        del LOCAL.casting
    else:
        LOCAL.casting = before
    _count(-1)


def set_default_casting(rule: Casting | None) -> None:
    """Cast by a rule, or by none, on all threads that have no rule of their own."""
    _count((rule is not None) - (_Local.casting is not None))
    _Local.casting = rule


@contextmanager
def uncast() -> Iterator[None]:
    """No casts inside the block: gradients have the precisions that the forward pass chose."""
    if casting() is None:
        yield
        return
    push_casting(None)
    try:
        yield
    finally:
        pop_casting()


def _count(change: int) -> None:
    with _LOCK:
        ACTIVE.count += change


def depend_on(read: Callable[[], Any]) -> None:
    """A program that is being captured holds only while `read()` gives what it gives now."""
    capture = capturing()
    if capture is not None:
        capture.guard(read, read())
