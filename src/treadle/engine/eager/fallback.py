"""Fallback of ops that a device cannot run: they run on the host, visibly.

Counted in calls, bytes and seconds per op and reason (`tally.py`); the policy `warn` says so once
per op, `silent` never, `error` refuses. An op for which a device fails is an error, unless the
user asks for it to be run again on the host, which the report then says.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from treadle.backends.api import Support
from treadle.base.env import FALLBACK, RETRY
from treadle.base.errors import DeviceError, UnsupportedOp
from treadle.base.log import get_logger
from treadle.base.process import RUNTIME
from treadle.base.table import duration
from treadle.engine.devices import names as devices
from treadle.engine.eager import tally
from treadle.engine.eager.forced import near
from treadle.engine.eager.tally import FallbackReport, Fallen, Spent, charge, count
from treadle.ops.op import REGISTRY
from treadle.ops.printing import Pause, Print

__all__ = [
    "FallbackReport",
    "Fallen",
    "Policy",
    "admit",
    "charge",
    "count",
    "fallback",
    "fallback_report",
    "policy",
    "retries",
]

Policy = Literal["warn", "silent", "error"]


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules of `fallback(...)` blocks: for all ops, for single ones, and about failures."""

    general: Policy | None = None
    ops: Mapping[str, Policy] = field(default_factory=dict)
    retry: bool | None = None


_OF_THE_HOST = frozenset(op.name for op in (Print, Pause))
"""Ops that every device leaves to the host, since they are for people who sit there."""
_LOCK = threading.Lock()
_WARNED: dict[tuple[str, str], bool] = RUNTIME.table("warnings of fallbacks", "messages")
_NONE = _Rules()
_RULES: ContextVar[_Rules] = ContextVar("fallback_rules", default=_NONE)
_WAITED: dict[str, float] = RUNTIME.table("seconds before counting", "backends")
"""Seconds that were waited for each device before counting began anew."""


def policy(op: str = "") -> Policy:
    """The policy in force for an op.

    The innermost block that names the op decides, else the environment where that names it, else
    the innermost block, else the environment.

    Raises:
        DeviceError: the environment names no policy.
    """
    rules = _RULES.get()
    found = rules.ops.get(op)
    if found is not None:
        return found
    general, single = _of_environment(FALLBACK.get())
    return single.get(op) or rules.general or general


@functools.lru_cache(8)  # Every op that falls back asks.
def _of_environment(text: str) -> tuple[Policy, dict[str, Policy]]:
    """The policy for all ops, and those for single ones, in `warn,sort=silent`."""
    general: Policy = "warn"
    single: dict[str, Policy] = {}
    for part in text.split(","):
        op, sign, name = part.partition("=")
        if sign:
            single[op.strip()] = _checked(name.strip(), FALLBACK.source())
        else:
            general = _checked(part.strip(), FALLBACK.source())
    return general, single


def _checked(text: Any, where: str) -> Policy:
    known: tuple[Policy, ...] = get_args(Policy)
    for policy in known:
        if text == policy:
            return policy
    raise DeviceError(
        where, f"{text!r} is not a fallback policy", hint="use " + ", ".join(map(repr, known))
    )


def retries() -> bool:
    """Return whether ops for which a device fails are to be run again on the host."""
    wanted = _RULES.get().retry
    return RETRY.get() == "1" if wanted is None else wanted


@contextmanager
def fallback(
    to: Policy,
    max_share: float | None = None,
    *,
    ops: Mapping[str, Policy] | None = None,
    retry: bool | None = None,
) -> Iterator[None]:
    """Use another policy inside the block, on this thread (or asynchronous task) only.

    Args:
        to: "warn" (once per op and device), "silent", or "error" (raise `UnsupportedOp`).
        max_share: the largest part of the time that may be spent on the host in place of devices,
            0 to 1; all threads count. None: any.
        ops: policies for single ops, by name. They hold in blocks inside, too.
        retry: run ops for which a device fails again on the host, for debugging; the report marks
            them. None: as outside, and in the end as TREADLE_RETRY says.

    Raises:
        DeviceError: there is no such policy or op; at the end of the block, more than `max_share`
            of the time went to the host.
    """
    outer = _RULES.get()
    single = {op: _checked(name, "fallback") for op, name in (ops or {}).items()}
    for op in single:
        if op not in REGISTRY:
            raise DeviceError("fallback", f"there is no op {op!r}", hint=near(op))
    wanted = outer.retry if retry is None else retry
    token = _RULES.set(_Rules(_checked(to, "fallback"), {**outer.ops, **single}, wanted))
    before = spent()
    rows = {id_of(row): row.seconds for row in tally.fallen_rows()}
    try:
        yield
    finally:
        _RULES.reset(token)
    if max_share is not None:
        _check_share(max_share, before, rows)


def id_of(row: Fallen) -> tuple[str, ...]:
    """Return the key of a row."""
    return row.op, row.device, row.reason, row.purpose


def _check_share(limit: float, before: Spent, rows: Mapping[tuple[str, ...], float]) -> None:
    for opened in devices.opened():
        if not opened.lost:
            opened.synchronize()
    passed = spent().since(before)
    if passed.share <= limit:
        return
    added = [(row.seconds - rows.get(id_of(row), 0.0), row) for row in tally.fallen_rows()]
    worst = sorted(added, key=lambda pair: -pair[0])[:3]
    raise DeviceError(
        "fallback",
        f"{100 * passed.share:.1f} % of the time went to ops that fell back, "
        f"at most {100 * limit:g} % may",
        saw=", ".join(f"{row.subject} {duration(s)} ({row.reason})" for s, row in worst if s > 0),
        hint="print(fallback_report()) has all of them; add kernels, or raise max_share",
    )


def admit(op: str, device: str, why: Support, purpose: str = "") -> Fallen:
    """Allow an op to fall back, with a warning the first time, or refuse.

    Args:
        op, device, why: the op, the logical name of the device, and its reason.
        purpose: what the op runs for, as "operand y of add"; "" for an op that was called.

    Returns:
        The row of the report to count in.

    Raises:
        UnsupportedOp: falling back is an error here.
    """
    now = "silent" if op in _OF_THE_HOST else policy(op)
    reason = f"{why.reason}: {why.message}" if why.message else why.reason
    if now == "error":
        raise UnsupportedOp(
            f"{op} ({purpose})" if purpose else op,
            f"{device} cannot run it and falling back is an error here",
            saw=reason,
            hint="use fallback('warn') or move the computation to cpux",
        )
    row = tally.fallen(op, device, why.reason, reason, purpose)
    with _LOCK:
        first = now == "warn" and (op, device) not in _WARNED
        if first:
            _WARNED[op, device] = True
    if first:
        text = "%s runs on the host instead of %s (%s); fallback_report() counts it"
        get_logger().warning(text, row.subject, device, reason)
    return row


def spent() -> Spent:
    """Seconds on devices and on the host since counting began."""
    waited = sum(max(d.traffic.waited - _WAITED.get(d.name, 0.0), 0.0) for d in devices.opened())
    on_devices = sum(row.seconds for row in tally.ran_rows())
    return Spent(on_devices + waited, sum(row.seconds for row in tally.fallen_rows()))


def fallback_report(clear: bool = False) -> FallbackReport:
    """Everything that fell back so far, most time first; `clear` starts counting anew.

    Returns:
        A list of `Fallen` that prints as a table. Its first line says how many kinds of ops, and
        what share of the time, were on devices.
    """
    report = FallbackReport(tally.fallen_rows(), tally.ran_rows(), spent())
    if clear:
        tally.clear()
        _WAITED.update({d.name: d.traffic.waited for d in devices.opened()})
    return report
