"""`treadle info`: a model file, or this installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli import arguments as a

Model = Annotated[
    Path | None,
    typer.Argument(
        help="A model file or an ONNX model; without one, this installation is shown.",
        metavar="MODEL",
        show_default=False,
    ),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", metavar="", help="Check the digests of everything in the file."),
]
GraphFile = Annotated[
    Path | None,
    typer.Option("--graph", metavar="FILE", help="Write the graph: .json, or .txt as Treadle's."),
]


def command(
    source: Model = None,
    verify: Verify = False,
    graph: GraphFile = None,
    as_json: a.Json = False,
) -> None:
    """Show what a model file holds, or without one this installation.

    Of a file: where it comes from, inputs and outputs, shapes it was compiled for, native code and
    whether it fits this machine, memory, ops. Nothing in the file is run.
    """
    from treadle.cli.info.description import described, installation

    found = installation() if source is None else described(source, verify, graph)
    found.show(as_json)
