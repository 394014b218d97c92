"""`treadle serve`: models over HTTP and gRPC, as the Open Inference Protocol has it."""

from __future__ import annotations

import gc
import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.base.env import SERVE_TOKEN
from treadle.base.errors import LoadError
from treadle.cli.models.opening import on_host, open_model, parsed_shapes
from treadle.cli.models.programs import native_parts
from treadle.cli.models.ranges import are_ranged, parsed_pads, parsed_ranges, ranged_onnx
from treadle.cli.status import Misuse, Status
from treadle.engine.package.offline import OfflineModel, load_offline

_NAMED = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_.-]+)(?::(?P<version>[A-Za-z0-9_.-]+))?=)?(?P<path>.+)"
)
_MIB = 1024 * 1024


_BATCHES, _LIMITS, _ACCESS = "Batches", "Limits", "Access"

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="Model files or ONNX models, as FILE, NAME=FILE or NAME:VERSION=FILE.",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all.")]
Port = Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        help="Also answer gRPC here; 0 takes a free one. Needs the extra `grpc`.", min=0, max=65535
    ),
]
Given = Annotated[
    list[str] | None,
    typer.Option(
        help="Of an input, as x=1,3,224,224, or of one model's, as NAME:x=1,3. ONNX models also "
        "take ranges, as x=1..8,3,32..640: requests may have any extent inside."
    ),
]
Pad = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUT",
        rich_help_panel=_BATCHES,
        help="Join requests of several lengths, padded to the longest. The input is a mask, which "
        "holds 0 there (NAME=1: 1), or has the lengths of rows. Also of one model's, as "
        "MODEL:NAME.",
    ),
]
Portable = Annotated[
    bool, typer.Option("--portable", help="Leave native code in files alone: compile here.")
]
AllowNative = Annotated[
    bool,
    typer.Option(
        "--allow-native",
        help="Run native code of any author; by default only yours, or signed by keys you trust.",
    ),
]
Level = Annotated[int, typer.Option(help="Level of optimization.", min=0, max=3)]
MaxBatch = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        rich_help_panel=_BATCHES,
        help="Rows of a run; more than 1 joins requests. By default as many as a file has gears "
        "for, or 1.",
    ),
]
MaxDelay = Annotated[
    float,
    typer.Option(
        min=0.0, rich_help_panel=_BATCHES, help="Milliseconds that a request waits for others."
    ),
]
MaxBody = Annotated[
    float, typer.Option(min=0.001, rich_help_panel=_LIMITS, help="MiB of a request.")
]
MaxQueue = Annotated[
    int, typer.Option(min=1, rich_help_panel=_LIMITS, help="Requests that wait for a model.")
]
MaxClient = Annotated[
    int,
    typer.Option(
        min=1,
        rich_help_panel=_LIMITS,
        help="Connections of one address; a proxy needs as many as it keeps open.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.1, rich_help_panel=_LIMITS, help="Seconds in which a request has to arrive."
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        min=0.0, rich_help_panel=_LIMITS, help="Seconds for requests under way at the end."
    ),
]


Token = Annotated[
    str,
    typer.Option(
        rich_help_panel=_ACCESS,
        help="Answer only requests with the header `Authorization: Bearer TOKEN`; better given as "
        "TREADLE_SERVE_TOKEN, which no list of processes shows.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_ACCESS,
        help="Name that the server is called by; other names are refused, at 127.0.0.1 in any "
        "case. May be repeated.",
    ),
]


def command(
    sources: Sources,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    grpc_port: GrpcPort = None,
    shape: Given = None,
    portable: Portable = False,
    allow_native: AllowNative = False,
    level: Level = 2,
    max_batch: MaxBatch = None,
    max_delay: MaxDelay = 0.0,
    pad: Pad = None,
    max_body: MaxBody = 64.0,
    max_queue: MaxQueue = 64,
    max_client: MaxClient = 256,
    timeout: Timeout = 30.0,
    grace: Grace = 30.0,
    token: Token = "",
    allow_host: AllowHost = None,
) -> None:
    """Serve models by the Open Inference Protocol, until SIGTERM or Ctrl-C.

    Exit status: 0, 1 where a model cannot be read, the port is taken, or requests had to be cut
    off at the end, 2 where arguments are wrong.
    """
    serving = room()
    on_host()
    named = _named(sources)
    names = [name for name, _, _ in named]
    shapes, pads = _shapes(names, shape or []), _shapes(names, pad or [])
    limits = limits_of(serving, max_body, timeout, max_queue, max_client, grace, max_delay)
    with serving.bind(host, port) as sock, serving.bind_grpc(host, grpc_port) as grpc_sock:
        models = []
        for name, version, path in named:
            started = time.perf_counter()
            model = _loaded(
                serving, (name, version, path), shapes[name], parsed_pads(pads[name]), max_batch,
                level, portable, True if allow_native else None,
            )  # fmt: skip
            _tell(model, path, time.perf_counter() - started)
            models.append(model)
        # They live as long as the process: collections need not look at them.
        gc.collect()
        gc.freeze()
        access = access_of(serving, sock, token or SERVE_TOKEN.get(), allow_host)
        if grpc_sock is not None:
            typer.echo(f"gRPC at {serving.url_of(grpc_sock).removeprefix('http://')}")
        cut = serving.serve(
            models, sock, limits, lambda _: listening(serving.url_of(sock)), access, grpc_sock
        )
    if cut:
        typer.echo(f"{cut} requests were not done in {grace:g} s", err=True)
        raise typer.Exit(Status.FAILED)


def _loaded(
    serving: Any,
    source: tuple[str, str, Path],
    given: list[str],
    pads: dict[str, float],
    most: int | None,
    level: int,
    portable: bool,
    allowed: bool | None,
) -> Any:
    """The model of a file, ready for requests."""
    name, version, path = source
    if are_ranged(given):
        from treadle.serve.ranges import load_ranged  # with all that capture needs

        ranged = ranged_onnx(path, parsed_ranges(given))
        return load_ranged(name, version, *ranged, most or 1, level, pads)
    wanted = parsed_shapes(given)
    as_it_is = not (portable or wanted or path.suffix == ".onnx")
    native = _native(path, allowed) if as_it_is else None
    if native is not None and native.ranges:
        from treadle.serve.ranges import load_filed

        return load_filed(name, version, native, most, pads)
    if pads:
        hint = "give ranges: --shape x=1..8,1..512"
        raise Misuse("--pad", f"{name} has no extents that may differ", hint=hint)
    if native is not None:
        return serving.load_compiled(name, version, native, most)
    opened = open_model(path, wanted, allow_native=False if portable else allowed)
    return serving.load_model(name, version, opened, most or 1, level)


def limits_of(
    serving: Any,
    max_body: float,
    timeout: float,
    max_queue: int,
    max_client: int,
    grace: float,
    max_delay: float = 0.0,
) -> Any:
    """Limits as they were asked for."""
    body = round(max_body * _MIB)
    return serving.Limits(
        body=body,
        bodies=max(8 * body, serving.Limits().bodies),
        seconds=timeout,
        waiting=max_queue,
        client=max_client,
        delay=max_delay / 1000,
        grace=grace,
    )


def room() -> Any:
    """The package of the server.

    Raises:
        LoadError: the extra `serve` is not installed.
    """
    try:
        from treadle import serve

        return serve
    except ModuleNotFoundError as error:
        raise LoadError("serve", str(error), hint="pip install treadle[serve]") from error


def access_of(serving: Any, sock: Any, token: str, names: list[str] | None) -> Any:
    """Return the rules of access, with a word to those who open the server to a network."""
    only_here = serving.is_loopback(sock)
    if not only_here and not token:
        typer.echo(
            "anybody who reaches this address can ask the models: set TREADLE_SERVE_TOKEN, or put "
            "a proxy in front that asks who they are",
            err=True,
        )
    return serving.Access(token, names or () if only_here or names else None)


def _named(sources: list[str]) -> list[tuple[str, str, Path]]:
    """Name, version and file of each model.

    Raises:
        Misuse: two have the same name and version.
        LoadError: a file is not there.
    """
    found: dict[tuple[str, str], Path] = {}
    for source in sources:
        match = _NAMED.fullmatch(source)
        path = Path(match["path"] if match else source)
        if not path.exists() and Path(source).exists():
            path, match = Path(source), None  # A file with = in its name.
        if not path.is_file():
            raise LoadError("serve", f"there is no file {path}")
        name = (match and match["name"]) or re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)
        key = name, (match and match["version"]) or "1"
        if key in found:
            raise Misuse(
                "serve",
                f"two models have the name {name} and version {key[1]}",
                saw=f"{found[key]} and {path}",
                hint=f"write {name}:2={path}, or another name",
            )
        found[key] = path
    return [(name, version, path) for (name, version), path in found.items()]


def _native(path: Path, allowed: bool | None) -> OfflineModel | None:
    """The model of a file whose native code runs here; None where the graph is to be compiled."""
    if not native_parts(path):
        return None
    model = load_offline(path, recompile=True, allow_native=allowed)
    if model.target:
        return model
    if needed := model.manifest.get("target"):
        told = f"its code is for {needed['name']}, so it is compiled here"
        typer.echo(f"{path}: {told}", err=True)
    return None


def _shapes(names: list[str], given: list[str]) -> dict[str, list[str]]:
    """Return what is given for each model; what begins with no model's name holds for all."""
    said: dict[str, list[str]] = {name: [] for name in names}
    for text in given:
        owner, sign, rest = text.partition(":")
        if sign and owner in said:
            said[owner].append(rest)
            continue
        for texts in said.values():
            texts.append(text)
    return said


def listening(url: str) -> None:
    """Say where."""
    typer.echo(f"listening at {url}")


def _tell(model: Any, path: Path, seconds: float) -> None:
    inputs = ", ".join(_spelled(end) for end in model.inputs)
    outputs = ", ".join(_spelled(end) for end in model.outputs)
    rows = f", up to {model.most} rows" if model.most > 1 else ""
    typer.echo(
        f"{model.name} {model.version} of {path}: {inputs} -> {outputs}{rows}, {seconds:.1f} s"
    )
    for note in model.notes:
        typer.echo(f"  {note}", err=True)


def _spelled(end: Any) -> str:
    extents = ",".join("?" if d is None else str(d) for d in end.shape)
    return f"{end.name} {end.dtype}[{extents}]"
