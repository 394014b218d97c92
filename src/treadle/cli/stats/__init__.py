"""`treadle stats`: parameters, arithmetic and memory of a model, op by op."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import arguments as a

Top = Annotated[int, typer.Option("--top", min=0, metavar="N", help="Heaviest nodes to list.")]


def command(
    source: a.Source,
    shape: a.Shape = None,
    top: Top = 10,
    level: a.Level = None,
    as_json: a.Json = False,
) -> None:
    """Count a model's parameters, arithmetic and memory, op by op.

    The least time is what this machine's measured limits allow for the program that is made of it;
    the predicted one is what the compiler's model says.
    """
    from treadle.cli.stats.counting import shown

    shown(source, shape or (), top, 2 if level is None else level, as_json)
