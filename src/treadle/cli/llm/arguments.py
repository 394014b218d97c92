"""What commands for language models are asked with, and how they open one."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from treadle.cli.console import progress
from treadle.llm.generation import LanguageModel, load

_SAMPLING, _MODEL = "Sampling", "Model"


class Weights(StrEnum):
    """What weights are kept in."""

    stored = "stored"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Prompts(StrEnum):
    """What activations are rounded to while prompts are read."""

    int16 = "int16"
    bfloat16 = "bfloat16"
    int8 = "int8"


Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="A GGUF file, or a directory with safetensors.")
]
Context = Annotated[
    int,
    typer.Option(min=8, rich_help_panel=_MODEL, help="Tokens of a text at most, prompt included."),
]
Dtype = Annotated[
    Weights,
    typer.Option(
        rich_help_panel=_MODEL,
        help="What weights are kept in: as the file has them, or widened.",
    ),
]
Rounded = Annotated[
    Prompts | None,
    typer.Option(
        "--prompts",
        rich_help_panel=_MODEL,
        help="What prompts are rounded to where they meet quantized weights; bfloat16 where the "
        "processor multiplies it, else int16, which is nearly exact.",
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Tokens of an answer at most.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="X",
        rich_help_panel=_SAMPLING,
        help="0 takes the likeliest token. What is left out here is as the file asks for.",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", rich_help_panel=_SAMPLING, help="Only the N likeliest."),
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="X",
        rich_help_panel=_SAMPLING,
        help="Only likeliest ones of this mass.",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="X",
        rich_help_panel=_SAMPLING,
        help="Only tokens so likely, compared with the likeliest.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, rich_help_panel=_SAMPLING, help="Of the random numbers.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="A text that ends the answer; may be repeated."),
]
Draft = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        rich_help_panel=_MODEL,
        help="A smaller model with the same tokens, which proposes what follows.",
    ),
]
Lookup = Annotated[
    int,
    typer.Option(
        min=0,
        max=7,
        metavar="N",
        rich_help_panel=_MODEL,
        help="Propose up to N tokens that followed where the last ones stood before.",
    ),
]


class Cached(StrEnum):
    """What keys and values are kept in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


CacheDtype = Annotated[
    Cached | None,
    typer.Option(rich_help_panel=_MODEL, help="What keys and values of tokens are kept in."),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=_MODEL,
        help="What was learned beside the model, as `treadle llm finetune` or peft wrote it.",
    ),
]
_ADAPTER = "adapter"
"""What the only adapter of a command is called."""


def opened(
    source: str,
    context: int,
    dtype: Weights,
    prompts: Prompts | None = None,
    *,
    sequences: int = 1,
    cache_dtype: Cached | None = None,
    draft: str | None = None,
    adapter: str | None = None,
) -> tuple[LanguageModel, float]:
    """The model, and how many seconds that took."""
    begun = time.perf_counter()
    with progress(f"loading {os.path.basename(source.rstrip('/')) or source}"):
        rounded = None if prompts is None else prompts.value
        model = load(
            *(source, dtype.value),
            sequences=sequences,
            context=context,
            prompts=rounded,
            cache_dtype=None if cache_dtype is None else cache_dtype.value,
            draft=draft,
            adapters=None if adapter is None else {_ADAPTER: adapter},
        )
        if adapter is not None:
            model = model.adapted(_ADAPTER)
    return model, time.perf_counter() - begun


def given(**options: Any) -> dict[str, Any]:
    """Options that were asked for."""
    return {name: value for name, value in options.items() if value is not None}
