"""Calls of NVIDIA's libraries as kernels of launches, and the table of their kinds.

The kernel of such a launch is a value that names the call. Its symbol is the kind's name, a space,
and the value as text; symbols of generated kernels are names of C, which have no space. So stored
programs restore it, and a device makes what launches it from the symbol alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from treadle.backends.cuda.device import CudaDevice, CudaStream
from treadle.backends.cuda.libraries import blaslt, custom, exchanges
from treadle.backends.cuda.libraries.cudnn import library as cudnn
from treadle.backends.rendering import Argument


class LibraryCall(Protocol):
    """Call of a library. A value: equal ones ask for the same."""

    @property
    def name(self) -> str:
        """Name of the call in reports and profiles."""
        ...

    @property
    def symbol(self) -> str:
        """The kind, a space, and all of the call as text."""
        ...


class CallLaunchable(Protocol):
    """A call on one device, at one place of one program."""

    @property
    def recordable(self) -> bool:
        """True if `submit` does nothing but put work into the stream it is given.

        Then it can be recorded once and replayed without being called again. What asks other
        processes, or uses a stream of its own, is not recordable.
        """
        ...

    def submit(
        self, device: CudaDevice, stream: CudaStream, arguments: Sequence[Argument], /
    ) -> None:
        """Submit it on these places, in the order of the launch's arguments.

        Where it needs memory, `stream.scratch` has it, so that nothing is allocated from the
        second time on.
        """
        ...


Opening = Callable[[CudaDevice, str], CallLaunchable]
"""From a device and a symbol to what launches the call on it."""

KINDS: Mapping[str, Opening] = {
    "cublasLt": blaslt.launchable,
    "cudnn": cudnn.launchable,
    "nccl": exchanges.launchable,
    custom.KIND: custom.launchable,
}
"""Functions that open calls, by the first word of their symbols."""


def kind_of(symbol: str) -> str:
    """The kind of a library call; empty for a generated kernel's symbol."""
    word, space, _ = symbol.partition(" ")
    return word if space else ""
