"""Rows of statistics as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = dict[str, Any]

_BYTES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_THOUSANDS = ("", "K", "M", "G", "T", "P", "E", "Z", "Y")
_NUMBERS = frozenset(
    {"param_dim", "nbits", "size", "size_cum", "percentage", "flops", "flops_cum", "act_dim"}
)


def sizeof_fmt(num: float, suffix: str = "B") -> str:
    """A number with a unit: bytes in steps of 1024, anything else in steps of 1000.

    Example:
        >>> from treadle.utils.module_stats import sizeof_fmt
        >>> sizeof_fmt(3 * 2**20), sizeof_fmt(4.1e9, suffix="OPs")
        ('3.000 MiB', '4.100 GOPs')
    """
    step, units = (1024.0, _BYTES) if suffix == "B" else (1000.0, _THOUSANDS)
    for unit in units[:-1]:
        if abs(num) < step:
            return f"{num:3.3f} {unit}{suffix}"
        num /= step
    return f"{num:3.3f} {units[-1]}{suffix}"


def dict2table(list_of_dict: Sequence[Mapping[str, Any]], header: Sequence[str]) -> list[list[Any]]:
    """Rows of a table: the header, then what each mapping has under its names, or ""."""
    return [list(header), *[[d.get(h, "") for h in header] for d in list_of_dict]]


def show(title: str, rows: Sequence[Sequence[Any]]) -> None:
    """Print rows, the first of which is the header, as a table."""
    header, *body = rows
    console = Console(highlight=False)
    fits = console.is_terminal
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in header:
        right = str(name) in _NUMBERS
        table.add_column(str(name), justify="right" if right else "left", no_wrap=not fits)
    for row in body:
        table.add_row(*[escape(str(cell)) for cell in row])
    if not fits:  # A file has no width that a table has to fit into.
        everything = Console(width=100_000)
        console = Console(highlight=False, width=everything.measure(table).maximum)
    console.print(table)


def param_header() -> list[str]:
    """Columns of the table of parameters."""
    return [
        *("name", "dtype", "shape", "mean", "std", "param_dim", "nbits", "size", "size_cum"),
        *("percentage", "size_bar"),
    ]


def op_header(receptive_fields: bool) -> list[str]:
    """Columns of the table of multiply-adds."""
    fields = ["receptive_field", "stride"] if receptive_fields else []
    return [
        *("name", "class_name", "input_shapes", "output_shapes"),
        *fields,
        *("flops", "flops_cum", "percentage", "bar"),
    ]


def activation_header(values: bool) -> list[str]:
    """Columns of the table of activations."""
    known = ["mean", "std"] if values else []
    return [
        *("name", "class_name", "dtype", "shape"),
        *known,
        *("nbits", "act_dim", "size", "size_cum", "percentage", "size_bar"),
    ]
