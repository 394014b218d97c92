"""Tables and quantities as reports print them."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence

WIDTH = 118
"""Columns that a table takes at most, behind its indentation, where no terminal shows it."""
_LEAST, _REASON = 10, 30
_NUMBER = re.compile(r"-|[\d.,]*( ?(ns|us|ms|s|[KMGT]?i?B|[KMGT]|%|x))?")


def lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, reasons: bool = False
) -> list[str]:
    """Columns of equal width, indented by two; numbers are flush right, long texts are cut.

    Where that is not enough, numbers stand in a line below the texts of their row. The last column
    is never cut if it has `reasons`, which stand nowhere else: it may run past the others' width.
    """
    columns = list(zip(header, *rows, strict=True))
    right = [bool(rows) and all(map(_NUMBER.fullmatch, column[1:])) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    last = widths[-1]
    if reasons:
        widths[-1] = min(last, _REASON)
    widths = _fitted(widths, right)
    if _excess(widths) > 0 and not all(right):
        return _stacked(header, rows, right)
    if reasons:
        widths[-1] = last
    found = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if flush else shortened(cell, width).ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        ]
        found.append(("  " + "  ".join(cells)).rstrip())
    return found


def _fitted(widths: list[int], numbers: Sequence[bool]) -> list[int]:
    """The widths, the widest text cut down until all fit; numbers are never cut."""
    excess = _excess(widths)
    texts = [i for i, is_number in enumerate(numbers) if not is_number]
    while excess > 0 and texts:
        order = sorted(texts, key=lambda i: -widths[i])
        widest = order[0]
        second = widths[order[1]] if len(order) > 1 else 0
        cut = min(excess, max(widths[widest] - second, 1), widths[widest] - _LEAST)
        if cut <= 0:
            break
        widths[widest] -= cut
        excess -= cut
    return widths


def _excess(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1) - _available()


def _stacked(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
) -> list[str]:
    def part(row: Sequence[str], numbers: bool) -> list[str]:
        return [cell for cell, flush in zip(row, right, strict=True) if flush is numbers]

    below = lines(part(header, True), [part(row, True) for row in rows])
    found = []
    for row, numbers in zip((header, *rows), below, strict=True):
        texts = "  ".join(filter(None, part(row, False)))
        found += ["  " + shortened(texts, _available()), "  " + numbers]
    return found


def _available() -> int:
    """Columns for a table: those of the terminal where there is one."""
    if sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, 40) - 2
    return WIDTH


def shortened(text: str, width: int) -> str:
    """The text, its end replaced by an ellipsis where it is too long."""
    return text if len(text) <= width else text[: width - 1] + "…"


def size(nbytes: float) -> str:
    """Bytes in a readable unit."""
    return _scaled(nbytes, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))


def count(number: float) -> str:
    """A large number with a prefix."""
    return _scaled(number, 1000.0, ("", "K", "M", "G", "T"))


def _scaled(number: float, step: float, units: Sequence[str]) -> str:
    power = 0
    while number >= step - 0.5 and power < len(units) - 1:
        number /= step
        power += 1
    figures = f"{number:.0f}" if power == 0 or number >= 99.95 else f"{number:.1f}"
    return f"{figures} {units[power]}".rstrip()


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    if seconds < 0.9995e-6:
        return f"{seconds * 1e9:.0f} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
