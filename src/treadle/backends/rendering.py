"""The renderer role: what a vendor supplies to run Treadle's own kernels.

Kernels are generated for a `Target` in one language (`codegen/kernel/ir.py`). A renderer prints
them in the language of its device, has them compiled, and launches them; `backends/rendered` makes
the rest of it: a compiler for whole programs and an engine for single ops. With a `Device` and a
`Renderer` a backend is complete:

    class Backend(RenderedBackend):
        def renderer(self) -> Renderer: ...
        def open(self, index) -> Device: ...
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

from treadle.backends.api import Support
from treadle.backends.codegen.target import Target
from treadle.runtime.api import Buffer, Device, Stream

Launchable = Any
"""A kernel on a device, as `Renderer.load` returned it."""
Argument = tuple[Buffer, int] | int
"""Argument of a kernel: a place, as a buffer and an offset in bytes, or a 64-bit integer."""


class Renderer(Protocol):
    """Prints, compiles, loads and launches kernels for the devices of one kind."""

    name: str

    @property
    def target(self) -> Target:
        """Return what kernels may assume: widths, registers, multiply-add, caches."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names all else that decides what a source becomes: device, driver, compiler, options.

        Binaries are kept on disk under it.
        """
        ...

    def supports(self, kernel: Any, /) -> Support:
        """Return whether the device can run a kernel: it may lack a type, for instance."""
        ...

    def render(self, kernels: Sequence[Any], /) -> str:
        """A source with a function for each of the kernels, named by `symbol_of`.

        It takes what the kernel takes, then the number of work items.
        """
        ...

    def compile(self, source: str, /) -> bytes:
        """The binary of a source.

        Raises:
            CompileError: the compiler refuses it; the message has what it says.
        """
        ...

    def load(self, device: Device, binary: bytes, symbols: Sequence[str], /) -> list[Launchable]:
        """Return the launches of these kernels of a binary; a symbol that comes twice gives two of
        them.

        Each is used for one place in one program, by one thread at a time, so that it may keep
        what it was launched with.
        """
        ...

    def launch(
        self,
        device: Device,
        launchable: Launchable,
        arguments: tuple[Argument, ...],
        items: int,
        serial: bool,
        stream: Stream,
        /,
    ) -> None:
        """Submit a kernel over [0, items), split among the device's threads in any way.

        Where `arguments` is the tuple of the launch before, nothing in it has changed. `serial`
        says that there is too little work for more than one thread of a processor.
        """
        ...


class Recording(Protocol):
    """Launches that a device submits as one."""

    def replay(self, stream: Stream, /) -> bool:
        """Submit them; False, with nothing done, where memory they name has moved since."""
        ...

    def close(self) -> None:
        """Free the recording, after all that was submitted of it has run."""
        ...


@runtime_checkable
class RecordingRenderer(Protocol):
    """Optional: a renderer whose devices record launches and submit them again as one."""

    def record(
        self, device: Device, stream: Stream, submit: Callable[[Stream], None], /
    ) -> Recording:
        """Record what `submit` launches into the stream it is given; nothing of it runs now.

        Launches are recorded with the addresses and numbers that they have. Whatever is raised,
        the stream is as it was.
        """
        ...

    def records(self, launchable: Launchable, /) -> bool:
        """Return whether a launch is nothing but work for the device, so that it can be
        recorded.
        """
        ...

    def places(self, buffers: Sequence[Buffer], /) -> tuple[Hashable, ...]:
        """Return the places of buffers: launches on equal places are the same launches."""
        ...

    def settings(self) -> Hashable:
        """Return the settings besides places and numbers that decide what a launch does; None:
        record nothing now.
        """
        ...
