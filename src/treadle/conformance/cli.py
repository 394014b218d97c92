"""The command `treadle-backend-test NAME`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.main import get_command

from treadle.base.errors import TreadleError
from treadle.conformance.check import NotOffered
from treadle.conformance.known import read_known
from treadle.conformance.report import earlier_figures, write
from treadle.conformance.result import CheckResult, Report
from treadle.conformance.runner import GROUPS, run_checks

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_COLORS = {
    "failed": "bold red",
    "expired": "bold red",
    "known": "yellow",
    "unexpected-pass": "magenta",
    "not-offered": "dim",
}
_STATUSES = ("passed", "failed", "expired", "known", "unexpected-pass", "not-offered")
_SLOWER = 2.0
"""A figure that changed by this factor since the last run is pointed out."""


class _Progress:
    """Prints groups as they begin and what is not simply fine."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._group, self._count, self._seconds = "", 0, 0.0

    def __call__(self, result: CheckResult) -> None:
        if result.group != self._group:
            self.end()
            self._group, self._count, self._seconds = result.group, 0, 0.0
            self._console.print(f"[bold]{result.group}[/bold]")
        self._count += 1
        self._seconds += result.seconds
        color = _COLORS.get(result.status)
        if color is not None:
            said = escape(f"{result.id}: {result.message}")
            self._console.print(f"  [{color}]{result.status:<15}[/{color}] {said}", soft_wrap=True)

    def end(self) -> None:
        """Say how many checks the group had and how long they took."""
        if self._group:
            self._console.print(f"  [dim]{self._count} checks in {self._seconds:.1f} s[/dim]")


@app.command()
def command(
    name: Annotated[str, typer.Argument(help="The backend, as its entry point is called.")],
    tier: Annotated[
        int, typer.Option(min=0, max=3, help="Leave out what is for higher tiers.")
    ] = 3,
    group: Annotated[
        list[str] | None, typer.Option(help="A group to run; may be given several times.")
    ] = None,
    only: Annotated[
        str, typer.Option(help="A pattern of checks, such as `operators/add/*`.")
    ] = "*",
    known: Annotated[
        Path | None, typer.Option(help="TOML file of failures that are known.", exists=True)
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for junit.xml, results.json and coverage.md.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer samples and steps.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that one check may take.")] = 300.0,
) -> None:
    """Check a backend: what it promises by being there, and by every yes of `supports`.

    Ends with status 0 if nothing failed that the file of known failures does not list, with 1 if
    something did, and with 2 if there is nothing to check.
    """
    console = Console()
    groups = [_group(given) for given in group or ()]
    progress = _Progress(console)
    made = run_checks(
        name,
        groups=groups,
        only=only,
        tier=tier,
        quick=quick,
        known=read_known(known) if known is not None else (),
        timeout=timeout,
        seen=progress,
    )
    progress.end()
    if not made.results:
        raise NotOffered(f"there is no check {only} in {', '.join(groups) or 'any group'}")
    console.print(_summary(made))
    if report is not None:
        for line in compared(made, earlier_figures(report)):
            console.print(line)
        paths = write(made, report)
        console.print("written: " + ", ".join(str(path) for path in paths))
    if not made.ok:
        raise typer.Exit(1)


def _group(given: str) -> str:
    """A group by its name, or the beginning of it, in any case."""
    found = [name for name in GROUPS if name.lower().startswith(given.lower())]
    if len(found) != 1:
        known = ", ".join(GROUPS)
        raise typer.BadParameter(f"there is no group {given!r}; groups are {known}")
    return found[0]


def _summary(made: Report) -> Table:
    title = f"{made.backend}: {'passed' if made.ok else 'FAILED'}"
    if "stopped" in made.about:
        title += f" ({made.about['stopped']})"
    table = Table(title=title)
    table.add_column("group")
    for status in _STATUSES:
        table.add_column(status, justify="right")
    for group, counts in made.counts().items():
        table.add_row(group, *[str(counts[status] or "") for status in _STATUSES])
    return table


def compared(made: Report, before: dict[str, dict[str, float]]) -> list[str]:
    """Figures of performance that differ much from those of an earlier run."""
    lines = []
    for result in made.results:
        if result.group != "Performance sanity":
            continue
        for name, value in result.measured.items():
            was = before.get(result.id, {}).get(name)
            if was and isinstance(value, float) and not 1 / _SLOWER < value / was < _SLOWER:
                lines.append(f"{result.id}: {name} is {value:.3g}, last time it was {was:.3g}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        get_command(app).main(given, prog_name="treadle-backend-test")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except (TreadleError, NotOffered) as error:
        typer.echo(f"treadle-backend-test: {error}", err=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
