"""Backends found by entry point: listed from metadata, imported on first use, isolated.

In-tree backends come through the same door as foreign ones. A backend that cannot be imported,
lacks something, or speaks another protocol is kept here with its error, shown by `table()`, and
hurts nobody else.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from treadle.backends.api import PROTOCOL, Availability, Engine, Kernel
from treadle.backends.inspection import (
    kernel_problems,
    list_problems,
    may_come,
    newer_protocol,
    op_count,
    problems,
    tiers,
    unknown_kernels,
)
from treadle.base.edition import DISTRIBUTION
from treadle.base.env import BACKENDS, visible_devices
from treadle.base.errors import DeviceError, LoadError
from treadle.base.log import get_logger
from treadle.base.process import RUNTIME
from treadle.base.version import LITE, VERSION

GROUP = "treadle.backends"
BUILT_IN = {
    "reference": "treadle.backends.reference:backend",
    "cpu": "treadle.backends.cpu:backend",
    "cuda": "treadle.backends.cuda:backend",
    "opencl": "treadle.backends.opencl:backend",
    "openvino": "treadle.backends.openvino:backend",
}
"""Also declared as entry points; listed so that a source tree works before it is installed."""
NATIVE = {"cpu": "treadle.backends.cpu.shipped"}
"""Modules that run code out of files for those of them that do (`NativeLoader`), and are all that
`treadle-lite` has of them."""
BY_NAME = ("opencl",)
"""Built-in backends that serve only devices of their name, and are none that `xpux` could be: they
load large libraries, so nobody imports them who does not ask for them."""

State = Literal["found", "loading", "loaded", "disabled", "missing", "failed"]
"""State of a backend. `missing`: one of Treadle's own, whose optional library is not there."""


@dataclass
class BackendEntry:
    """One known backend and how far it has come."""

    name: str
    distribution: str
    load: Callable[[], Any]
    version: str = ""
    state: State = "found"
    backend: Any = None
    error: BaseException | None = None
    availability: Availability | None = None
    remark: str = ""
    visible: tuple[int, ...] | None = None
    """Numbers of the devices that are seen, as the backend counts them; None: all."""

    def serves(self, kind: str) -> bool:
        """Return whether it is loaded and its devices may be called `kind`."""
        return self.state == "loaded" and kind in self.kinds

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of its devices without their number, the one to show first."""
        return tuple(getattr(self.backend, "device_kinds", ()))

    @property
    def count(self) -> int:
        """Number of its devices that can be used."""
        found = self.availability
        if found is None or not found.ok:
            return 0
        return found.count if self.visible is None else len(self.visible)

    @property
    def idle(self) -> bool:
        """True if the machine has its devices, and something else keeps them from being used."""
        found = self.availability
        return found is not None and not found.ok and found.count > 0

    @property
    def lacks_library(self) -> bool:
        """True if it is there in vain, because what it is made with is not installed."""
        found = self.availability
        return self.state == "missing" or (found is not None and found.lacks_library)

    @property
    def rank(self) -> tuple[bool, int]:
        """Order of backends that could both serve: usable, then priority."""
        found = self.availability
        return self.count > 0, found.priority if found is not None else 0

    @property
    def why_none(self) -> str:
        """Reason why it has no devices, or what probing said of them."""
        found = self.availability
        said = "" if found is None else found.reason
        if self.visible is None or self.count:
            return said
        name, value = visible_devices(self.name)
        return "; ".join(part for part in (said, f"{name}={value!r} hides all of them") if part)

    def open(self, index: int) -> Any:
        """Open the device that counts as number `index` of those that are seen."""
        return self.backend.open(index if self.visible is None else self.visible[index])

    def kernels(self) -> Sequence[Kernel]:
        """Return the backend's kernels; none where it has no such method."""
        listed = getattr(self.backend, "kernels", None)
        return () if listed is None else tuple(listed())


_LOCK = threading.RLock()
_ENTRIES: dict[str, BackendEntry] = {}
_ENGINES: dict[str, tuple[Engine, ...]] = {}
_SCANNED = [False]
_IMPORTED: dict[str, tuple[Any, str]] = {}
"""Backends with the versions that were installed when they were first imported."""


def entries() -> dict[str, BackendEntry]:
    """All known backends by name; reads package metadata once."""
    with _LOCK:
        if not _SCANNED[0]:
            _SCANNED[0] = True
            _scan()
        return _ENTRIES


def rescan() -> None:
    """Forget what is known and read package metadata again.

    Devices of backends other than the host's are closed: tensors there are lost.
    """
    RUNTIME.invalidate("backends")


def _forget() -> None:
    importlib.invalidate_caches()
    with _LOCK:  # All three at once: who asks meanwhile must not find half.
        _ENTRIES.clear()
        _ENGINES.clear()
        _SCANNED[0] = False


RUNTIME.after("backends", _forget)


def _scan() -> None:
    from importlib import metadata  # a tenth of the import time; only needed from here on

    allowed = _allow_list()
    for name, target in BUILT_IN.items():
        point = metadata.EntryPoint(name, target, GROUP)
        _ENTRIES[name] = BackendEntry(name, DISTRIBUTION, point.load)
        if LITE is not None and name in NATIVE:
            _ENTRIES[name].state = "disabled"
            _ENTRIES[name].remark = "a compiler, and treadle-lite has none"
    for point in _entry_points(metadata):
        if BUILT_IN.get(point.name) == point.value:
            continue
        distribution, version = _origin(point)
        if point.name in _ENTRIES:
            _clash(_ENTRIES[point.name], distribution)
            continue
        entry = BackendEntry(point.name, distribution, point.load, version)
        if allowed is not None and point.name not in allowed:
            entry.state, entry.remark = "disabled", f"not in {BACKENDS.source()}"
        _ENTRIES[point.name] = entry


def _entry_points(metadata: Any) -> Iterable[Any]:
    """Every entry point of the group, in a stable order; damaged metadata spoils its own only."""
    try:
        found = list(metadata.entry_points(group=GROUP))
    except Exception:
        found = []
        for distribution in metadata.distributions():
            try:
                found += [p for p in distribution.entry_points if p.group == GROUP]
            except Exception as error:
                get_logger().warning("the entry points of a package cannot be read: %s", error)
    return sorted(found, key=lambda p: (p.name, _origin(p)))


def _origin(point: Any) -> tuple[str, str]:
    """Name and version of the distribution that declares an entry point."""
    dist = point.dist
    if dist is None:
        return "unknown", ""
    return dist.metadata["Name"] or "unknown", dist.metadata["Version"] or ""


def _allow_list() -> set[str] | None:
    text = BACKENDS.get().strip()
    if not text:
        return None
    return set() if text == "off" else {part.strip() for part in text.split(",")}


def _clash(entry: BackendEntry, other: str) -> None:
    """Two distributions claim one name: a built-in one stays, two foreign ones are both out."""
    if entry.name in BUILT_IN:
        entry.remark = f"{other} provides a backend of this name too; it is ignored"
    elif entry.state != "disabled":
        entry.state = "failed"
        entry.error = LoadError(
            entry.name,
            f"two distributions provide a backend of this name: {entry.distribution} and {other}",
            hint="uninstall one of them",
        )


# -- loading -------------------------------------------------------------------------------


def load(name: str) -> Any:
    """The backend object called `name`, imported now if it was not before.

    Raises:
        DeviceError: there is no such backend, or it is disabled.
        LoadError: it failed to import or speaks another protocol; the cause is attached.
    """
    entry = entries().get(name)
    if entry is None or entry.state == "disabled":
        known = ", ".join(sorted(n for n, e in entries().items() if e.state != "disabled"))
        problem = f"there is no backend called {name!r}"
        if entry is not None:
            problem = f"the backend {name!r} is disabled: it is {entry.remark}"
        raise DeviceError("backends", problem, hint=f"one of {known}")
    _ensure(entry)
    if entry.error is not None:
        raise LoadError(
            f"backend {name}",
            f"could not be loaded: {str(entry.error).removeprefix(f'backend {name}: ')}",
            hint="treadle.backends() lists what was found",
        ) from entry.error
    return entry.backend


def _ensure(entry: BackendEntry) -> None:
    """Import a backend unless that was tried before, or is being tried further up the stack."""
    with _LOCK:
        if entry.state != "found":
            return
        entry.state = "loading"
        try:
            _import(entry)
        except (Exception, SystemExit) as error:  # a plug-in may raise anything; none may escape
            entry.state = "missing" if _lacks_library(entry, error) else "failed"
            entry.error, entry.backend = error, None
        else:
            entry.state = "loaded"


def _lacks_library(entry: BackendEntry, error: BaseException) -> bool:
    """Return whether one of our own backends is there in vain, because an extra is not
    installed.
    """
    own = entry.distribution == DISTRIBUTION
    return own and isinstance(error, ModuleNotFoundError) and "treadle" not in str(error.name)


def _import(entry: BackendEntry) -> None:
    entry.backend = backend = entry.load()
    where = f"backend {entry.name}"
    wrong = problems(backend, built_in=entry.name in BUILT_IN)
    if wrong:
        raise LoadError(where, "; ".join(wrong), hint="see treadle.backends.api.Backend")
    if backend.protocol[0] != PROTOCOL[0]:
        raise LoadError(
            where,
            f"speaks protocol {backend.protocol[0]}, this Treadle speaks {PROTOCOL[0]}",
            saw=f"{entry.distribution} {entry.version}, treadle {VERSION}",
            hint=f"install versions of {entry.distribution} and treadle that match",
        )
    found = backend.probe()
    if not isinstance(found, Availability):
        raise LoadError(where, f"probe() returned {type(found).__name__}, not Availability")
    wrong = list_problems(backend) or kernel_problems(entry.kernels())
    if wrong:
        raise LoadError(where, wrong[0], saw=f"{len(wrong)} such functions" * (len(wrong) > 1))
    unknown = unknown_kernels(entry.kernels())
    if unknown and not may_come(entry.kernels(), backend.protocol):
        raise LoadError(where, unknown, hint="`treadle.ops.REGISTRY` has the names of all ops")
    entry.visible = _visible(entry.name, found.count)
    entry.availability = found
    remarks = (entry.remark, newer_protocol(backend.protocol), unknown)
    entry.remark = "; ".join(r for r in (*remarks, _outdated(entry)) if r)
    if entry.remark:
        get_logger().warning("backend %s: %s", entry.name, entry.remark)


def _visible(name: str, count: int) -> tuple[int, ...] | None:
    """Return the devices that the environment shows, in its order; None: all.

    Raises:
        LoadError: it is not a list of numbers of devices that exist.
    """
    variable, text = visible_devices(name)
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts in ([], ["-1"]):
        return ()
    wrong = [p for p in parts if not p.isdecimal() or int(p) >= count]
    if wrong or len(set(parts)) < len(parts):
        raise LoadError(
            variable,
            f"{text!r} is not a list of different devices",
            saw=f"{count} devices were found",
            hint="numbers from 0 on with commas between them; nothing at all or -1 hides all",
        )
    return tuple(int(p) for p in parts)


def _outdated(entry: BackendEntry) -> str:
    """A remark about a package that was changed on disk after this process had imported it."""
    before = _IMPORTED.setdefault(entry.name, (entry.backend, entry.version))
    if before[0] is entry.backend and before[1] != entry.version:
        return (
            f"version {entry.version} is installed, but this process runs {before[1]}, which it "
            "imported before; start it anew"
        )
    _IMPORTED[entry.name] = entry.backend, entry.version
    return ""


def loaded(but: Sequence[str] = ()) -> list[BackendEntry]:
    """Every backend that can be imported, importing those not yet imported, `but` some."""
    for entry in list(entries().values()):
        if entry.name not in but:
            _ensure(entry)
    return [e for e in entries().values() if e.state == "loaded"]


def offered() -> list[BackendEntry]:
    """Backends that could serve any device, the default one among them."""
    return loaded(BY_NAME)


def engines(kind: str) -> tuple[Engine, ...]:
    """Engines that serve a device kind, best first; sought once and kept."""
    found = _ENGINES.get(kind)
    if found is None:
        known = loaded([name for name in BY_NAME if name != kind])
        # One whose own devices are of this kind and missing cannot serve another maker's.
        able = [e for e in known if e.count or kind not in e.kinds]
        serving = [e.backend for e in able if isinstance(e.backend, Engine)]
        serving = [e for e in serving if kind in e.serves]
        found = tuple(sorted(serving, key=lambda e: -e.priority))
        if all(e.state != "loading" for e in entries().values()):
            _ENGINES[kind] = found
    return found


def engine_names(kind: str) -> list[str]:
    """Names that engines may be chosen by: those that serve a device kind, and all backends."""
    serving = [e.name for e in engines(kind)]
    others = [n for n, e in entries().items() if e.state != "disabled" and n not in serving]
    return serving + others


def for_kind(kind: str) -> BackendEntry | None:
    """The backend whose devices are called `kind`: the best usable one; None if there is none."""
    named = entries().get(kind)
    if named is not None:
        _ensure(named)  # an entry point usually bears its device's name: import no other
        if named.serves(kind):
            return named
    serving = [entry for entry in offered() if entry.serves(kind)]
    return max(serving, key=lambda e: e.rank, default=None)


def why_missing(kind: str) -> tuple[str, BaseException | None]:
    """Return why a backend that bears the name of a device kind does not serve it; "" if
    none does.
    """
    entry = entries().get(kind)
    if entry is None or entry.state not in ("disabled", "missing", "failed"):
        return "", None
    why = entry.remark if entry.error is None else _describe(entry).partition("\n")[0]
    state = "failed" if entry.state == "failed" else f"is {entry.state}"
    return f"the backend {kind} {state}: {why}", entry.error


def table() -> list[dict[str, str]]:
    """One row per backend: its source, state and abilities, and the error if it failed."""
    loaded()
    return [row_of(entry) for entry in entries().values()]


def row_of(entry: BackendEntry) -> dict[str, str]:
    """Return a backend's row of `table`."""
    usable = entry.state == "loaded"
    remarks = [entry.remark, _describe(entry), entry.why_none]
    kernels = entry.kernels() if usable else ()
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version or (VERSION if entry.name in BUILT_IN else ""),
        "protocol": ".".join(map(str, entry.backend.protocol)) if usable else "",
        "state": "not installed" if entry.lacks_library else entry.state,
        "devices": str(entry.count),
        "kinds": ", ".join(entry.kinds),
        "tiers": ", ".join(tiers(entry.backend, kernels)) if usable else "",
        "kernels": str(len(kernels)),
        "ops": op_count(entry.backend, kernels) if usable else "",
        "passes": ", ".join(p.name for p in getattr(entry.backend, "passes", ())) if usable else "",
        "detail": "; ".join(r for r in remarks if r),
    }


def _describe(entry: BackendEntry) -> str:
    """Return what went wrong, and what to do where a library is missing."""
    error = entry.error
    if error is None:
        return ""
    text = str(error).removeprefix(f"backend {entry.name}: ") or type(error).__name__
    if entry.state == "missing":
        is_in = LITE is None or entry.name in LITE
        return f"{text}; pip install '{DISTRIBUTION}[{entry.name}]'" if is_in else text
    if isinstance(error, ModuleNotFoundError):
        return f"{text}; pip install --force-reinstall {entry.distribution}"
    return text
