"""Failures that a backend's authors know of: each with a reason, and a date it is good until.

[[known]]
check = "operators/erf/float16"     # a pattern: * stands for anything
reason = "the vendor's erf has 9 bits; ticket 4711"
expires = 2027-03-31
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from treadle.base.errors import LoadError

_KEYS = {"check": str, "reason": str, "expires": datetime.date}


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One entry: which checks may fail, why, and until when."""

    check: str
    reason: str
    expires: datetime.date

    def covers(self, check: str) -> bool:
        """Return whether it is about this check."""
        return fnmatchcase(check, self.check)


def read_known(path: Path) -> tuple[KnownFailure, ...]:
    """The entries of a file of known failures.

    Raises:
        LoadError: the file cannot be read, or an entry lacks its reason or its date.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LoadError(str(path), f"cannot be read: {error}", hint="it must be TOML") from error
    entries = table.get("known")
    if set(table) - {"known"} or not isinstance(entries or [], list):
        raise LoadError(str(path), "is not a list of [[known]] entries", hint=_EXAMPLE)
    return tuple(_entry(path, number, entry) for number, entry in enumerate(entries or [], 1))


_EXAMPLE = 'for example check = "operators/erf/*", reason = "...", expires = 2027-03-31'


def _entry(path: Path, number: int, entry: Any) -> KnownFailure:
    wrong = [
        key
        for key, kind in _KEYS.items()
        if not isinstance(entry, dict) or type(entry.get(key)) is not kind or not entry[key]
    ]
    if wrong or set(entry) - set(_KEYS):
        unknown = sorted(set(entry) - set(_KEYS)) if isinstance(entry, dict) else []
        problem = f"entry {number} needs a proper {' and '.join(wrong)}" if wrong else ""
        problem = problem or f"entry {number} has unknown keys: {', '.join(unknown)}"
        raise LoadError(str(path), problem, hint=_EXAMPLE)
    return KnownFailure(entry["check"], entry["reason"], entry["expires"])


def find_known(known: Sequence[KnownFailure], check: str) -> KnownFailure | None:
    """The first entry about a check."""
    return next((entry for entry in known if entry.covers(check)), None)
