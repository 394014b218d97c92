"""What commands print: progress on standard error, tables and facts on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.status import Status as Spinner

from treadle.engine.table import lines


class Progress:
    """A line that says what is being done; silent where standard error is no terminal."""

    def __init__(self, spinner: Spinner | None = None) -> None:
        self._spinner = spinner

    def tell(self, what: str) -> None:
        """Say what is being done now; "" is for being still: the display takes time of its own."""
        if self._spinner is None:
            return
        if what:
            self._spinner.update(what)
            self._spinner.start()
        else:
            self._spinner.stop()


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show what is being done while the block runs."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Progress()
        return
    with console.status(what) as spinner:
        yield Progress(spinner)


def printable(text: str) -> str:
    """The text without what a terminal would obey: names in files are not to be trusted."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_text(text: str) -> str:
    """As `printable`, but with the line breaks and tabs of a text."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def show_facts(facts: Mapping[str, Any], indent: str = "") -> None:
    """Print names and values in two columns."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        typer.echo(printable(f"{indent}{name:<{width}}  {value}".rstrip()))


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table under its title."""
    if rows:
        typer.echo("\n".join((title, *map(printable, lines(header, rows)))))


def show_json(data: Any) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(data, indent=1, allow_nan=False, default=str))
