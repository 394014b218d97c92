"""Sorting and summing what `trace.get_profile` measured, and what `Profiler` wrote."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Times = Mapping[str, Sequence[float]]


@functools.total_ordering
class NonExistNum:
    """A missing number: larger than any other; what is computed with it is missing, too."""

    def _same(self, _: Any = None) -> NonExistNum:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __truediv__ = __rtruediv__ = __neg__ = _same

    def __lt__(self, other: Any) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonExistNum)

    def __hash__(self) -> int:
        return hash(NonExistNum)

    def __str__(self) -> str:
        return "N/A"

    __repr__ = __str__


NOTHING = NonExistNum()


class OprProfRst:
    """Measurements of one operator.

    Attributes:
        opr_info: id, name, type, inputs and outputs.
        time_dict: by "host" and "device", the times of each thread or device.
        footprint: operations, bytes and shapes.
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        if not isinstance(entry, Mapping):
            raise TypeError(f"OprProfRst: an operator is a dict, not {type(entry).__name__}")
        self.opr_info = dict(entry)
        self.time_dict: dict[str, list[Times]] = {"host": [], "device": []}
        self.footprint: dict[str, Any] = {}

    def update_device_prof_info(self, dev_time: Mapping[str, Times]) -> None:
        """Add times by device, each with "start", "kern" and "end" in seconds."""
        self.time_dict["device"] += [dict(t) for t in dev_time.values()]

    def update_host_prof_info(self, host_time: Mapping[str, Times]) -> None:
        """Add times by thread, each with "start" and "end"."""
        self.time_dict["host"] += [dict(t) for t in host_time.values()]

    def update_footprint(self, footprint: Mapping[str, Any]) -> None:
        """Add operations, bytes and shapes."""
        self.footprint.update(footprint)


class Record:
    """One row: a time in seconds, what it belongs to, and rates that follow from it.

    Attributes:
        flops, bandwidth: operations and bytes per second; not there where the work is not known.
    """

    __slots__ = (
        "bandwidth",
        "computation",
        "flops",
        "in_layouts",
        "in_shapes",
        "info",
        "memory",
        "opr_id",
        "out_shapes",
        "params",
        "time",
    )

    def __init__(
        self, time: Any, info: Mapping[str, Any], footprint: Mapping[str, Any] | None = None
    ) -> None:
        work = footprint or {}
        self.time = time
        self.info = dict(info)
        self.opr_id = info.get("id")
        self.computation: Any = work.get("computation", NOTHING)
        self.memory: Any = work.get("memory", NOTHING)
        self.in_shapes = work.get("in_shapes", [])
        self.in_layouts = work.get("in_layouts", [])
        self.out_shapes = work.get("out_shapes", [])
        self.params = work.get("params", {})
        self.flops: Any = self.computation / time if time else NOTHING
        self.bandwidth: Any = self.memory / time if time else NOTHING

    def get_column_by_name(self, name: str | None = None) -> Any:
        """A value of the row by name; the time unless one is given."""
        return self.time if name is None else getattr(self, name)


class ProfileAnalyzer:
    """A profile, to be filtered, summed and sorted.

    Args:
        obj: what `get_profile` returned, or was written as JSON.
        opr_filter: which operators to look at, of (operator, inputs, outputs).

    Raises:
        TypeError: there is no profile in `obj`.
    """

    def __init__(
        self,
        obj: Mapping[str, Any],
        opr_filter: Callable[[Any, Any, Any], bool] = lambda opr, inp, out: True,
    ) -> None:
        try:
            operators, profile = obj["graph_exec"]["operator"], obj["profiler"]
        except (KeyError, TypeError):
            raise TypeError("ProfileAnalyzer: this is not a profile of a trace") from None
        self._opr_dict: dict[str, OprProfRst] = {}
        for key, entry in operators.items():
            if opr_filter(entry, entry.get("input", []), entry.get("output", [])):
                found = self._opr_dict[key] = OprProfRst(entry)
                found.update_device_prof_info(profile.get("device", {}).get(key, {}))
                found.update_host_prof_info(profile.get("host", {}).get(key, {}))
                found.update_footprint(profile.get("opr_footprint", {}).get(key, {}))

    def select(
        self,
        time_func: Callable[[OprProfRst], Any],
        opr_filter: Callable[[OprProfRst], bool] = lambda opr: True,
        aggregate: str | Callable[[Sequence[Any]], Any] | None = None,
        aggregate_by: str | None = None,
        sort_by: str | None = None,
        top_k: int = 0,
    ) -> list[Record]:
        """Rows of operators.

        Args:
            time_func: the time of an operator in seconds, None to leave it out (`TimeFuncHelper`).
            opr_filter: which operators to look at.
            aggregate: "sum", "mean", "max", "min", "count" or a function, over operators together.
            aggregate_by: the field of `opr_info` that those have in common, such as "type".
            sort_by: a column; with a leading "+" from small to large.
            top_k: how many rows to keep at most; 0 all.

        Raises:
            ValueError: there is no such aggregate or column.
        """
        records = []
        for opr in self._opr_dict.values():
            if opr_filter(opr):
                time = time_func(opr)
                if time is not None:
                    records.append(Record(time, opr.opr_info, opr.footprint))
        if aggregate is not None:
            records = _aggregated(records, aggregate, aggregate_by)
        if sort_by is not None:
            records = _sorted(records, sort_by)
        return records[:top_k] if top_k else records


_AGGREGATES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "sum": sum,
    "mean": lambda times: sum(times) / len(times),
    "max": max,
    "min": min,
    "count": len,
}


def _aggregated(
    records: Iterable[Record], aggregate: str | Callable[[Sequence[Any]], Any], by: str | None
) -> list[Record]:
    if isinstance(aggregate, str) and aggregate not in _AGGREGATES:
        raise ValueError(f"select: unknown aggregate {aggregate!r}; there are {list(_AGGREGATES)}")
    function = _AGGREGATES[aggregate] if isinstance(aggregate, str) else aggregate
    together: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        together[None if by is None else record.info.get(by)].append(record)
    made = []
    for key, rows in together.items():
        work = {name: _total(rows, name) for name in ("computation", "memory")}
        times = [row.time for row in rows]
        made.append(Record(function(times), {by or "all": key, "count": len(rows)}, work))
    return made


def _total(rows: Sequence[Record], name: str) -> Any:
    return sum((getattr(row, name) for row in rows), 0)


def _sorted(records: list[Record], by: str) -> list[Record]:
    name = by.lstrip("+-")
    if name not in Record.__slots__:
        raise ValueError(f"select: unknown column {name!r}; there are {Record.__slots__}")
    return sorted(records, key=lambda r: r.get_column_by_name(name), reverse=not by.startswith("+"))


class TimeFuncHelper:
    """Functions that give the time of an operator."""

    @staticmethod
    def _eval_time(
        prof_type: str, end_key: str, func: Callable[[Iterable[float]], float], opr_prof: OprProfRst
    ) -> float | None:
        times = [e - s for t in opr_prof.time_dict[prof_type] for s, e in _pairs(t, end_key)]
        return func(times) if times else None

    @staticmethod
    def eval_time_func(
        prof_type: str, end_key: str, func: Callable[[Iterable[float]], float]
    ) -> Callable[[OprProfRst], float | None]:
        """Time from "start" to `end_key`, over all runs by `func`.

        Args:
            prof_type: "host" or "device".
            end_key: "kern" or "end".
            func: of the times in seconds, `sum` or `max` for instance.
        """
        return functools.partial(TimeFuncHelper._eval_time, prof_type, end_key, func)

    @staticmethod
    def _min_start(
        prof_type: str, end_key: str, func: Callable[[Iterable[float]], float], opr_prof: OprProfRst
    ) -> float | None:
        starts = [s for t in opr_prof.time_dict[prof_type] for s in t["start"]]
        return min(starts) if starts else None

    @staticmethod
    def min_start_func(
        prof_type: str, end_key: str, func: Callable[[Iterable[float]], float]
    ) -> Callable[[OprProfRst], float | None]:
        """Return the time at which an operator first started."""
        return functools.partial(TimeFuncHelper._min_start, prof_type, end_key, func)

    @staticmethod
    def _max_end(
        prof_type: str, end_key: str, func: Callable[[Iterable[float]], float], opr_prof: OprProfRst
    ) -> float | None:
        ends = [e for t in opr_prof.time_dict[prof_type] for e in t[end_key]]
        return max(ends) if ends else None

    @staticmethod
    def max_end_func(
        prof_type: str, end_key: str, func: Callable[[Iterable[float]], float]
    ) -> Callable[[OprProfRst], float | None]:
        """Return the time at which an operator last ended."""
        return functools.partial(TimeFuncHelper._max_end, prof_type, end_key, func)


def _pairs(times: Times, end_key: str) -> Iterable[tuple[float, float]]:
    return zip(times["start"], times[end_key], strict=True)


# -- timelines ---------------------------------------------------------------------------------

TITLES = ("op", "calls", "total us", "mean us", "longest us", "share")
"""Of the columns of a table of times."""


@dataclass(frozen=True, slots=True)
class TimeRow:
    """Times of the events of one name, in microseconds; `share` is of all events' time."""

    name: str
    calls: int
    total: float
    longest: float
    share: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Values as texts, in the order of `TITLES`."""
        mean, share = f"{self.total / self.calls:.1f}", f"{100 * self.share:.1f} %"
        return (self.name, str(self.calls), f"{self.total:.0f}", mean, f"{self.longest:.0f}", share)


def summed(events: Iterable[Mapping[str, Any]], named: str = "") -> list[TimeRow]:
    """Complete events of a timeline by name, the longest total first.

    Args:
        events: as the Trace Event Format has them.
        named: a regular expression that names must match.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and re.search(named, event["name"]):
            times[event["name"]].append(float(event["dur"]))
    whole = sum(map(sum, times.values())) or 1.0
    rows = [TimeRow(n, len(t), sum(t), max(t), sum(t) / whole) for n, t in times.items()]
    return sorted(rows, key=lambda row: -row.total)


def peaks(timeline: Mapping[str, Any]) -> dict[str, int]:
    """The most bytes that were held, by "host" and device, in a timeline of `Profiler`."""
    facts = timeline.get("metadata", {})
    return {"host": int(facts.get("peak_bytes", 0)), **facts.get("peak_bytes_of_devices", {})}


__all__ = [
    "TITLES",
    "NonExistNum",
    "OprProfRst",
    "ProfileAnalyzer",
    "Record",
    "TimeFuncHelper",
    "TimeRow",
    "peaks",
    "summed",
]
