"""The protocol between Treadle and a backend, in tiers; plug-in authors import from here.

Tier 0 (`Backend`, `Device`) supplies memory and movement and already trains every model, through
fallback. Tier 1 adds `Kernel`s one at a time. An `Engine` runs ops on arrays of a device kind that
it names; the reference engine serves the host. Views, broadcasting, promotion, gradients and
fallback never reach a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from treadle.base.types import TensorType
from treadle.ops.op import Op
from treadle.runtime.api import (
    Buffer,
    Device,
    DeviceInfo,
    DoneEvent,
    Event,
    Stream,
    SynchronousStream,
)

__all__ = [
    "PROTOCOL",
    "Availability",
    "Backend",
    "Buffer",
    "Device",
    "DeviceInfo",
    "DoneEvent",
    "Engine",
    "Event",
    "Kernel",
    "Operand",
    "Stream",
    "Support",
    "SynchronousStream",
    "no",
    "yes",
]

PROTOCOL = (1, 0)
"""Version of this protocol: a backend whose major number differs is refused when it is loaded."""

Reason = Literal[
    "op",
    "dtype",
    "rank",
    "shape",
    "dynamic-shape",
    "layout",
    "attribute",
    "alias",
    "size-limit",
    "precision",
    "device-feature",
    "policy",
]


@dataclass(frozen=True, slots=True)
class Support:
    """The answer to "can you run this?": yes, or a reason code and a message."""

    ok: bool
    reason: Reason | Literal[""] = ""
    message: str = ""

    def __bool__(self) -> bool:
        return self.ok


def yes() -> Support:
    """The op can be run."""
    return Support(True)


def no(reason: Reason, message: str) -> Support:
    """The op cannot be run; the message is shown by explain and fallback reports."""
    return Support(False, reason, message)


@dataclass(frozen=True, slots=True)
class Availability:
    """What probing found: whether the hardware is usable, how many devices, and how eagerly.

    `priority` above 0 offers the backend for the default device `xpux`; the highest wins.
    """

    ok: bool
    reason: str = ""
    count: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of a kernel: dense row-major memory and its type."""

    buffer: Buffer
    type: TensorType


class KernelFunction(Protocol):
    """A kernel: reads `ins`, writes the pre-allocated `outs`, in the order of `stream`."""

    def __call__(
        self,
        device: Device,
        outs: Sequence[Operand],
        ins: Sequence[Operand],
        attributes: Mapping[str, Any],
        stream: Stream,
        /,
    ) -> None: ...


def _always(op: Op, types: Sequence[TensorType], /) -> Support:
    return yes()


@dataclass(frozen=True, slots=True)
class Kernel:
    """An op's implementation on a device.

    Operands arrive dense and already broadcast to the result's shape for elementwise ops.
    Several kernels of one op are asked in order of priority, then of listing.
    """

    op: str
    run: KernelFunction
    supports: Callable[[Op, Sequence[TensorType]], Support] = _always
    priority: int = 0


class Backend(Protocol):
    """A family of devices. The object named by the entry point implements this."""

    name: str
    protocol: tuple[int, int]
    device_kinds: tuple[str, ...]
    """Device names it serves without their number, for example `("gpu", "cuda")`."""

    def probe(self) -> Availability:
        """Look for the hardware without touching it more than needed."""
        ...

    def open(self, index: int, /) -> Device:
        """Open device `index`."""
        ...

    def kernels(self) -> Sequence[Kernel]:
        """Tier 1: the ops it runs itself; an empty sequence is a complete tier-0 backend."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Runs ops on arrays that live on devices of the kinds it serves."""

    name: str
    serves: tuple[str, ...]
    priority: int

    def prepare(
        self, op: Op, types: Sequence[TensorType] | None, /
    ) -> Callable[..., Any] | Support:
        """A launch, which takes the operands' arrays and returns new ones, or why there is none.

        `types` is None where the op's launches do not depend on shapes (`Op.shape_free`). A
        launch returns one array, or a tuple for ops with several results.
        """
        ...
