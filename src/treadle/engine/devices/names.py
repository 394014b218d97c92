"""Device names: logical (`xpux:0`), physical (`cpu0:0`), and how one becomes the other."""

from __future__ import annotations

import atexit
import difflib
import os
import re
import threading
from typing import Any, NamedTuple

import numpy as np

from treadle.backends import registry
from treadle.base.env import DEFAULT_DEVICE
from treadle.base.errors import DeviceError
from treadle.base.log import get_logger
from treadle.base.process import RUNTIME
from treadle.base.spelling import of_device
from treadle.runtime.opened import OpenDevice

_HOST_KINDS = ("cpu", "multithread")
_MEGENGINE_KINDS = ("cpu", "gpu", "xpu", "rocm", "multithread", "cambricon", "atlas")
_NAME = re.compile(r"([a-z_]+?)(x|[0-9]+|(?=:))(?::([0-9]+))?")
_NAMES = "xpux, cpux, gpux, cpu0, cpu1, gpu0, multithread2"
_STREAM = "each with an optional :stream"


class Name(NamedTuple):
    """The parts of a device name: kind, number (or "x") and stream."""

    kind: str
    number: str
    stream: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}:{self.stream}"


def parse(text: str) -> Name:
    """Split a device name.

    Raises:
        DeviceError: the name is malformed (the message lists valid forms), or belongs to a
            backend that could not be loaded (the cause is attached).
    """
    match = _NAME.fullmatch(text)
    if match is None or not _known_kind(match[1]):
        why, cause = registry.why_missing(match[1]) if match is not None else ("", None)
        if why:
            hint = "treadle.backends() lists what was found"
            raise DeviceError("device", f"there is no device {text!r}: {why}", hint=hint) from cause
        problem = f"{text!r} is not a device name{of_device(text) or _nearest(text)}"
        valid = ", ".join((_NAMES, *(f"{k}{i}" for k, n in _installed() for i in range(min(n, 4)))))
        raise DeviceError("device", problem, hint=f"valid: {valid}, {_STREAM}")
    # MegEngine's "cpu:0" names a stream of the default device.
    number = str(int(match[2])) if match[2].isdecimal() else "x"
    return Name(match[1], number, int(match[3] or 0))


def _installed() -> list[tuple[str, int]]:
    """Kinds of devices of plug-ins, and how many there are."""
    serving = [e for e in registry.offered() if e.kinds and e.kinds[0] not in _MEGENGINE_KINDS]
    return [(e.kinds[0], e.count) for e in serving if e.count]


def _nearest(text: str) -> str:
    """`; did you mean ...?` for a name that is like a plug-in's device, or nothing."""
    kind = text.partition(":")[0].rstrip("0123456789")
    near = difflib.get_close_matches(kind, [k for k, _ in _installed()], n=1)
    number = text.partition(":")[0][len(kind) :] or "0"
    return f"; did you mean {near[0] + number!r}?" if near else ""


def _known_kind(kind: str) -> bool:
    return kind in _MEGENGINE_KINDS or registry.for_kind(kind) is not None


class _Named(type):
    """Lets `CompNode("gpu0")` mean the device of that name, as it does in MegEngine."""

    def __call__(cls, logical: Any = "xpux", physical: Name | None = None) -> Any:
        return resolve(str(logical)) if physical is None else super().__call__(logical, physical)


class CompNode(metaclass=_Named):
    """Place of a tensor: a logical name and the physical device it stands for.

    There is one object per logical name. `str` is the logical name, `repr` shows both. Equality
    with strings compares logical names, a missing stream counting as `:0`.
    """

    __slots__ = ("_index", "_opened", "kind", "logical_name", "physical_name")

    def __init__(self, logical: Name, physical: Name) -> None:
        self.logical_name = str(logical)
        self.physical_name = str(physical)
        self.kind = physical.kind
        self._index = int(physical.number)
        self._opened: OpenDevice | None = None

    def __str__(self) -> str:
        return self.logical_name

    def __repr__(self) -> str:
        return f'CompNode("{self.physical_name}" from "{self.logical_name}")'

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.logical_name == (other if ":" in other else other + ":0")
        return (
            isinstance(other, CompNode)
            and self.logical_name == other.logical_name
            and self.physical_name == other.physical_name
        )

    def __hash__(self) -> int:
        return hash(self.logical_name)

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve, (self.logical_name,)

    @property
    def physical_locator(self) -> tuple[str, int, int]:
        """(kind, number, stream) of the physical device."""
        return self.kind, self._index, int(self.physical_name.rpartition(":")[2])

    @property
    def place(self) -> tuple[str, int]:
        """Key that must be equal for tensors to meet in one op: kind and number, not the stream."""
        return self.kind, self._index

    @property
    def memory(self) -> tuple[str, int]:
        """Key that is equal for devices that share memory, as all names of the host do."""
        return ("cpu", 0) if self.on_host else self.place

    @property
    def on_host(self) -> bool:
        """True if tensors here are plain host arrays."""
        return self.kind in _HOST_KINDS

    def open(self) -> OpenDevice:
        """The opened device; streams of one device share it."""
        if self._opened is None:
            self._opened = _open(self.kind, self._index)
        return self._opened


_LOCK = threading.RLock()
_RESOLVED: dict[str, CompNode] = {}
_OPEN: dict[tuple[str, int], OpenDevice] = {}
_BEFORE: dict[str, CompNode] = {}
"""Host devices as they were before a rescan: tensors there live on, and compare by identity."""
_NOTICED = [False]
_FASTEST: list[str | None] = [None]
"""Device that `xpu` means, once it was asked for."""


def resolve(text: str) -> CompNode:
    """The device a name stands for; the choice behind `x` is made once per process.

    Raises:
        DeviceError: the name is malformed, or no such device exists (the message says how many
            there are).
    """
    found = _RESOLVED.get(text)
    if found is not None:
        return found
    with _LOCK:
        logical = parse(text)
        full = str(logical)
        if full not in _RESOLVED:
            node = CompNode(logical, _physical(logical))
            before = _BEFORE.get(full)
            _RESOLVED[full] = before if before is not None and before == node else node
        _RESOLVED[text] = _RESOLVED[full]
        return _RESOLVED[full]


def _physical(logical: Name) -> Name:
    kind = fastest_kind() if logical.kind == "xpu" else logical.kind
    index = 0 if logical.number == "x" else int(logical.number)
    if kind in _HOST_KINDS:
        return Name(kind, str(index), logical.stream)
    entry = registry.for_kind(kind)
    count = 0 if entry is None else entry.count
    if entry is None or index >= count:
        saw = "" if entry is None or count else entry.why_none
        hint = "use cpux, or install a backend for it; treadle.backends() lists what was found"
        if count:
            last = f" {'and' if count == 2 else 'to'} {kind}{count - 1}" if count > 1 else ""
            hint = f"{kind}0{last} {'exists' if count == 1 else 'exist'}"
        problem = f"there is no device {logical.kind}{index}: {count} of this kind exist"
        raise DeviceError("device", problem, saw=saw, hint=hint)
    return Name(entry.kinds[0], str(index), logical.stream)


def device_count(kind: str) -> int:
    """Return how many devices of a kind exist; all CPU names are logical devices on the
    one host.
    """
    if kind == "xpu":
        return device_count(fastest_kind())
    if kind in _HOST_KINDS:
        return 1
    entry = registry.for_kind(kind)
    return 0 if entry is None else entry.count


def fastest_kind() -> str:
    """The kind that `xpu` means here: the offered backend that ranks highest and works, or `cpu`.

    A device works if it opens and returns the bytes that it was given; one that does not is left
    out with a warning. The answer is kept until backends are looked for again.
    """
    with _LOCK:
        kind = _FASTEST[0]
        if kind is None:
            offers = [e for e in registry.offered() if e.kinds and e.count and e.rank[1] > 0]
            ranked = sorted(offers, key=lambda e: e.rank, reverse=True)
            kind = next((e.kinds[0] for e in ranked if _works(e.kinds[0])), "cpu")
            _FASTEST[0] = kind
        return kind


def _works(kind: str) -> bool:
    sent = np.arange(16, dtype=np.int32)
    returned = np.zeros_like(sent)
    try:
        device = _open(kind, 0)
        block = device.upload(sent)
        device.download(block, returned)
        device.release(block)
    except DeviceError as error:
        problem = str(error).partition("\n")[0]
    else:
        if np.array_equal(sent, returned):
            return True
        problem = f"{kind}0 does not return the bytes that were copied to it"
    get_logger().warning("%s0 is not used for xpux: %s", kind, problem)
    return False


def _open(kind: str, index: int) -> OpenDevice:
    with _LOCK:
        if (kind, index) not in _OPEN:
            entry = registry.for_kind(kind)
            name = f"{kind}{index}"
            if entry is None:
                raise DeviceError("device", f"no backend serves {name}")
            try:
                raw = entry.open(index)
            except Exception as error:
                raise DeviceError(
                    name,
                    f"its backend failed to open it: {type(error).__name__}: {error}",
                    hint="use cpux meanwhile",
                ) from error
            _OPEN[kind, index] = OpenDevice(name, raw)
        return _OPEN[kind, index]


def opened() -> list[OpenDevice]:
    """Every device in use other than the host."""
    with _LOCK:
        return list(_OPEN.values())


def reset(text: str) -> None:
    """Close a device and open it anew when it is next used, after it was lost for instance.

    Tensors that live there alone are lost; copies on the host stay.

    Raises:
        DeviceError: the name is malformed, or no such device exists.
    """
    node = resolve(text)
    with _LOCK:
        before = _OPEN.pop(node.place, None)
        if before is not None:
            before.close()
        for other in _RESOLVED.values():
            if other.place == node.place:
                other._opened = None
    RUNTIME.invalidate("devices")


def close_all() -> None:
    """Close every opened device; a program's end does it, tests may."""
    with _LOCK:
        while _OPEN:
            _OPEN.popitem()[1].close()


def _forget() -> None:
    """Close devices after a rescan and decide anew what names stand for."""
    with _LOCK:
        close_all()
        _BEFORE.update({n.logical_name: n for n in _RESOLVED.values() if n.on_host})
        for node in _BEFORE.values():
            node._opened = None
        _RESOLVED.clear()
        _DEFAULT.node = None
        _FASTEST[0] = None


def _left_behind() -> None:
    for device in _OPEN.values():
        device.left_behind()


os.register_at_fork(after_in_child=_left_behind)
atexit.register(close_all)
RUNTIME.after("backends", _forget)


# -- the default device --------------------------------------------------------------------


class _Default:
    """The default device's name (kept as given) and, once a tensor was made, what it means."""

    __slots__ = ("chosen", "name", "node")

    def __init__(self) -> None:
        self.name: str | None = None
        self.chosen = False  # by a call; the environment's choice is asked of the environment
        self.node: CompNode | None = None


_DEFAULT = _Default()


def default_name() -> str:
    """The name last set, else the environment's, else `xpux`; exactly as it was given."""
    if _DEFAULT.name is None:
        name = DEFAULT_DEVICE.get()
        try:
            parse(name)
        except DeviceError as error:
            source = DEFAULT_DEVICE.source()
            raise DeviceError(source, f"{name!r} is not a device name", hint=error.hint) from None
        _DEFAULT.name = name
    return _DEFAULT.name


def set_default_name(name: str) -> None:
    """Change where new tensors are made; existing tensors stay where they are."""
    kind, number, _ = parse(name)
    _DEFAULT.name, _DEFAULT.node, _DEFAULT.chosen = name, None, True
    if kind == "xpu" or kind in _HOST_KINDS:
        return  # What xpux means is found out with the first tensor, and there is always a host.
    count = device_count(kind)
    if count <= (0 if number == "x" else int(number)):
        entry = registry.for_kind(kind)
        why = f": {entry.why_none}" if entry is not None and entry.why_none else ""
        get_logger().warning(
            "the default device is %s, and %d of this kind exist%s", name, count, why
        )


def default_device() -> CompNode:
    """The device of new tensors; the first call may say why no GPU is used."""
    node = _DEFAULT.node
    if node is None:
        name = default_name()
        node = resolve(name)
        _DEFAULT.node = node
        if parse(name).kind == "xpu":
            _notice(node, named=_DEFAULT.chosen or bool(DEFAULT_DEVICE.source()))
    return node


def leave_notice_to_others() -> None:
    """Say nothing of missing GPUs, where another process of the same program does."""
    _NOTICED[0] = True


def _notice(node: CompNode, *, named: bool) -> None:
    """Say once why the CPU is used: to those who named `xpux`, and where a GPU lies idle."""
    if not node.on_host or _NOTICED[0]:
        return
    _NOTICED[0] = True
    silence = "Call set_default_device('cpux') to choose it and silence this; see docs/devices.md"
    idle = next((e for e in registry.offered() if e.idle), None)
    if idle is not None:
        get_logger().warning(
            "a GPU is present and not used (%s): CPU mode is used. %s", idle.why_none, silence
        )
    elif named:
        get_logger().warning(
            "failed to load the CUDA driver (no usable GPU backend was found): CPU mode is used. "
            + silence
        )
