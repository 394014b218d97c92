"""The command line: `treadle COMMAND`, or `python -m treadle.cli COMMAND`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from treadle.base.errors import TreadleError
from treadle.base.version import VERSION
from treadle.cli import bench, compile, doctor, info, run

__all__ = ["main"]

app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
# What stands behind a script are its own arguments, options included.
app.command("bench", context_settings={"allow_interspersed_args": False})(bench.command)
app.command("compile")(compile.command)
app.command("doctor")(doctor.command)
app.command("info")(info.command)
app.command("run")(run.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"treadle {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The Treadle command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status.

    Raises:
        SystemExit: misuse, with status 2, or the end of a script that ends by itself.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        get_command(app).main(given, prog_name="treadle")
    except SystemExit as end:
        if end.code:
            raise
    except TreadleError as error:
        typer.echo(f"treadle {given[0]}: {error}", err=True)
        return 1
    return 0
