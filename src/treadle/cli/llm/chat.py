"""`treadle llm chat`: a conversation."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from treadle.base.errors import TreadleError
from treadle.base.loc import UNKNOWN
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
    WeightType,
    given,
    opened,
    readable_input,
    said,
    typed,
)
from treadle.cli.status import Status
from treadle.llm.generation import LanguageModel

System = Annotated[str, typer.Option(metavar="TEXT", help="The system prompt.")]
Message = Annotated[
    str | None,
    typer.Argument(metavar="[TEXT]", help="A question; without one, what you type is answered."),
]
_HELP = "Type a message. /clear begins anew, /exit ends as Ctrl-D does, Ctrl-C an answer."


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
    dtype: Dtype = WeightType.stored,
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
    first = [{"role": "system", "content": typed(system)}] if system else []
    if message is not None:
        if not _answer(model, [*first, {"role": "user", "content": typed(message)}], options):
            raise typer.Exit(Status.INTERRUPTED)
        return
    typer.echo(f"loaded in {seconds:.1f} s.", err=True)
    _converse(model, first, options)


def _converse(model: LanguageModel, first: list[dict[str, Any]], options: dict[str, Any]) -> None:
    """Answer what is typed."""
    readable_input()
    shown = sys.stdin.isatty()
    if shown:
        typer.echo(_HELP, err=True)
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
            try:
                _answer(model, messages, options)
            except TreadleError as error:
                if not shown:
                    raise
                error.locate(UNKNOWN)
                typer.echo(printable_text(f"{error}\n/clear begins anew."), err=True)
                messages.pop()
            except KeyboardInterrupt:  # before there was a token
                messages.pop()


def _typed(shown: bool) -> str | None:
    """A line, None at the end."""
    try:
        return input("> " if shown else "").strip()
    except EOFError:
        return None


def _answer(model: LanguageModel, messages: list[dict[str, Any]], options: dict[str, Any]) -> bool:
    """Answer, and take that to the messages; whether it was not interrupted."""
    stream = model.stream_chat(messages, **options)
    whole = said(stream)
    messages.append({"role": "assistant", "content": stream.text})
    typer.echo(f"({stream.timing})", err=True)
    return whole
