"""Numbers of a program for many extents, as code and plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from treadle.base.arithmetic import Arithmetic, Rows


@dataclass(frozen=True, slots=True)
class Registers:
    """Registers in which code finds sizes of buffers, in whole lines, and puts their places.

    Attributes:
        zero, least: hold 0, and the bytes that are needed in any case.
        sizes, offsets, ends: one for each buffer.
        peak: for the bytes of all.
        bound: holds the largest sum of sizes that are needed at one step.
    """

    zero: int
    least: int
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    ends: tuple[int, ...]
    peak: int
    bound: int


@dataclass(frozen=True, slots=True)
class Scheme:
    """The way from a call's extents to the numbers of a plan.

    Attributes:
        symbols: names of extents, in the order in which code has them.
        arithmetic: asks what must hold, and computes numbers; its last registers are the entries
            of the table.
        at: registers of the memory plan.
        lives: first and last step of each buffer.
        results: for every result the registers of its extents.
    """

    symbols: tuple[str, ...]
    arithmetic: Arithmetic
    at: Registers
    lives: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Open:
    """The part of a program for many extents that stands beside its words.

    Attributes:
        scheme: how extents become its numbers.
        dtypes: names of the results' element types.
        placements: codes that lay out memory.
    """

    scheme: Scheme
    dtypes: tuple[str, ...]
    placements: tuple[Rows, ...]


def data_of(given: Open) -> tuple[dict[str, Any], list[bytes]]:
    """The same as plain data, and bytes that belong to it."""
    scheme, code = given.scheme, given.scheme.arithmetic
    head = {
        "symbols": scheme.symbols,
        "first": code.first,
        "registers": len(code.start),
        "rows": len(code.rows),
        "at": astuple(scheme.at),
        "lives": scheme.lives,
        "results": scheme.results,
        "dtypes": given.dtypes,
        "placements": [len(rows) for rows in given.placements],
    }
    rows = [array.tobytes() for array in (code.rows, *given.placements)]
    return head, [code.start.tobytes(), *rows]


def open_of(head: Mapping[str, Any], raw: bytes) -> Open:
    """Return what `data_of` wrote."""
    width = 8 * head["registers"]
    start = np.frombuffer(raw, np.int64, head["registers"])
    rows = np.frombuffer(raw, np.int32, offset=width).reshape(-1, 4)
    ends = np.cumsum([head["rows"], *head["placements"]]).tolist()
    placements = [rows[a:b].copy() for a, b in pairwise(ends)]
    zero, least, sizes, offsets, stops, peak, bound = head["at"]
    at = Registers(zero, least, tuple(sizes), tuple(offsets), tuple(stops), peak, bound)
    code = Arithmetic(start.copy(), rows[: head["rows"]].copy(), head["first"])
    results = tuple(map(tuple, head["results"]))
    scheme = Scheme(tuple(head["symbols"]), code, at, _pairs(head["lives"]), results)
    return Open(scheme, tuple(head["dtypes"]), tuple(placements))


def _pairs(given: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a, b in given)
