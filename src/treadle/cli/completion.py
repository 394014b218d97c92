"""`treadle completion`: what makes a shell complete commands, options and their values."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]


class Shell(StrEnum):
    """A shell that completion is there for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def command(
    shell: Annotated[Shell, typer.Argument(help="The shell that is to read it.", metavar="SHELL")],
) -> None:
    """Print what makes bash, zsh or fish complete commands, options and values.

    For bash, into ~/.bashrc: eval "$(treadle completion bash)".
    """
    variable = "_TREADLE_COMPLETE"
    print(get_completion_script(prog_name="treadle", complete_var=variable, shell=shell.value))
