"""`treadle llm serve`: language models over HTTP, in the words of OpenAI's interface."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.base.env import SERVE_TOKEN
from treadle.base.errors import LoadError
from treadle.cli.llm.arguments import (
    CacheDtype,
    Context,
    Draft,
    Dtype,
    Rounded,
    WeightType,
    loading,
)
from treadle.cli.serve import (
    AllowHost,
    Grace,
    Host,
    MaxBody,
    MaxClient,
    MaxQueue,
    Port,
    Timeout,
    Token,
    access_of,
    limits_of,
    listening,
    room,
)
from treadle.cli.status import Misuse, Status
from treadle.llm import LanguageModel, TextEmbedder, load
from treadle.llm.files import ModelCheckpoint, open_checkpoint
from treadle.llm.models.families import ENCODERS

_NAMED = re.compile(r"(?:(?P<name>[A-Za-z0-9_.:/-]+)=)?(?P<path>.+)")

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL", help="GGUF files or directories with safetensors, as PATH or NAME=PATH."
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=DIR", help="An adapter of the only model, served as NAME; may be repeated."
    ),
]
Sequences = Annotated[
    int, typer.Option(min=1, max=64, help="Answers that a model continues at a time; others wait.")
]
CacheTokens = Annotated[
    int | None,
    typer.Option(
        min=8,
        help="Tokens that all answers of a model hold together at most; left out: "
        "--sequences times --context.",
    ),
]


def command(
    sources: Sources,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    sequences: Sequences = 4,
    context: Context = 4096,
    dtype: Dtype = WeightType.stored,
    prompts: Rounded = None,
    cache_dtype: CacheDtype = None,
    cache_tokens: CacheTokens = None,
    draft: Draft = None,
    max_body: MaxBody = 16.0,
    max_queue: MaxQueue = 64,
    max_client: MaxClient = 256,
    timeout: Timeout = 30.0,
    grace: Grace = 30.0,
    token: Token = "",
    allow_host: AllowHost = None,
    adapter: Adapters = None,
) -> None:
    """Serve language models to clients of OpenAI's interface, until SIGTERM or Ctrl-C.

    Models that continue text answer chats and completions, encoders embeddings. The address for
    clients is http://HOST:PORT/v1. Exit status as that of `treadle serve`.
    """
    serving = room()
    speaking = _speaking()
    limits = limits_of(serving, max_body, timeout, max_queue, max_client, grace)
    named, tuned = _named(sources), _named(adapter or [])
    if tuned and (len(named) > 1 or not tuned.keys().isdisjoint(named)):
        raise Misuse("--adapter", "takes one model, and names of its own")
    checkpoints = {name: open_checkpoint(path) for name, path in named.items()}
    kept = ("--cache-dtype", cache_dtype), ("--cache-tokens", cache_tokens)
    for option, value in (("--adapter", tuned), ("--draft", draft), *kept):
        if value and all(map(_is_encoder, checkpoints.values())):
            raise Misuse(option, f"{', '.join(named)} makes vectors, and takes none")
    with serving.bind(host, port) as sock:
        how: dict[str, Any] = {
            "sequences": sequences,
            "context": context,
            "prompts": None if prompts is None else prompts.value,
            "cache_dtype": None if cache_dtype is None else cache_dtype.value,
            "cache_tokens": cache_tokens,
            "draft": None if draft is None else load(draft, dtype.value, context=8),
            "adapters": tuned,
        }
        models: list[Any] = []
        for name, checkpoint in checkpoints.items():
            models += _served(speaking, name, checkpoint, dtype.value, how)
        access = access_of(serving, sock, token or SERVE_TOKEN.get(), allow_host)
        app = speaking.LanguageApplication(models, limits, access)
        url = f"{serving.url_of(sock)}/v1"
        cut = serving.run(app, sock, lambda _: listening(url))
    if cut:
        typer.echo(f"{cut} requests were not done in {grace:g} s", err=True)
        raise typer.Exit(Status.FAILED)


def _speaking() -> Any:
    from treadle.serve import llm

    return llm


def _served(
    speaking: Any, name: str, checkpoint: ModelCheckpoint, dtype: str, how: dict[str, Any]
) -> list[Any]:
    """A model, and behind it what its adapters make of it."""
    begun = time.perf_counter()
    with loading(checkpoint) as given:
        if _is_encoder(checkpoint):
            made = [speaking.ModelReader(name, TextEmbedder.of(given, dtype))]
        else:
            model, sequences = LanguageModel.of(given, dtype, **how), how["sequences"]
            made = [speaking.Speaker(name, model, sequences)]
            made += [speaking.Speaker(n, model.adapted(n), sequences) for n in how["adapters"]]
    seconds = time.perf_counter() - begun
    kind = "vectors" if isinstance(made[0], speaking.ModelReader) else "text"
    typer.echo(f"{name} of {checkpoint.path}: {kind}, {made[0].length} tokens, {seconds:.1f} s")
    for each in made[1:]:
        typer.echo(f"{each.name} of {how['adapters'][each.name]}: an adapter of {name}")
    return made


def _is_encoder(checkpoint: ModelCheckpoint) -> bool:
    return checkpoint.config.get("model_type") in ENCODERS


def _named(sources: list[str]) -> dict[str, str]:
    """Paths by the names of models."""
    found: dict[str, str] = {}
    for source in sources:
        match = _NAMED.fullmatch(source)
        path = match["path"] if match else source
        if not Path(path).exists() and Path(source).exists():
            path, match = source, None  # A path with = in it.
        if not Path(path).exists():
            raise LoadError("serve", f"there is no file or directory {path}")
        name = (match and match["name"]) or Path(path).resolve().name.removesuffix(".gguf")
        if name in found:
            told = f"two models have the name {name}"
            raise Misuse("serve", told, saw=f"{found[name]} and {path}", hint="write NAME=PATH")
        found[name] = path
    return found
