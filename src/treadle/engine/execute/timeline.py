"""Timeline of a program's parts on their devices: a table, and a trace for Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from treadle.base.table import duration, lines, size


@dataclass(frozen=True, slots=True)
class Span:
    """One part of a program that ran, or one value that was copied.

    Attributes:
        name: of the part; of a copy, the value's type.
        device: on which it ran, or to which it was copied.
        kind: which of the two.
        start, end: nanoseconds of the monotonic clock.
        nbytes: that were copied.
    """

    name: str
    device: str
    kind: Literal["part", "copy"]
    start: int
    end: int
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """Duration, in seconds."""
        return (self.end - self.start) * 1e-9


@dataclass(frozen=True, slots=True)
class Timeline:
    """One run of a program over several devices.

    Attributes:
        name: of the program.
        spans: in order of their starts.
        kernels, steps: nothing, in place of what profiles of programs of the host have.
    """

    name: str
    spans: tuple[Span, ...]
    kernels: tuple[Any, ...] = ()
    steps: tuple[Any, ...] = ()

    @property
    def seconds(self) -> float:
        """Time from the first start to the last end, in seconds."""
        if not self.spans:
            return 0.0
        return (max(s.end for s in self.spans) - self.spans[0].start) * 1e-9

    @property
    def overlap(self) -> float:
        """Seconds during which parts ran on more than one device."""
        marks = sorted(
            [(s.start, 1, s.device) for s in self.spans if s.kind == "part"]
            + [(s.end, -1, s.device) for s in self.spans if s.kind == "part"]
        )
        running: dict[str, int] = {}
        total, before = 0, 0
        for when, change, device in marks:
            if sum(n > 0 for n in running.values()) > 1:
                total += when - before
            running[device] = running.get(device, 0) + change
            before = when
        return total * 1e-9

    def trace(self) -> dict[str, Any]:
        """The run in the Trace Event Format; every device is a row."""
        devices = list(dict.fromkeys(s.device for s in self.spans))
        zero = self.spans[0].start if self.spans else 0
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": device}}
            for i, device in enumerate(devices)
        ]
        for span in self.spans:
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.kind,
                    "pid": 1,
                    "tid": devices.index(span.device),
                    "ts": (span.start - zero) / 1e3,
                    "dur": (span.end - span.start) / 1e3,
                    "args": {"bytes": span.nbytes} if span.nbytes else {},
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": self.name}}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON, which https://ui.perfetto.dev opens.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")

    def __str__(self) -> str:
        copies = [s for s in self.spans if s.kind == "copy"]
        moved = size(sum(s.nbytes for s in copies))
        title = (
            f"{self.name}: {duration(self.seconds)}, of which {duration(self.overlap)} on several "
            f"devices at once; {len(copies)} copies, {moved}"
        )
        header: Sequence[str] = ("device", "what", "start", "time")
        zero = self.spans[0].start if self.spans else 0
        rows = [
            (s.device, s.name, duration((s.start - zero) * 1e-9), duration(s.seconds))
            for s in self.spans
        ]
        return "\n".join((title, *lines(header, rows))) if rows else title
