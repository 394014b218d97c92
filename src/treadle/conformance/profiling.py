"""Profiling: what runs on the device is seen, and times make sense."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from treadle.conformance.check import Check, Measured, NotOffered, from_functions, require
from treadle.conformance.subject import Subject
from treadle.utils.profiler import Profiler


def checks(subject: Subject) -> Iterator[Check]:
    """The group's checks."""
    return from_functions("Profiling", subject, (every_op_has_an_event, traffic_is_counted))


def _profiled(subject: Subject) -> list[dict[str, Any]]:
    x = subject.tensor(np.ones((16, 16), np.float32))
    with tempfile.TemporaryDirectory() as folder:
        profiler = Profiler(folder)
        try:
            profiler.start()
        except RuntimeError as why:
            raise NotOffered(str(why)) from None
        for _ in range(5):
            y = (x @ x + x).sum()
        y.numpy()
        profiler.stop()
        (path,) = Path(folder).glob("*.json")
        read = json.loads(path.read_text(encoding="utf-8"))
    events: list[dict[str, Any]] = read["traceEvents"] if isinstance(read, dict) else read
    return events


def every_op_has_an_event(subject: Subject) -> Measured:
    """Every op that ran is an event of the form all tools read; its clock runs forwards."""
    started = time.perf_counter()
    events = [e for e in _profiled(subject) if e.get("ph") == "X"]
    passed = (time.perf_counter() - started) * 1e6
    names = [e["args"].get("op") for e in events]
    for op in ("matmul", "add", "sum"):
        require(names.count(op) == 5, f"{names.count(op)} events of {op}, which ran 5 times")
    for event in events:
        begun, took = event["ts"], event["dur"]
        fine = begun >= 0 and took >= 0 and begun + took <= passed
        require(fine, f"the event {event['name']} has times outside of the run: {event}")
    begins = [e["ts"] for e in events if e["args"].get("op") == "matmul"]
    require(begins == sorted(begins), "events of one thread are out of order")
    return {"events": float(len(events))}


def traffic_is_counted(subject: Subject) -> None:
    """Check that uploads and downloads are counted with their bytes."""
    device = subject.device()
    before = (device.traffic.bytes_up, device.traffic.bytes_down)
    subject.resident(np.ones(1000, np.float32)).host()
    after = (device.traffic.bytes_up, device.traffic.bytes_down)
    moved = tuple(b - a for a, b in zip(before, after, strict=True))
    require(moved == (4000, 4000), f"4000 bytes up and down were counted as {moved}")
