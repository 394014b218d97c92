"""What happens to ops a device cannot run: they run on the host, visibly.

Counted in calls, bytes and seconds per op and reason; the policy `warn` says so once per op,
`silent` never, `error` refuses.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from treadle.backends.api import Support
from treadle.base.env import FALLBACK
from treadle.base.errors import DeviceError, UnsupportedOp
from treadle.base.log import get_logger

Policy = Literal["warn", "silent", "error"]


@dataclass
class Fallen:
    """How often one op fell back on one device, and what it cost.

    Attributes:
        op: the op's name.
        device: logical name of the device that does not run it.
        reason: code and message of the first refusal with this code.
        calls: how often the op ran on the host instead.
        nbytes: bytes copied for that: operands down, and results up where the device needed them.
        seconds: time on the host, downloads included.
    """

    op: str
    device: str
    reason: str
    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0


_LOCK = threading.Lock()
_FALLEN: dict[tuple[str, str, str], Fallen] = {}
_WARNED: set[tuple[str, str]] = set()
_POLICY: ContextVar[Policy | None] = ContextVar("fallback_policy", default=None)


def policy() -> Policy:
    """The policy in force: the innermost `fallback(...)` block's, else the environment's.

    Raises:
        DeviceError: the environment names no policy.
    """
    return _POLICY.get() or _checked(FALLBACK.get(), FALLBACK.source())


def _checked(text: Any, where: str) -> Policy:
    known: tuple[Policy, ...] = get_args(Policy)
    for policy in known:
        if text == policy:
            return policy
    raise DeviceError(
        where, f"{text!r} is no fallback policy", hint="use " + ", ".join(map(repr, known))
    )


@contextmanager
def fallback(to: Policy) -> Iterator[None]:
    """Use another policy inside the block, on this thread (or asynchronous task) only.

    Args:
        to: "warn" (once per op and device), "silent", or "error" (raise `UnsupportedOp`).

    Raises:
        DeviceError: there is no such policy.
    """
    token = _POLICY.set(_checked(to, "fallback"))
    try:
        yield
    finally:
        _POLICY.reset(token)


def admit(op: str, device: str, why: Support) -> Fallen:
    """Let an op fall back, warn about it the first time, or refuse.

    Returns:
        The row of the report to count in.

    Raises:
        UnsupportedOp: falling back is an error here.
    """
    now = policy()
    reason = f"{why.reason}: {why.message}" if why.message else why.reason
    if now == "error":
        raise UnsupportedOp(
            op,
            f"{device} cannot run it and falling back is an error here",
            saw=reason,
            hint="use fallback('warn') or move the computation to cpux",
        )
    with _LOCK:
        row = _FALLEN.setdefault((op, device, why.reason), Fallen(op, device, reason))
        first = now == "warn" and (op, device) not in _WARNED
        if first:
            _WARNED.add((op, device))
    if first:
        text = "%s runs on the host instead of %s (%s); fallback_report() counts it"
        get_logger().warning(text, op, device, reason)
    return row


def count(row: Fallen, nbytes: int, seconds: float) -> None:
    """Add one call to the report."""
    with _LOCK:
        row.calls += 1
        row.nbytes += nbytes
        row.seconds += seconds


def charge(row: Fallen, nbytes: int) -> None:
    """Add bytes of a result that the device asked for later."""
    with _LOCK:
        row.nbytes += nbytes


def fallback_report(clear: bool = False) -> list[Fallen]:
    """Everything that fell back so far, most time first; `clear` starts counting anew."""
    with _LOCK:
        rows = sorted(_FALLEN.values(), key=lambda f: -f.seconds)
        if clear:
            _FALLEN.clear()
        return [replace(row) for row in rows]
