"""Arguments of commands for language models, and how they open one."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from treadle.base.array import Array
from treadle.base.blocks import BlockTensor
from treadle.cli.console import bar, printable_text
from treadle.llm.files import ModelCheckpoint, Stored, open_checkpoint
from treadle.llm.generation import LanguageModel
from treadle.llm.generation.text_stream import TextStream

_SAMPLING, _MODEL = "Sampling", "Model"


class WeightType(StrEnum):
    """Element types of weights."""

    stored = "stored"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Prompts(StrEnum):
    """Roundings of activations while prompts are read."""

    int16 = "int16"
    bfloat16 = "bfloat16"
    int8 = "int8"


Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="A GGUF file, or a directory with safetensors.")
]
Context = Annotated[
    int,
    typer.Option(min=8, rich_help_panel=_MODEL, help="Most tokens of a text, prompt included."),
]
Dtype = Annotated[
    WeightType,
    typer.Option(
        rich_help_panel=_MODEL,
        help="Format of weights in memory: as in the file, or widened.",
    ),
]
Rounded = Annotated[
    Prompts | None,
    typer.Option(
        "--prompts",
        rich_help_panel=_MODEL,
        help="Type to which prompts are rounded for products with quantized weights; by default "
        "bfloat16 where the processor multiplies it, else int16, which is nearly exact.",
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Most tokens of an answer.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="X",
        rich_help_panel=_SAMPLING,
        help="0 takes the likeliest token. Defaults of sampling are those of the model's files.",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", rich_help_panel=_SAMPLING, help="Draw from the N likeliest."),
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="X",
        rich_help_panel=_SAMPLING,
        help="Draw from the fewest likeliest tokens whose probabilities add up to X.",
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="X",
        rich_help_panel=_SAMPLING,
        help="Draw from tokens at least X times as likely as the likeliest.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, rich_help_panel=_SAMPLING, help="Seed of sampling.")]
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
        help="Propose up to N tokens that followed an earlier occurrence of the last ones.",
    ),
]


class Cached(StrEnum):
    """Element types of keys and values."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


CacheDtype = Annotated[
    Cached | None,
    typer.Option(rich_help_panel=_MODEL, help="Element type of cached keys and values."),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=_MODEL,
        help="An adapter of the model, as `treadle llm finetune` or peft wrote it.",
    ),
]
_ADAPTER = "adapter"
"""Name of a command's only adapter."""


@contextmanager
def loading(checkpoint: ModelCheckpoint) -> Iterator[ModelCheckpoint]:
    """The checkpoint, with tensors that move a bar as they are read."""
    path = checkpoint.path
    total = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    with bar(f"loading {os.path.basename(path.rstrip('/')) or path}", total) as read:
        left = set(checkpoint.tensors)

        def told(name: str, tensor: Stored) -> Array | BlockTensor:
            if name in left:
                left.remove(name)
                read(math.prod(tensor.shape))
            return tensor.make()

        counted = {
            name: replace(tensor, make=partial(told, name, tensor))
            for name, tensor in checkpoint.tensors.items()
        }
        yield replace(checkpoint, tensors=counted)


def opened(
    source: str,
    context: int,
    dtype: WeightType,
    prompts: Prompts | None = None,
    *,
    sequences: int = 1,
    cache_dtype: Cached | None = None,
    draft: str | None = None,
    adapter: str | None = None,
) -> tuple[LanguageModel, float]:
    """The model, and how many seconds that took."""
    begun = time.perf_counter()
    smaller = None
    if draft is not None:
        with loading(open_checkpoint(draft)) as checkpoint:
            smaller = LanguageModel.of(checkpoint, dtype.value, context=8)
    with loading(open_checkpoint(source)) as checkpoint:
        rounded = None if prompts is None else prompts.value
        model = LanguageModel.of(
            *(checkpoint, dtype.value),
            sequences=sequences,
            context=context,
            prompts=rounded,
            cache_dtype=None if cache_dtype is None else cache_dtype.value,
            draft=smaller,
            adapters=None if adapter is None else {_ADAPTER: adapter},
        )
        if adapter is not None:
            model = model.adapted(_ADAPTER)
    return model, time.perf_counter() - begun


def said(stream: TextStream) -> bool:
    """Print pieces as they come; whether they came to their end, and Ctrl-C did not end them."""
    try:
        for piece in stream:
            typer.echo(printable_text(piece), nl=False)
    except KeyboardInterrupt:
        stream.close()
    typer.echo()
    return stream.finish != "cancelled"


def typed(text: str) -> str:
    """An argument, with U+FFFD for bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def readable_input() -> None:
    """Make standard input replace bytes that are not UTF-8 by U+FFFD."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")


def given(**options: Any) -> dict[str, Any]:
    """Options that were asked for."""
    return {name: value for name, value in options.items() if value is not None}
