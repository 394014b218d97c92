"""`report(device)`: everything the process knows about one device, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from treadle.backends import registry
from treadle.backends.api import Counting, DeviceInfo
from treadle.base.table import duration, lines, size
from treadle.engine.devices.names import CompNode, default_device, resolve
from treadle.engine.eager import tally
from treadle.engine.eager.choice import Decision, describe_refusal, made_for
from treadle.engine.eager.tally import FallbackReport, Fallen, Ran, Spent
from treadle.runtime.opened import Traffic

_DECIDED = ("op", "operands", "runs on", "asked before")


@dataclass(frozen=True)
class DeviceReport:
    """Result of `report`; prints as text, and `data()` is the same for other tools.

    Attributes:
        device: its logical name; `physical` is what it stands for.
        backends: rows of `backends()` of whoever serves it.
        info: what the device says of itself.
        memory: bytes: total, free, allocated by tensors and programs (0 on the host).
        copies: how often and how many bytes it exchanged with the host, and seconds waited for it.
        decisions: who runs which op, as decided for eager calls so far, and why.
        fallbacks: what the host ran in its place; `ran`: what it ran itself.
        counters: what its backends count: kernels compiled, libraries from the cache, ...
        state: "open", "lost: why", or "not in use".
    """

    device: str
    physical: str
    backends: tuple[Mapping[str, str], ...]
    info: DeviceInfo
    memory: Mapping[str, int]
    copies: Traffic
    decisions: tuple[Decision, ...]
    fallbacks: tuple[Fallen, ...]
    ran: tuple[Ran, ...]
    counters: Mapping[str, int]
    state: str

    def data(self) -> dict[str, Any]:
        """Plain data: dicts, lists, numbers and texts."""
        found = asdict(replace(self, decisions=(), info=DeviceInfo("")))
        found["info"] = asdict(self.info)
        found["decisions"] = [
            {
                "op": str(d.op),
                "operands": [str(t) for t in d.types],
                "runs": d.winner,
                "refused": {who: describe_refusal(why) for who, why in d.refusals},
                "forced": d.forced,
            }
            for d in self.decisions
        ]
        return found

    def __str__(self) -> str:
        parts = [f"{self.device} ({self.physical}), {self.info.name}: {self.state}"]
        for row in self.backends:
            detail = f"; {row['detail']}" if row["detail"] else ""
            parts.append(f"backend: {row['name']} {row['version']}, {row['state']}{detail}")
        total, free, held = (size(self.memory[k]) for k in ("total", "free", "allocated"))
        parts.append(f"memory: {total}, {free} free, {held} allocated here")
        c = self.copies
        parts.append(
            f"copies: {c.uploads} up ({size(c.bytes_up)}), {c.downloads} down "
            f"({size(c.bytes_down)}), {c.peer_copies} between devices; {duration(c.waited)} waited"
        )
        parts += [f"{name}: {count}" for name, count in self.counters.items()]
        parts += self._decided()
        if self.ran or self.fallbacks:
            spent = Spent(
                sum(row.seconds for row in self.ran) + self.copies.waited,
                sum(row.seconds for row in self.fallbacks),
            )
            parts.append(str(FallbackReport(self.fallbacks, self.ran, spent)))
        return "\n".join(parts)

    __repr__ = __str__

    def _decided(self) -> list[str]:
        if not self.decisions:
            return ["decisions: none yet"]
        rows = [
            (d.subject, ", ".join(map(str, d.types)), d.winner, why_not(d)) for d in self.decisions
        ]
        return ["decisions:", *lines(_DECIDED, rows, reasons=True)]


def why_not(decision: Decision) -> str:
    """Return who refused, and why; who forces the choice."""
    parts = [f"{who}: {describe_refusal(why)}" for who, why in decision.refusals]
    parts += [f"forced by {decision.forced}"] if decision.forced else []
    return "; ".join(parts)


def report(device: str | CompNode | None = None) -> DeviceReport:
    """Everything the process knows about one device: state, memory, copies, decisions, fallbacks.

    Args:
        device: its name; None is the default device.

    Raises:
        DeviceError: the name is malformed, or no such device exists.

    Example:
        >>> mge.report("cpux").physical
        'cpu0:0'
    """
    node = default_device() if device is None else resolve(str(device))
    opened = node.open()
    total, free = (0, 0) if opened.lost else opened.memory()
    here = tuple(r for r in tally.fallen_rows() if resolve(r.device).place == node.place)
    ran = tuple(r for r in tally.ran_rows() if resolve(r.device).place == node.place)
    serving = _backends(node.kind)
    counters: dict[str, int] = {}
    for entry in serving:
        if isinstance(entry.backend, Counting):
            counters |= entry.backend.counters()
    return DeviceReport(
        node.logical_name,
        node.physical_name,
        tuple(registry.row_of(entry) for entry in serving),
        opened.info,
        {"total": total, "free": free, "allocated": opened.allocated},
        replace(opened.traffic),
        tuple(made_for(node.logical_name)),
        here,
        ran,
        counters,
        f"lost: {opened.lost}" if opened.lost else "open",
    )


def _backends(kind: str) -> list[registry.BackendEntry]:
    """Return the backends whose devices they are, and whose engines serve them."""
    names = {engine.name for engine in registry.engines(kind)}
    return [e for e in registry.loaded() if e.serves(kind) or e.name in names]
