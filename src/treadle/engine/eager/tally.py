"""Tally of what ran where: calls, bytes and seconds of ops on devices, and of those that
fell back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from treadle.base.table import duration, lines, size


@dataclass
class Fallen:
    """Count of one op's fallbacks on one device, and their cost.

    Attributes:
        op: the op's name.
        device: logical name of the device that does not run it.
        reason: code and message of the first refusal with this code.
        calls: how often the op ran on the host instead.
        nbytes: bytes copied for that: operands down, and results up where the device needed them.
        seconds: time on the host, downloads included.
        failed: the device took the op and failed, and it was run again on the host.
        purpose: what it ran for, as "operand y of add"; "" for an op that was called.
    """

    op: str
    device: str
    reason: str
    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    failed: bool = False
    purpose: str = ""

    @property
    def subject(self) -> str:
        """Name of the op, with its purpose."""
        return f"{self.op} ({self.purpose})" if self.purpose else self.op


@dataclass
class Ran:
    """Count of one op's runs on a device, and the time in which the host was busy with launching
    it.
    """

    op: str
    device: str
    calls: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Spent:
    """Seconds so far: of ops on devices, waiting for them included, and of ops that fell back."""

    devices: float = 0.0
    host: float = 0.0

    def since(self, before: Spent) -> Spent:
        """Return what was added after an earlier reading."""
        return Spent(self.devices - before.devices, self.host - before.host)

    @property
    def share(self) -> float:
        """The part of the time on the host, 0 to 1; 0 where nothing ran."""
        whole = self.devices + self.host
        return self.host / whole if whole > 0 else 0.0


class FallbackReport(list[Fallen]):
    """Rows of what fell back, most time first; prints as a table below one line that sums up.

    Attributes:
        ran: what ran on devices.
        spent: seconds on devices and on the host.
    """

    def __init__(self, rows: Iterable[Fallen], ran: Iterable[Ran], spent: Spent) -> None:
        super().__init__(rows)
        self.ran = tuple(ran)
        self.spent = spent

    @property
    def summary(self) -> str:
        """Number of kinds of ops, and share of the time, that were on devices."""
        fallen = {row.op for row in self}
        ran = {row.op for row in self.ran}
        if not fallen | ran:
            return "no op has run on a device"
        whole = duration(self.spent.devices + self.spent.host)
        share = 100 * (1 - self.spent.share)
        text = f"{len(ran)} of {len(fallen | ran)} kinds of ops and {share:.1f} % of {whole}"
        return f"{text} on devices; {len(fallen)} fell back to the host"

    def __str__(self) -> str:
        if not self:
            return self.summary
        header = ("op", "device", "calls", "copied", "time", "reason")
        rows = [
            (r.subject, r.device, str(r.calls), size(r.nbytes), duration(r.seconds), r.reason)
            for r in self
        ]
        return "\n".join((self.summary, *lines(header, rows, reasons=True)))


_LOCK = threading.Lock()
_FALLEN: dict[tuple[str, ...], Fallen] = {}
_RAN: dict[tuple[str, str], Ran] = {}


def fallen(op: str, device: str, code: str, reason: str, purpose: str = "") -> Fallen:
    """The row of an op that falls back for a reason."""
    with _LOCK:
        key = (op, device, code, purpose)
        row = _FALLEN.get(key)
        if row is None:
            failed = code == "failure"
            row = _FALLEN[key] = Fallen(op, device, reason, failed=failed, purpose=purpose)
        return row


def ran(op: str, device: str) -> Ran:
    """The row of an op that runs on a device; whoever launches it keeps it and counts in it."""
    with _LOCK:
        return _RAN.setdefault((op, device), Ran(op, device))


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


def fallen_rows() -> list[Fallen]:
    """Copies of what fell back, most time first."""
    with _LOCK:
        return [replace(r) for r in sorted(_FALLEN.values(), key=lambda f: -f.seconds)]


def ran_rows() -> list[Ran]:
    """Copies of what ran on devices, most time first."""
    with _LOCK:
        rows = sorted(_RAN.values(), key=lambda r: -r.seconds)
        return [replace(r) for r in rows if r.calls]


def clear() -> None:
    """Start counting anew."""
    with _LOCK:
        _FALLEN.clear()
        for row in _RAN.values():  # launches hold their rows
            row.calls, row.seconds = 0, 0.0
