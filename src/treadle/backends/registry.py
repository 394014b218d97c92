"""Backends found by entry point: listed from metadata, imported on first use, isolated.

In-tree backends come through the same door as foreign ones. A backend that cannot be imported or
speaks another protocol is kept here with its error, shown by `table()`, and hurts nobody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.backends.api import PROTOCOL, Availability, Engine
from treadle.base.env import BACKENDS
from treadle.base.errors import DeviceError, LoadError

GROUP = "treadle.backends"
BUILT_IN = {"reference": "treadle.backends.reference:backend"}
"""Also declared as entry points; listed so that a source tree works before it is installed."""


@dataclass
class Entry:
    """One known backend and how far it has come."""

    name: str
    distribution: str
    load: Callable[[], Any]
    state: str = "found"
    backend: Any = None
    error: BaseException | None = None
    availability: Availability | None = field(default=None)


_LOCK = threading.RLock()
_ENTRIES: dict[str, Entry] = {}
_SCANNED = [False]


def entries() -> dict[str, Entry]:
    """All known backends by name; reads package metadata once."""
    with _LOCK:
        if not _SCANNED[0]:
            _SCANNED[0] = True
            _scan()
        return _ENTRIES


def rescan() -> None:
    """Forget what is known and read package metadata again."""
    with _LOCK:
        _ENTRIES.clear()
        _SCANNED[0] = False


def _scan() -> None:
    from importlib import metadata  # a tenth of the import time; only needed from here on

    allowed = _allow_list()
    for name, target in BUILT_IN.items():
        point = metadata.EntryPoint(name, target, GROUP)
        _ENTRIES[name] = Entry(name, "treadle", point.load)
    for point in metadata.entry_points(group=GROUP):
        distribution = point.dist.name if point.dist is not None else "unknown"
        if BUILT_IN.get(point.name) == point.value:
            continue
        if allowed is not None and point.name not in allowed:
            _ENTRIES.setdefault(point.name, Entry(point.name, distribution, point.load, "disabled"))
        elif point.name in _ENTRIES:
            _clash(_ENTRIES[point.name], distribution)
        else:
            _ENTRIES[point.name] = Entry(point.name, distribution, point.load)


def _allow_list() -> set[str] | None:
    text = BACKENDS.get()
    if not text:
        return None
    return set() if text == "off" else {part.strip() for part in text.split(",")}


def _clash(entry: Entry, other: str) -> None:
    """Two distributions claim one name: a built-in one stays, two foreign ones are both out."""
    if entry.name in BUILT_IN:
        return
    entry.state = "failed"
    entry.error = LoadError(
        entry.name,
        f"two distributions provide a backend of this name: {entry.distribution} and {other}",
        hint=f"uninstall one of them or set {BACKENDS.names[0]}",
    )


def load(name: str) -> Any:
    """The backend object called `name`, imported now if it was not before.

    Raises:
        DeviceError: there is no such backend.
        LoadError: it failed to import or speaks another protocol; the cause is attached.
    """
    entry = entries().get(name)
    if entry is None or entry.state == "disabled":
        known = ", ".join(sorted(n for n, e in entries().items() if e.state != "disabled"))
        raise DeviceError(
            "backends", f"there is no backend called {name!r}", hint=f"one of {known}"
        )
    with _LOCK:
        if entry.state == "found":
            _import(entry)
    if entry.error is not None:
        raise LoadError(
            f"backend {name}",
            f"could not be loaded: {entry.error}",
            hint="see `treadle.backends()`",
        ) from entry.error
    return entry.backend


def _import(entry: Entry) -> None:
    try:
        backend = entry.load()
        major = backend.protocol[0]
        if major != PROTOCOL[0]:
            raise LoadError(
                f"backend {entry.name}",
                f"speaks protocol {major}, this Treadle speaks {PROTOCOL[0]}",
                hint=f"upgrade {entry.distribution}",
            )
        entry.availability = backend.probe()
    except Exception as error:  # a plug-in may raise anything; nothing of it may escape
        entry.state, entry.error = "failed", error
        return
    entry.backend, entry.state = backend, "loaded"


def loaded() -> list[Entry]:
    """Every backend that can be imported, importing those not yet imported."""
    with _LOCK:
        for entry in list(entries().values()):
            if entry.state == "found":
                _import(entry)
        return [e for e in _ENTRIES.values() if e.state == "loaded"]


def engines(kind: str) -> list[Engine]:
    """Engines that serve a device kind, best first."""
    found = [e.backend for e in loaded() if isinstance(e.backend, Engine)]
    return sorted((e for e in found if kind in e.serves), key=lambda e: -e.priority)


def for_kind(kind: str) -> Entry | None:
    """The backend whose devices are called `kind`, or None."""
    for entry in loaded():
        if kind in getattr(entry.backend, "device_kinds", ()):
            return entry
    return None


def table() -> list[dict[str, str]]:
    """One row per backend: name, distribution, state, devices, what went wrong."""
    loaded()
    rows = []
    for entry in entries().values():
        found = entry.availability
        rows.append(
            {
                "name": entry.name,
                "distribution": entry.distribution,
                "state": entry.state,
                "devices": str(found.count) if found is not None else "0",
                "detail": str(entry.error or (found.reason if found is not None else "")),
            }
        )
    return rows
