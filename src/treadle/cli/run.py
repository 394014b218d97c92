"""`treadle run`: a model on inputs from files, timed and compared."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from treadle.base.errors import LoadError
from treadle.cli.models import open_model, parsed_shapes, random_inputs
from treadle.engine.options import Options
from treadle.engine.package import Model, Runner
from treadle.engine.table import duration, size

Array = np.ndarray[Any, Any]


def command(
    source: Annotated[Path, typer.Argument(help="An ONNX model or a model file.", exists=True)],
    given: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="x=file.npy, x=file.npz:name or x=[1, 2]; else random."),
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Of an input, as x=1,3,224,224.")] = None,
    iterations: Annotated[int, typer.Option("--iterations", "-n", min=1, help="Timed runs.")] = 10,
    warmup: Annotated[int, typer.Option(min=0, help="Runs before them.")] = 3,
    expect: Annotated[
        Path | None, typer.Option(help="An .npz with results to compare with.", exists=True)
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Relative, of that comparison.")] = 1e-4,
    save: Annotated[Path | None, typer.Option(help="Write the results to an .npz.")] = None,
    level: Annotated[int, typer.Option(help="Of optimization.", min=0, max=3)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Run a model: its results, and how long it takes.

    Exit status: 0, 1 where the model cannot be read or run, 3 where results differ.
    """
    model = open_model(source, parsed_shapes(shape or []))
    inputs = {**random_inputs(model), **_read(model, given or [])}
    arrays = [inputs[name] for name in model.inputs]
    runner = Runner(model.graph, Options(level=level))
    started = time.perf_counter()
    results = runner(arrays)
    first = time.perf_counter() - started
    for _ in range(warmup):
        runner(arrays)
    times = sorted(_timed(runner, arrays) for _ in range(iterations))
    outputs = dict(zip(model.outputs, results, strict=True))
    if save is not None:
        arrays_by_name: dict[str, Any] = {k: np.asarray(v) for k, v in outputs.items()}
        np.savez(save, **arrays_by_name)
    found = _figures(first, times)
    differing = _differences(outputs, expect, tolerance) if expect is not None else []
    _tell(outputs, found, differing, expect, as_json)
    if differing:
        raise typer.Exit(3)


def _timed(runner: Runner, arrays: list[Array]) -> float:
    started = time.perf_counter()
    runner(arrays)
    return time.perf_counter() - started


def _figures(first: float, times: list[float]) -> dict[str, float]:
    marks = np.quantile(times, (0.5, 0.9, 0.99))
    return {
        "first": first,
        "best": times[0],
        "median": float(marks[0]),
        "p90": float(marks[1]),
        "p99": float(marks[2]),
        "peak_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
    }


def _tell(
    outputs: dict[str, Array],
    found: dict[str, float],
    differing: list[str],
    expect: Path | None,
    as_json: bool,
) -> None:
    if as_json:
        ends = {n: {"shape": list(v.shape), "dtype": str(v.dtype)} for n, v in outputs.items()}
        typer.echo(json.dumps({"outputs": ends, "times": found, "differences": differing}))
        return
    for name, value in outputs.items():
        flat = np.asarray(value, np.float64).reshape(-1) if value.dtype.kind != "c" else value
        shown = ", ".join(f"{v:.6g}" for v in flat[:5])
        more = ", ..." if flat.size > 5 else ""
        typer.echo(f"{name} {value.dtype}{list(value.shape)}: {shown}{more}")
    later = ", ".join(f"{k} {duration(found[k])}" for k in ("median", "best", "p90", "p99"))
    typer.echo(f"first call {duration(found['first'])}, then {later}")
    typer.echo(f"peak memory of the process {size(int(found['peak_bytes']))}")
    if expect is not None:
        typer.echo("\n".join(differing) or f"equal to {expect}")


def _read(model: Model, given: list[str]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    kinds = {n: v.type.dtype.numpy for n, v in zip(model.inputs, model.graph.inputs, strict=True)}
    for text in given:
        name, sign, place = text.partition("=")
        if not sign or name not in kinds:
            names = ", ".join(kinds)
            raise LoadError(
                "--input", f"{text!r} names no input", saw=names, hint="write x=file.npy"
            )
        found[name] = np.asarray(_array(place), kinds[name])
    return found


def _array(place: str) -> Any:
    try:
        if place.startswith("[") or place.endswith(".json"):
            return json.loads(place if place.startswith("[") else Path(place).read_text("utf-8"))
        path, _, member = place.partition(".npz:")
        if member:
            with np.load(f"{path}.npz", allow_pickle=False) as file:
                return file[member]
        return np.load(place, allow_pickle=False)
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(
            place, f"it cannot be read: {error}", hint="give .npy, .npz:name or [..]"
        ) from error


def _differences(outputs: dict[str, Array], expect: Path, tolerance: float) -> list[str]:
    lines = []
    with np.load(expect, allow_pickle=False) as wanted:
        for name, value in outputs.items():
            if name not in wanted:
                lines.append(f"{name} is not in {expect}")
            elif wanted[name].shape != value.shape:
                lines.append(f"{name} is {list(value.shape)}, not {list(wanted[name].shape)}")
            elif not np.allclose(value, wanted[name], rtol=tolerance, atol=tolerance):
                worst = float(np.abs(np.asarray(value, np.float64) - wanted[name]).max())
                lines.append(f"{name} differs by {worst:.3g} at most")
    return lines
