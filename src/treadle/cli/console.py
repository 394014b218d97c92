"""Output of commands: progress on standard error, tables and facts on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.status import Status as Spinner

from treadle.base.table import lines


class Progress:
    """A line that says what is being done; silent where standard error is not a terminal."""

    def __init__(self, spinner: Spinner | None = None) -> None:
        self._spinner = spinner

    def tell(self, what: str) -> None:
        """Say what is being done now; "" is for being still: the display takes time of its own."""
        if self._spinner is None:
            return
        if what:
            self._spinner.update(escape(printable(what)))
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
    with console.status(escape(printable(what))) as spinner:
        yield Progress(spinner)


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of a total is done while the block runs; the function is told of each part."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Bar(*columns, console=console, transient=True) as shown:
        task = shown.add_task(escape(printable(what)), total=total)
        yield lambda part: shown.advance(task, part)


def printable(text: str) -> str:
    """The text without what a terminal would obey: names in files are not to be trusted."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_text(text: str) -> str:
    """Make text printable as `printable` does, but keep its line breaks and tabs."""
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
