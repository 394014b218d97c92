"""`treadle llm merge`: a model with what an adapter learned."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli.llm.arguments import Source
from treadle.cli.llm.convert import Format, Target, written
from treadle.llm.tuning import adapter_for, merged

Adapter = Annotated[
    str,
    typer.Argument(
        metavar="ADAPTER", help="A directory as `treadle llm finetune` or peft writes it."
    ),
]


def command(source: Source, adapter: Adapter, target: Target, format: Format = "") -> None:
    """Write a model whose weights hold what an adapter learned beside them, and what that costs.

    Weights that the adapter changes take the format again that they had, or FORMAT.
    """
    written(
        source, target, format.upper(), lambda model: merged(model, adapter_for(adapter, model))
    )
