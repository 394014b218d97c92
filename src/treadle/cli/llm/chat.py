"""`treadle llm chat`: a conversation."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from treadle.cli.console import printable_text
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
    Weights,
    given,
    opened,
)
from treadle.llm.generation import LanguageModel

System = Annotated[str, typer.Option(metavar="TEXT", help="What the model is told beforehand.")]
Message = Annotated[
    str | None,
    typer.Argument(metavar="[TEXT]", help="A question; without one, what you type is answered."),
]
_HELP = "Type a message. /clear begins anew, /exit ends (or Ctrl-D); Ctrl-C ends an answer."


def command(
    source: Source,
    message: Message = None,
    system: System = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = 0,
    stop: Stop = None,
    context: Context = 4096,
    dtype: Dtype = Weights.stored,
    cache_dtype: CacheDtype = None,
    draft: Draft = None,
    lookup: Lookup = 0,
    prompts: Rounded = None,
    adapter: Adapter = None,
) -> None:
    """Talk with a model that was tuned for conversations.

    With TEXT, it answers that and ends. What was said before is not read again.
    """
    model, seconds = opened(
        *(source, context, dtype, prompts), cache_dtype=cache_dtype, draft=draft, adapter=adapter
    )
    options = given(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        lookup=lookup,
    )
    first = [{"role": "system", "content": system}] if system else []
    if message is not None:
        _answer(model, [*first, {"role": "user", "content": message}], options)
        return
    shown = sys.stdin.isatty()
    typer.echo(f"loaded in {seconds:.1f} s. {_HELP if shown else ''}".rstrip(), err=True)
    messages = list(first)
    while (text := _typed(shown)) is not None:
        if text == "/exit":
            break
        if text == "/clear":
            messages = list(first)
        elif text.startswith("/"):
            typer.echo(_HELP, err=True)
        elif text:
            messages.append({"role": "user", "content": text})
            messages.append({"role": "assistant", "content": _answer(model, messages, options)})


def _typed(shown: bool) -> str | None:
    """A line, None at the end."""
    try:
        return input("> " if shown else "").strip()
    except EOFError:
        return None


def _answer(model: LanguageModel, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    stream = model.stream_chat(messages, **options)
    try:
        for piece in stream:
            typer.echo(printable_text(piece), nl=False)
    except KeyboardInterrupt:
        stream.close()
    typer.echo()
    typer.echo(f"({stream.timing})", err=True)
    return stream.text
