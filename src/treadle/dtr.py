"""Dynamic tensor rematerialization: eager training under a budget of memory, by MegEngine's names.

    treadle.dtr.eviction_threshold = "2GB"
    treadle.dtr.enable()

Recordings that begin afterwards drop values where they would hold more than that, and compute them
again when backward asks for them; losses and gradients are the same bits. `autodiff.recompute`
does the same for regions that the program names, also in compiled functions.
"""

from __future__ import annotations

import re
import sys
import types
from dataclasses import replace
from typing import Any

from treadle.autodiff import eviction

_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_FIELDS = {
    "eviction_threshold": "threshold",
    "evictee_minimum_size": "minimum",
    "enable_sqrt_sampling": "sampling",
    "strict": "strict",
}

eviction_threshold: int | str
"""Bytes of recorded values that are held at once, or text such as "1.5GB"; 0, the default, takes
70 % of the memory that is free when a recording begins. What variables of the program hold cannot
be dropped, so the threshold can be exceeded; with `strict` that is an error."""
evictee_minimum_size: int | str
"""Bytes of the smallest value that is dropped, 1 MiB by default; smaller ones cost more time than
they free memory."""
enable_sqrt_sampling: bool
"""Look at a random sample of values when something has to go; False by default."""
strict: bool
"""Raise `OutOfMemory` where the threshold cannot be kept; False by default."""


def enable() -> None:
    """Keep recordings that begin from now on to the threshold."""
    eviction.SETTINGS.enabled = True


def disable() -> None:
    """Keep everything in recordings that begin from now on."""
    eviction.SETTINGS.enabled = False


def is_enabled() -> bool:
    """Return whether recordings that begin now keep to the threshold."""
    return eviction.SETTINGS.enabled


def report() -> eviction.Counts:
    """Return the counts since the last `reset_report`: values dropped, ops run again, seconds that
    took when they ran first, and the most bytes that recordings held."""
    return replace(eviction.COUNTS)


def reset_report() -> None:
    """Start counting anew."""
    fresh = eviction.Counts()
    for name in eviction.Counts.__slots__:
        setattr(eviction.COUNTS, name, getattr(fresh, name))


def bytes_of(value: Any) -> int:
    """A size in bytes, given as an int or as text with B, KB, MB or GB (of 1024).

    Raises:
        TypeError: it is neither.
        ValueError: it is negative, or the text is of another form.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"a size is an int or text like '1.5GB', not {value!r}")
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", value, re.IGNORECASE)
        unit = _UNITS.get(found[2].upper()) if found else None
        if found is None or unit is None:
            raise ValueError(f"a size is a number with B, KB, MB or GB, not {value!r}")
        return int(float(found[1]) * unit)
    if value < 0:
        raise ValueError(f"a size is at least 0, not {value}")
    return value


class _Module(types.ModuleType):
    """A module whose settings are checked when they are set."""

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(eviction.SETTINGS, _FIELDS[name])
        raise AttributeError(f"module 'treadle.dtr' has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("eviction_threshold", "evictee_minimum_size"):
            setattr(eviction.SETTINGS, _FIELDS[name], bytes_of(value))
        elif name in _FIELDS:
            setattr(eviction.SETTINGS, _FIELDS[name], bool(value))
        else:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Module
