"""Gears for many extents: what a file says of them, checked, and their numbers at the extents of a
call.

A gear of numbers is a program for one set of shapes. One for many has, beside its words, code that
computes its numbers from extents (`base.arithmetic`), which was proven where the file was written
to place memory safely. The file may be damaged since: its code is read as if it were hostile, and
what it computes is held against what the gear declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treadle.base.arithmetic import CODES, DONE, OVERFLOW, Rows
from treadle.base.errors import LoadError, OutOfMemory, ShapeError
from treadle.engine.extents.placing import Evaluator, Placements
from treadle.engine.scheme import Open, data_of, open_of

Pattern = tuple[int | str, ...]
"""A shape: numbers, and names of open extents; of results, expressions in these."""
Range = tuple[int, int]
"""The least and the largest extent, inclusive."""
_MOST_CODE, _MOST_BYTES = 1 << 20, 1 << 40
_MOST_EXTENTS = 64


@dataclass(frozen=True, slots=True)
class Ranges:
    """The extents that a part has programs for.

    Attributes:
        extents: by name, in order.
        inputs, outputs: shapes, as the ranges leave them open.
        at: shapes of inputs and outputs that the model was written with, or that it takes.
        needs: what the model asks of extents besides, as text.
    """

    extents: Mapping[str, Range]
    inputs: tuple[Pattern, ...]
    outputs: tuple[Pattern, ...]
    at: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    needs: tuple[str, ...] = ()

    def of(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Extents by name.

        Raises:
            ShapeError: a shape is another one, or an extent lies outside of its range.
        """
        found = bound(self.inputs, shapes)
        if found is None:
            raise ShapeError(
                "model",
                "its inputs have other shapes",
                saw=", ".join(map(_listed, shapes)),
                hint=f"it takes {', '.join(map(_listed, self.inputs))}, equal names equal extents",
            )
        for name, extent in found.items():
            low, high = self.extents[name]
            if not low <= extent <= high:
                problem = f"the extent {name} is {extent}, and its file is for {low} to {high}"
                hint = "compile it with a wider range, or load it with recompile=True"
                raise ShapeError("model", problem, hint=hint)
        return found

    def refused(self, extents: Mapping[str, int]) -> ShapeError:
        """Return the error for extents in their ranges that the model does not take."""
        needs = f"it needs {' and '.join(self.needs)}" if self.needs else "it has no program for it"
        return ShapeError(
            "model",
            f"it does not take {spelled(extents)}: {needs}",
            hint="give other extents, or load it with recompile=True",
        )

    def refused_at(self, shapes: Sequence[tuple[int, ...]]) -> ShapeError:
        """Return the error for shapes that no program is for."""
        try:
            return self.refused(self.of(shapes))
        except ShapeError as error:
            return error


@dataclass(frozen=True, slots=True)
class Many:
    """The part of a gear by which it serves many extents.

    Attributes:
        ranges: of extents, within which its code says whether it serves them.
        inputs: shapes.
        head: the description of the code; see `engine.scheme.data_of`.
        width: bytes of the code.
        open: the code; None where only the description was read.
    """

    ranges: Mapping[str, Range]
    inputs: tuple[Pattern, ...]
    head: Mapping[str, Any]
    width: int
    open: Open | None = None

    def extents(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        """Extents in the order of the code; None where it is not for these shapes."""
        found = bound(self.inputs, shapes)
        if found is None or not all(a <= found[n] <= b for n, (a, b) in self.ranges.items()):
            return None
        return tuple(found[n] for n in self.ranges)


def bound(patterns: Sequence[Pattern], shapes: Sequence[tuple[int, ...]]) -> dict[str, int] | None:
    """Extents by name that make patterns these shapes; None where nothing does."""
    found: dict[str, int] = {}
    for pattern, shape in zip(patterns, shapes, strict=True):
        if len(pattern) != len(shape):
            return None
        for wanted, extent in zip(pattern, shape, strict=True):
            known = found.setdefault(wanted, extent) if isinstance(wanted, str) else wanted
            if known != extent:
                return None
    return found


def spelled(extents: Mapping[str, int]) -> str:
    """Extents for people."""
    return ", ".join(f"{name} = {extent}" for name, extent in extents.items())


def _listed(shape: Sequence[Any]) -> str:
    return f"[{','.join(map(str, shape))}]"


# -- in files ------------------------------------------------------------------------------------


def many_of(ranges: Mapping[str, Range], inputs: Sequence[Pattern], given: Open) -> Many:
    """The part that code makes, to be written."""
    head, raw = data_of(given)
    return Many(dict(ranges), tuple(inputs), head, sum(map(len, raw)), given)


def code_of(many: Many) -> npt.NDArray[np.int64]:
    """The code, as whole words of a file."""
    if many.open is None:
        raise LoadError("model", "the code of a gear was not read")
    return np.frombuffer(b"".join(data_of(many.open)[1]), np.int64)


def entry_of_many(many: Many) -> dict[str, Any]:
    """The description for a manifest."""
    return {
        "ranges": listed(many.ranges),
        "inputs": [list(p) for p in many.inputs],
        "code": dict(many.head),
        "width": many.width,
    }


def described_many(entry: Any, is_phase: bool = False) -> Many:
    """Return what an entry of a manifest describes.

    Args:
        entry: of the manifest.
        is_phase: the gear is one of a phase, which is told its extents: shapes need not name them.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    ranges, inputs = ranges_in(entry["ranges"]), patterns_in(entry["inputs"], None)
    named = {d for shape in inputs for d in shape if isinstance(d, str)}
    if not is_phase and named != ranges.keys():
        raise ValueError("an extent is of no input, or has no range")
    head, width = entry["code"], entry["width"]
    _numbers(head["placements"], _MOST_CODE)
    _numbers([head["registers"], head["rows"], head["first"]], _MOST_CODE)
    rows = head["rows"] + sum(head["placements"])
    if type(width) is not int or width != 8 * head["registers"] + 16 * rows:
        raise ValueError("the code of a gear has another size")
    if list(head["symbols"]) != list(ranges):
        raise ValueError("the code of a gear is for other extents")
    return Many(ranges, inputs, head, width)


def listed(ranges: Mapping[str, Range]) -> list[list[Any]]:
    """Ranges as a manifest has them, which keeps the order of lists alone."""
    return [[name, *ends] for name, ends in ranges.items()]


def ranges_in(entry: Any, least: int = 1) -> dict[str, Range]:
    """Return ranges, checked; there are at least so many.

    Raises:
        ValueError: they are none.
    """
    found = {}
    for name, low, high in entry:
        _numbers([low, high], _MOST_BYTES)
        if not isinstance(name, str) or low > high:
            raise ValueError("the range of an extent is malformed")
        found[name] = (low, high)
    if not least <= len(found) <= _MOST_EXTENTS:
        raise ValueError(f"{len(found)} open extents")
    return found


def patterns_in(entry: Any, names: Any) -> tuple[Pattern, ...]:
    """Return shapes with names, checked; None for `names` allows any text, () none.

    Raises:
        ValueError: they are none.
    """
    for shape in entry:
        if not isinstance(shape, list) or len(shape) > 64:
            raise ValueError("the shape of an input is malformed")
        _numbers([d for d in shape if not isinstance(d, str)], _MOST_BYTES)
        for word in (d for d in shape if isinstance(d, str)):
            if len(word) > 4096 or (names is not None and word not in names):
                raise ValueError("the shape of an input has an extent that is not declared")
    return tuple(tuple(shape) for shape in entry)


def _numbers(given: Any, most: int) -> None:
    if not isinstance(given, list | tuple) or not all(
        type(n) is int and 0 <= n <= most for n in given
    ):
        raise ValueError(f"{str(given)[:40]} are not numbers")


def opened_many(many: Many, raw: bytes, slots: int, results: Sequence[int]) -> Many:
    """The same with its code, which is read as if it were hostile.

    Args:
        many: as it was described.
        raw: the code.
        slots: most numbers that the program has room for.
        results: how many extents each result has, then the pairs of `Stop`s.

    Raises:
        ValueError, KeyError, TypeError: the code is damaged: it would read or write elsewhere.
    """
    head = many.head
    lives = head["lives"]
    if not all(isinstance(dtype, str) for dtype in head["dtypes"]) or len(head["at"]) != 7:
        raise ValueError("the code of a gear lacks something")
    made = open_of(head, raw)
    scheme, code, count = made.scheme, made.scheme.arithmetic, len(made.scheme.arithmetic.start)
    at = scheme.at
    for life in lives:
        _numbers(list(life), _MOST_CODE)
    for known in (at.sizes, at.offsets, at.ends, (at.zero, at.least, at.peak, at.bound)):
        _numbers(list(known), count - 1)
    if not len(at.sizes) == len(at.offsets) == len(at.ends) == len(lives):
        raise ValueError("the code of a gear has another number of buffers")
    if not 0 <= count - code.first <= slots:
        raise ValueError("the code of a gear has more numbers than its program")
    if [len(places) for places in scheme.results] != list(results):
        raise ValueError("the code of a gear has other results")
    for places in scheme.results:
        _numbers(list(places), count - 1)
    for rows in (code.rows, *made.placements):
        _check_rows(rows, len(scheme.symbols), count)
    return Many(many.ranges, many.inputs, head, many.width, made)


def _check_rows(rows: Rows, symbols: int, registers: int) -> None:
    if not len(rows):
        return
    codes, places = rows[:, 0], rows[:, 1:]
    if codes.min() < 0 or codes.max() >= CODES:
        raise ValueError("the code of a gear has an unknown instruction")
    if places.min() < 0 or places.max() >= registers:
        raise ValueError("the code of a gear reaches beyond its registers")


# -- at the extents of a call --------------------------------------------------------------------


class Numbers(NamedTuple):
    """Results of code at the extents of a call.

    Attributes:
        entries: of the table.
        arena: bytes of scratch memory.
        results: extents of each result.
        pairs: the ranges that indices are checked by.
    """

    entries: npt.NDArray[np.int64]
    arena: int
    results: list[tuple[int, ...]]
    pairs: list[tuple[int, int]]


class ManyNumbers:
    """The code of a gear, ready to run.

    Args:
        many: with its code.
        outputs: how many results there are.
        most: bytes of scratch memory that the gear declares.
        evaluator: makes code a function.
    """

    def __init__(self, many: Many, outputs: int, most: int, evaluator: Evaluator) -> None:
        if many.open is None:
            raise LoadError("model", "the code of a gear was not read")
        self.many, self._most, self._outputs = many, most, outputs
        self._scheme = scheme = many.open.scheme
        self._run = evaluator(scheme.arithmetic.rows)
        self._results = [list(places) for places in scheme.results]
        self._sizes, self._ends = list(scheme.at.sizes), list(scheme.at.ends)
        self._offsets = list(scheme.at.offsets)
        self._placements = Placements(scheme.at, scheme.lives, evaluator, 0)
        for rows in many.open.placements:
            self._placements.add(rows)

    def at(self, extents: tuple[int, ...]) -> Numbers | None:
        """The numbers at extents in the gear's ranges; None where it does not serve them.

        Raises:
            ShapeError: sizes at these extents are beyond 64 bits.
            OutOfMemory: they need more scratch memory than the gear declares.
            LoadError: what the code computes is none of these.
        """
        scheme = self._scheme
        registers = scheme.arithmetic.start.copy()
        registers[: len(extents)] = extents
        named = spelled(dict(zip(scheme.symbols, extents, strict=True)))
        reached = self._run(registers)
        if reached not in (DONE, OVERFLOW):
            return None
        try:
            arena = self._placements.place(registers) if reached == DONE else -1
        except OverflowError:
            arena = -1
        if reached == OVERFLOW or arena < 0:
            raise ShapeError("model", "sizes are beyond 64 bits", saw=named)
        if arena > self._most:
            raise OutOfMemory(
                "model",
                f"at {named} it needs {arena} bytes of scratch memory",
                saw=f"its file declares {self._most}",
                hint="compile it with a wider range",
            )
        self._check(registers, arena, named)
        found = [tuple(registers[places].tolist()) for places in self._results]
        results, pairs = found[: self._outputs], found[self._outputs :]
        if any(d < 0 for shape in results for d in shape):
            raise self._damaged(named)
        numbers = registers[scheme.arithmetic.first :].copy()
        return Numbers(numbers, arena, results, [(low, high) for low, high in pairs])

    def _check(self, registers: npt.NDArray[np.int64], arena: int, named: str) -> None:
        """Hold the places of buffers against the arena."""
        if not self._sizes:
            return
        sizes, offsets = registers[self._sizes], registers[self._offsets]
        if sizes.min() < 0 or offsets.min() < 0 or (registers[self._ends] > arena).any():
            raise self._damaged(named)
        if (registers[self._ends] - offsets != sizes).any():
            raise self._damaged(named)

    def _damaged(self, named: str) -> LoadError:
        return LoadError("model", f"its code computes no sizes at {named}", hint="compile it anew")


__all__ = [
    "Many",
    "ManyNumbers",
    "Numbers",
    "Pattern",
    "Range",
    "Ranges",
    "bound",
    "code_of",
    "described_many",
    "entry_of_many",
    "listed",
    "many_of",
    "opened_many",
    "patterns_in",
    "ranges_in",
    "spelled",
]
