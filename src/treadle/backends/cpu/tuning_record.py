"""The record of what was tuned on this machine: a JSON file per processor in the cache directory.

Without one, that of the processor's microarchitecture counts, where the package has it: files in
`tuned/`, made by `treadle bench --tune` for the shapes of this project's benchmarks.

It may be read, deleted, and copied between machines with one kind of processor. It does not depend
on the number of threads, as results must not. Entries that make no sense are left out with a
notice; those that no longer fit are ignored by the generators.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.backends.codegen import tuned
from treadle.backends.cpu.host import microarchitecture, processor
from treadle.base.env import cache_directory
from treadle.base.log import get_logger

FORMAT = 1
"""Raised when names or choices change their meaning: older records are ignored then."""
_SHIPPED = Path(__file__).parent / "tuned"


def path() -> Path:
    """Return the path of this machine's record."""
    machine = hashlib.sha256(f"{platform.node()}\n{processor()}".encode()).hexdigest()[:12]
    return cache_directory() / f"tuned-{machine}.json"


def read() -> tuned.Choices:
    """Read this machine's record, or else the one that is shipped for such processors."""
    own = _own()
    return shipped(microarchitecture()) if own is None else own


def shipped(name: str) -> tuned.Choices:
    """Read the package's record of a microarchitecture; without entries if there is none."""
    try:
        found = json.loads((_SHIPPED / f"{name}.json").read_bytes())
    except OSError:
        return {}
    return dict(found["choices"]) if found["format"] == FORMAT else {}


def _own() -> tuned.Choices | None:
    """Read this machine's record, if it has one; entries that make no sense are left out."""
    try:
        content = path().read_bytes()
    except OSError:
        return None
    try:
        found = json.loads(content)
        if found["format"] != FORMAT:
            return None
        maker = found.get("machine", processor())
        if maker != processor():
            _ignored(f"it was made on another processor ({maker})")
            return None
        entries = dict(found["choices"])
    except (ValueError, KeyError, TypeError) as error:
        _ignored(f"it is not a record ({error})")
        return None
    good = {name: choice for name, choice in entries.items() if _is_choice(choice)}
    if len(good) < len(entries):
        _ignored(f"{len(entries) - len(good)} of its {len(entries)} entries are damaged")
    return good


def write(choices: tuned.Choices) -> bool:
    """Record choices; whether that worked."""
    where = path()
    temporary = where.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")
    content = {"format": FORMAT, "machine": processor(), "choices": dict(sorted(choices.items()))}
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        temporary.replace(where)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        get_logger().warning("what was tuned cannot be kept in %s: %s", where, error)
        return False
    return True


def _is_choice(choice: Any) -> bool:
    return (
        isinstance(choice, Mapping)
        and bool(choice)
        and all(isinstance(k, str) and type(v) is int for k, v in choice.items())
    )


def _ignored(why: str) -> None:
    get_logger().warning(
        "the tuning record %s is not used as it stands: %s; `treadle bench --tune` makes a new one",
        path(),
        why,
    )
