"""`treadle llm quantize`: a model in fewer bits."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli.llm.arguments import Source
from treadle.cli.llm.convert import written
from treadle.cli.status import Misuse
from treadle.llm.conversion import WRITTEN

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A path that ends in .gguf.")]
Format = Annotated[
    str, typer.Argument(metavar="[FORMAT]", help=f"Of blocks: {', '.join(WRITTEN)}.")
]


def command(source: Source, target: Target, format: Format = "Q8_0") -> None:
    """Write a model in quantized blocks as a GGUF file, and what that costs.

    Matrices take the format; the embedding and the head have at least 8 bits, what has one axis
    and routers of experts stay float32.
    """
    wanted = format.upper()
    if wanted not in WRITTEN or not target.endswith(".gguf"):
        hint = f"name a .gguf file, and one of {', '.join(WRITTEN)}"
        raise Misuse("quantize", "blocks cannot be written so", saw=f"{target} {format}", hint=hint)
    written(source, target, wanted)
