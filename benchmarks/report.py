"""Rows as a table, as Markdown, and as a picture."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Mapping, Sequence
from datetime import date

from processes import Row
from rich.table import Table
from workloads import TITLES, WORKLOADS

Results = Mapping[str, Sequence[Row]]
_TEXT = ("", "workload", "who")


def table_of(results: Results) -> Table:
    """All rows.

    The ratio is the median of the best other framework's best mode over Treadle's; "diff" is the
    largest difference of results to Treadle's, and in Treadle's own row the largest of all.
    """
    table = Table(title=f"{date.today()}, {platform.processor() or platform.machine()}")
    for name in (*_TEXT, "median ms", "p20 ms", "first s", "MiB", "ratio", "diff"):
        table.add_column(name, justify="left" if name in _TEXT else "right")
    for key, rows in results.items():
        own, best = _compared(rows)
        for row in rows:
            table.add_row(
                key if row is rows[0] else "",
                WORKLOADS[key].title if row is rows[0] else "",
                f"{TITLES[row.peer]} {row.mode}",
                f"{row.median * 1e3:.3f}",
                f"{row.quick * 1e3:.3f}",
                f"{row.first:.2f}",
                f"{row.memory:.0f}",
                f"{best.median / row.median:.2f}" if row is own and best else "",
                _difference(row, own, rows),
            )
    return table


def _compared(rows: Sequence[Row]) -> tuple[Row | None, Row | None]:
    """Treadle's row, and the fastest of the others."""
    own = next((r for r in rows if r.peer == "own"), None)
    others = [r for r in rows if r.peer != "own"]
    return own, min(others, key=lambda r: r.median, default=None)


def _difference(row: Row, own: Row | None, rows: Sequence[Row]) -> str:
    if own is None:
        return ""
    others = [r for r in rows if r is not own] if row is own else [row]
    return f"{max(own.difference(r) for r in others):.1e}" if others else ""


def print_markdown(table: Table) -> None:
    """The table as Markdown."""
    print("| " + " | ".join(str(c.header) for c in table.columns) + " |")
    print("|" + "---|" * len(table.columns))
    for cells in zip(*(list(c.cells) for c in table.columns), strict=True):
        print("| " + " | ".join(map(str, cells)) + " |")


def versions(results: Results) -> str:
    """Names and versions of all that ran."""
    found = dict.fromkeys(row.version for rows in results.values() for row in rows)
    return ", ".join((f"Python {platform.python_version()}", *found))


def plot(results: Results, path: str) -> None:
    """Bars: how many times as fast as the best other framework."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    names, ratios, labels = [], [], []
    for key, rows in results.items():
        own, best = _compared(rows)
        if own and best:
            names.append(f"{key}  {WORKLOADS[key].title}")
            ratios.append(best.median / own.median)
            labels.append(f"{ratios[-1]:.2f} x {TITLES[best.peer]} {best.mode}")
    figure, axes = pyplot.subplots(figsize=(10, 0.42 * len(names) + 1))
    bars = axes.barh(names[::-1], ratios[::-1], color="#35618f")
    axes.bar_label(bars, labels[::-1], padding=4, fontsize="small", backgroundcolor="white")
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlim(0, 1.6 * max(ratios, default=1))
    axes.set_xlabel("times as fast as the best other framework (medians of alternating runs)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
