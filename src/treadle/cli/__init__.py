"""The command line: `treadle COMMAND`, or `python -m treadle COMMAND`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from treadle.base.env import TRACEBACK
from treadle.base.errors import TreadleError
from treadle.base.loc import UNKNOWN
from treadle.base.version import VERSION
from treadle.cli.console import printable_text
from treadle.cli.late import Lazy, group_of
from treadle.cli.status import Misuse, Status, Unfit

__all__ = ["main"]

_MODELS, _MACHINE = "Models", "This machine"
_COMMANDS = (
    Lazy("compile", "Compile a model: to one file, or to a library without Python.", _MODELS),
    Lazy("convert", "Convert a checkpoint or foreign model, and check what was written.", _MODELS),
    Lazy("run", "Run a model: its results, and how long it takes.", _MODELS),
    Lazy("info", "Show what a model file holds, or without one this installation.", _MODELS),
    Lazy("stats", "Count a model's parameters, arithmetic and memory, op by op.", _MODELS),
    Lazy("explain", "Show what the compiler makes of a model, as text or as a page.", _MODELS),
    Lazy("opt", "Run single passes on the text of a graph, and print the graph.", _MODELS),
    Lazy("serve", "Serve models by the Open Inference Protocol.", _MODELS),
    Lazy("llm", "Run language models: answer, chat, measure.", _MODELS),
    Lazy("trust", "Trust a key: code of model files that it has signed runs here.", _MACHINE),
    Lazy("help", "Explain an error by its code, or show how a command is used.", _MACHINE),
    Lazy("doctor", "Show what is installed, and what is wrong with it.", _MACHINE),
    Lazy("completion", "Print what makes bash, zsh or fish complete commands.", _MACHINE),
    Lazy("warm", "Compile the kernels of the commonest ops before they are wanted.", _MACHINE),
    # What stands behind a script are its own arguments, options included.
    Lazy(
        "bench",
        "Measure this machine and a few kernels against its roofline.",
        _MACHINE,
        {"allow_interspersed_args": False},
    ),
)
app = typer.Typer(
    cls=group_of(*_COMMANDS), rich_markup_mode="markdown", pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"treadle {VERSION}")
        raise typer.Exit


@app.callback(epilog="`treadle COMMAND --help` shows the options of a command.")
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Compile trained models, run them, and look inside."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status.

    Raises:
        SystemExit: in place of a status other than 0, where that does not come of an error.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        get_command(app).main(given, prog_name="treadle", obj=given)
    except SystemExit as end:
        if end.code:
            raise
    except TreadleError as error:
        if _is_ours(error.at.file):
            error.locate(UNKNOWN)
        told = "\n".join(filter(None, (str(error), error.translation)))
        typer.echo(printable_text(f"treadle {given[0]}: {told}"), err=True)
        return _status_of(error)
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except BrokenPipeError:  # Who reads has read enough, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Status.FAILED
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        told = f"treadle {given[0]}: {name}{error.strerror or error}"
        typer.echo(printable_text(told), err=True)
        return Status.FAILED
    except Exception as error:
        if TRACEBACK.get() == "full":
            raise
        typer.echo(printable_text(f"treadle {given[0]}: {_told(error)}"), err=True)
        return Status.FAILED
    return Status.DONE


def _told(error: Exception) -> str:
    """Return what is said of an error that nobody foresaw, in place of its traceback."""
    if isinstance(error, ImportError):
        hint = "install what is missing; treadle doctor shows what is there"
        return f"{error}\n  hint: {hint}"
    kind = type(error).__name__
    hint = "if the input is right this is a fault of Treadle's; TREADLE_TRACEBACK=full shows where"
    return f"{kind}: {error}\n  hint: {hint}"


def _status_of(error: TreadleError) -> Status:
    if isinstance(error, Misuse):
        return Status.MISUSE
    return Status.UNFIT if isinstance(error, Unfit) else Status.FAILED


def _is_ours(file: str) -> bool:
    """Return whether a line that an error names is of the command itself, and none of the
    user's.
    """
    path = Path(file)
    return "typer" in path.parts or path.name == Path(sys.argv[0]).name
