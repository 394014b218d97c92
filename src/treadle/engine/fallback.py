"""What happens to ops a device cannot run: they run on the host, visibly.

Counted in calls, bytes and seconds per op and reason; the policy `warn` says so once per op,
`silent` never, `error` refuses.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from treadle.backends.api import Support
from treadle.base.env import FALLBACK
from treadle.base.errors import DeviceError, UnsupportedOp
from treadle.base.log import get_logger

Policy = Literal["warn", "silent", "error"]


@dataclass
class Fallen:
    """How often one op fell back on one device, and what it cost."""

    op: str
    device: str
    reason: str
    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0


_LOCK = threading.Lock()
_FALLEN: dict[tuple[str, str, str], Fallen] = {}
_POLICY: list[Policy | None] = [None]


def policy() -> Policy:
    """The policy in force: the innermost `fallback(...)` block's, else the environment's."""
    if _POLICY[0] is not None:
        return _POLICY[0]
    text = FALLBACK.get()
    for known in ("warn", "silent", "error"):
        if text == known:
            return known
    raise DeviceError(
        FALLBACK.source(), f"{text!r} is no fallback policy", hint="use warn, silent or error"
    )


@contextmanager
def fallback(to: Policy) -> Iterator[None]:
    """Use another policy inside the block."""
    before = _POLICY[0]
    _POLICY[0] = to
    try:
        yield
    finally:
        _POLICY[0] = before


def admit(op: str, device: str, why: Support) -> Fallen:
    """Let an op fall back, warn about it the first time, or refuse."""
    reason = f"{why.reason}: {why.message}" if why.message else why.reason
    if policy() == "error":
        raise UnsupportedOp(
            op,
            f"{device} cannot run it and falling back is an error here",
            saw=reason,
            hint="use fallback('warn') or move the computation to cpux",
        )
    with _LOCK:
        key = (op, device, reason)
        if key not in _FALLEN:
            _FALLEN[key] = Fallen(op, device, reason)
            if policy() == "warn":
                get_logger().warning(
                    "%s runs on the host instead of %s (%s); fallback_report() counts it",
                    op,
                    device,
                    reason,
                )
        return _FALLEN[key]


def count(entry: Fallen, nbytes: int, seconds: float) -> None:
    """Add one call to the report."""
    with _LOCK:
        entry.calls += 1
        entry.nbytes += nbytes
        entry.seconds += seconds


def fallback_report(clear: bool = False) -> list[Fallen]:
    """Everything that fell back so far, most time first; `clear` starts counting anew."""
    with _LOCK:
        rows = sorted(_FALLEN.values(), key=lambda f: -f.seconds)
        if clear:
            _FALLEN.clear()
        return rows
