"""`treadle llm serve`: language models over HTTP, in the words of OpenAI's interface."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.base.env import SERVE_TOKEN
from treadle.base.errors import LoadError
from treadle.cli.console import progress
from treadle.cli.llm.arguments import Context, Dtype, Rounded, Weights
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
from treadle.llm import LanguageModel, TextEmbedder
from treadle.llm.files import open_checkpoint
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


def command(
    sources: Sources,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    sequences: Sequences = 4,
    context: Context = 4096,
    dtype: Dtype = Weights.stored,
    prompts: Rounded = None,
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
    with serving.bind(host, port) as sock:
        models: list[Any] = []
        for name, path in named.items():
            begun = time.perf_counter()
            with progress(f"loading {name}"):
                checkpoint = open_checkpoint(path)
                if checkpoint.config.get("model_type") in ENCODERS:
                    served = speaking.Reader(name, TextEmbedder.of(checkpoint, dtype.value))
                else:
                    model = LanguageModel.of(
                        checkpoint,
                        dtype.value,
                        sequences=sequences,
                        context=context,
                        prompts=None if prompts is None else prompts.value,
                        adapters=tuned,
                    )
                    served = speaking.Speaker(name, model, sequences)
            models.append(served)
            seconds = time.perf_counter() - begun
            kind = "vectors" if isinstance(served, speaking.Reader) else "text"
            typer.echo(f"{name} of {path}: {kind}, {served.length} tokens, {seconds:.1f} s")
            if tuned and not isinstance(served, speaking.Speaker):
                raise Misuse("--adapter", f"{name} makes vectors, and takes none")
            for each in tuned:
                models.append(speaking.Speaker(each, model.adapted(each), sequences))
                typer.echo(f"{each} of {tuned[each]}: an adapter of {name}")
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
