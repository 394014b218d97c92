"""`treadle llm run`: a text is continued."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from treadle.cli.llm.arguments import (
    Adapter,
    CacheDtype,
    Context,
    Draft,
    Dtype,
    Lookup,
    MaxTokens,
    MinP,
    Rounded,
    Seed,
    Source,
    Stop,
    Temperature,
    TopK,
    TopP,
    WeightType,
    given,
    opened,
    readable_input,
    said,
    typed,
)
from treadle.cli.status import Status

Prompt = Annotated[str, typer.Argument(metavar="TEXT", help="A text to continue; - reads it.")]


def command(
    source: Source,
    prompt: Prompt,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = 0,
    stop: Stop = None,
    context: Context = 4096,
    dtype: Dtype = WeightType.stored,
    cache_dtype: CacheDtype = None,
    draft: Draft = None,
    lookup: Lookup = 0,
    prompts: Rounded = None,
    adapter: Adapter = None,
) -> None:
    """Continue a text, piece by piece as it comes; how fast goes to standard error.

    A model that was tuned for conversations answers with `treadle llm chat`.
    """
    if prompt == "-":
        readable_input()
    text = sys.stdin.read() if prompt == "-" else typed(prompt)
    model, seconds = opened(
        *(source, context, dtype, prompts), cache_dtype=cache_dtype, draft=draft, adapter=adapter
    )
    stream = model.stream(
        text,
        **given(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            stop=tuple(stop or ()),
            lookup=lookup,
        ),
    )
    whole = said(stream)
    typer.echo(f"loaded in {seconds:.1f} s; {stream.timing}; {stream.finish}", err=True)
    if not whole:
        raise typer.Exit(Status.INTERRUPTED)
