"""`treadle llm convert`: a model as another kind of file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from treadle.base.errors import LoadError
from treadle.cli.console import printable_text, progress
from treadle.cli.llm.arguments import Source
from treadle.cli.status import Misuse
from treadle.llm.conversion import WRITTEN, convert
from treadle.llm.files import ModelCheckpoint
from treadle.llm.files.gguf import NUMBERS

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="A path that ends in .gguf, or a directory.")
]
Format = Annotated[
    str,
    typer.Option(
        metavar="FORMAT",
        help=f"What matrices become: {', '.join((*NUMBERS, *WRITTEN))}; as they are if left out.",
    ),
]


def command(source: Source, target: Target, format: Format = "") -> None:
    """Write a model as a GGUF file, or as a directory with safetensors, and what that costs.

    The tensors with the largest errors are shown: root of the mean square difference, divided by
    that of the values. Blocks are for GGUF files; `treadle llm quantize` writes them.
    """
    written(source, target, format.upper())


def written(
    source: str,
    target: str,
    format: str,
    change: Callable[[ModelCheckpoint], ModelCheckpoint] | None = None,
) -> None:
    """Convert, and show the report."""
    known = (*NUMBERS, *WRITTEN)
    if format and format not in known:
        hint = f"there are {', '.join(known)}"
        raise Misuse("FORMAT", "is none that is written", saw=format, hint=hint)
    try:
        with progress(f"writing {target}"):
            report = convert(source, target, format, change)
    except FileNotFoundError as error:
        raise LoadError("convert", f"there is no file or directory {error.filename}") from None
    typer.echo(printable_text(str(report)))
