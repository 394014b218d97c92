"""The protocol between Treadle and a backend, in tiers; plug-in authors import from here.

Tier 0 (`Backend`, `Device`) supplies memory and movement and already trains every model, through
fallback. Tier 1 adds `Kernel`s one at a time, or a `Renderer` (`backends.rendering`) for all ops at
once; tier 2 compiles parts of programs (`backends.segments`). An `Engine` runs ops on arrays of a
device kind that it names; the reference engine serves the host. Views, broadcasting, promotion,
gradients and fallback never reach a backend.

`Backend` and `Device` are protocols with defaults: derive from them and write what has none, or
supply objects of the same shape. What is optional is found by its presence (`kernels`,
`PeerDevice`, `Counting`, `Extending`, `Rewriting`), never by comparing versions. What a backend
raises reaches users with the device, the op and their line; `MemoryError` and `DeviceLost` mean
what they say.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from treadle.base.errors import DeviceLost
from treadle.base.types import TensorType
from treadle.runtime.api import (
    Buffer,
    CachingDevice,
    Device,
    DeviceInfo,
    DoneEvent,
    Event,
    PartDevice,
    PeerDevice,
    QueueDevice,
    SpanEvent,
    Stream,
    SynchronousStream,
    TimedEvent,
    TimingDevice,
)

if TYPE_CHECKING:  # Processes that run compiled code need no op.
    from treadle.graph.passes import Pass
    from treadle.ops.op import Op
    from treadle.runtime.comm.carriers import Offer

__all__ = [
    "PROTOCOL",
    "Availability",
    "Backend",
    "Buffer",
    "CachingDevice",
    "Carrying",
    "Counting",
    "Device",
    "DeviceInfo",
    "DeviceLost",
    "DoneEvent",
    "Engine",
    "Event",
    "Extending",
    "Kernel",
    "KernelFunction",
    "LowPrecision",
    "Operand",
    "PartDevice",
    "PeerDevice",
    "QueueDevice",
    "Reason",
    "Rewriting",
    "SpanEvent",
    "Stream",
    "Support",
    "SynchronousStream",
    "TimedEvent",
    "TimingDevice",
    "no",
    "yes",
]

PROTOCOL = (1, 2)
"""Version of this protocol: a backend whose major number differs is refused when it is loaded.

The minor number counts additions: 1 brought names of kernels, programs, renderers, segments,
further queues and `DeviceLost`; 2 passes, times of launches, memory that is kept, and who carries
arrays between processes. A backend with a larger minor number is loaded with a remark, as it may
count on what is not there. A backend states the number it was written for as a literal; repeating
this name would claim to fit every future version.
"""

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
    "failure",
]
"""Codes of refusals. `policy` is a choice, the user's or the framework's, and `failure` the
framework's own: the device failed, and the op ran again on the host because that was asked for; or
the question itself failed. An engine whose question raises means no by `CompileError`,
`UnsupportedOp` and `NotImplementedError`; what else it raises is logged once, as its defect."""


_REASONS: tuple[str, ...] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class Support:
    """The answer to "can you run this?": yes, or a reason code and a message."""

    ok: bool
    reason: Reason | Literal[""] = ""
    message: str = ""

    def __bool__(self) -> bool:
        return self.ok


def yes() -> Support:
    """Return the answer that the op can be run."""
    return Support(True)


def no(reason: Reason, message: str) -> Support:
    """Return the answer that the op cannot be run; explain and reports show the message.

    Raises:
        ValueError: the reason is none of `Reason`.
    """
    if reason not in _REASONS:
        raise ValueError(f"no({reason!r}, ...): the reason must be one of {', '.join(_REASONS)}")
    return Support(False, reason, message)


@dataclass(frozen=True, slots=True)
class Availability:
    """Outcome of probing: whether the hardware is usable, how many devices, and how eagerly.

    `priority` above 0 offers the backend for the default device `xpux`; the highest wins. A
    `count` although it is not `ok` says that devices are there and why they cannot be used, which
    users of `xpux` are told once. `lacks_library` says that what the backend is made with, its
    packages or the vendor's driver, is not installed.
    """

    ok: bool
    reason: str = ""
    count: int = 0
    priority: int = 0
    lacks_library: bool = False


@dataclass(slots=True)  # Not frozen: several are made per launch, and that would take longer.
class Operand:
    """One argument of a kernel: dense row-major memory, as `alloc` returned it, and its type.

    The memory may be larger than `type.nbytes`.
    """

    buffer: Buffer
    type: TensorType


class KernelFunction(Protocol):
    """A kernel: reads `ins`, writes the pre-allocated `outs`, in the order of `stream`.

    `attributes` are the op's, by name. What it raises reaches the user with the op's name: saying
    yes in `supports` is a promise. `MemoryError` means that there was no room, `DeviceLost` that
    the device is gone for good; then nothing is asked of it any more.
    """

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

    Operands arrive dense and, for elementwise ops, already broadcast to the result's shape. An
    input may be empty; where all results are, nothing is launched. Ops whose result's shape
    depends on data are never asked. Several kernels of one op are asked in order of priority,
    then of listing, once for each new combination of operand types.

    `supports` gets the op with its attributes and the operands' types as the user gave them,
    before broadcasting. `name` is what explanations and TREADLE_KERNEL call it among kernels of
    the same op; it is the backend's name where it is left out.
    """

    op: str
    run: KernelFunction
    supports: Callable[[Op, Sequence[TensorType]], Support] = _always
    priority: int = 0
    name: str = ""


class Backend(Protocol):
    """A family of devices, or (without `device_kinds`) a home for an `Engine`.

    The object named by the entry point implements this.
    """

    name: str
    protocol: tuple[int, int]
    """The version it was written for, as a literal such as `(1, 0)`; see `PROTOCOL`."""
    device_kinds: tuple[str, ...] = ()
    """Device names it serves without their number, for example `("gpu", "cuda")`: lower-case
    letters and underscores. All are names of the same devices; the first one is shown."""

    @abstractmethod
    def probe(self) -> Availability:
        """Look for the hardware without touching it more than needed."""
        ...

    def open(self, index: int, /) -> Device:
        """Open device `index`, below the count that `probe` found; called once for each."""
        raise NotImplementedError(f"{self.name} has no devices")

    def kernels(self) -> Sequence[Kernel]:
        """Tier 1: the ops it runs itself; an empty sequence is a complete tier-0 backend."""
        return ()


@runtime_checkable
class Engine(Protocol):
    """Runs ops on arrays that live on devices of the kinds it serves."""

    name: str
    serves: tuple[str, ...]
    priority: int
    """Engines are asked in falling order; the reference engine's is 0, and it runs everything."""

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        """A launch, which takes the operands' arrays and returns new ones, or why there is none.

        Where `op.shape_free`, the answer is kept for the element types alone: `types` are those of
        the first call, and the launch must take any other shapes. A launch returns one array, or
        a tuple for ops with several results; it raises ValueError, TypeError or IndexError for
        operands that do not fit, which the framework explains.
        """
        ...


@runtime_checkable
class Counting(Protocol):
    """Optional: a backend that counts what it does, for `treadle.report`."""

    def counters(self) -> Mapping[str, int]:
        """Numbers since the process began, by what they count: `{"kernels compiled": 3}`."""
        ...


@runtime_checkable
class Extending(Protocol):
    """Optional: a backend with functions of its own, such as a switch of the clock's speed."""

    extras: Mapping[str, Callable[..., Any]]
    """Functions by name: attributes of `treadle.get_device_module(kind)`."""


@runtime_checkable
class Rewriting(Protocol):
    """Optional: a backend with passes over graphs (`treadle.graph.passes.Pass`) of its own.

    They run at the end of the first part of the prepare stage, on every program that lives on its
    devices or that it takes part in as an engine; what they leave is verified. Their names are
    told by `treadle.backends()`, and `Options(disabled=(name,))` leaves one out. Programs that a
    pass has seen are kept on disk where it has a `version` besides its name: a text that is another
    one whenever its results may be.
    """

    passes: Sequence[Pass]


@runtime_checkable
class Carrying(Protocol):
    """Optional: a backend of GPUs (`gpu`) with a library that carries arrays between processes.

    Its compiler or kernels run collectives by it; `treadle.runtime.comm.carriers.why_not` tells
    them whether all ranks of a group can.
    """

    def offers(self, index: int, /) -> Mapping[str, Offer]:
        """Return, by the name of a library, what this process has of it for device `index`."""
        ...


@runtime_checkable
class LowPrecision(Protocol):
    """Optional: a backend on whose devices mixed precision casts the operands of further ops."""

    amp: Mapping[str, Collection[str]]
    """Names of ops under "low", for the type of few bits, and "high", for the one of many.

    They come on top of the framework's lists, and before them.
    """
