"""`treadle compile`: from a trained network to one file, or to a library without Python."""

from __future__ import annotations

import enum
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.cli.models import EXTENSION, open_model, parsed_shapes, random_inputs
from treadle.deploy import write_library
from treadle.engine.options import Options
from treadle.engine.package import Case, Model, Runner, write_models
from treadle.engine.pipeline import Stages
from treadle.engine.table import size


class Emit(enum.StrEnum):
    """What is written."""

    MODEL = "model"
    LIBRARY = "library"


def command(
    source: Annotated[Path, typer.Argument(help="An ONNX model or a model file.", exists=True)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file, or a folder for a library.")
    ] = None,
    emit: Annotated[
        Emit, typer.Option(help="A file that Treadle runs, or a shared library with a C header.")
    ] = Emit.MODEL,
    shape: Annotated[
        list[str] | None, typer.Option(help="Of an input, as x=1,3,224,224; may be repeated.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Prefix of a library's functions; that of the file by default.")
    ] = "",
    level: Annotated[int, typer.Option(help="Of optimization.", min=0, max=3)] = 2,
    case: Annotated[
        bool, typer.Option(help="Keep random inputs and their results in the file, to test it.")
    ] = True,
    report: Annotated[
        Path | None, typer.Option(help="Folder for what the compiler did: text and a picture.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as JSON.")
    ] = False,
) -> None:
    """Compile a model: to one file, or to a shared library that needs no Python.

    Exit status: 0, or 1 where the model cannot be read or compiled.
    """
    started = time.perf_counter()
    model = open_model(source, parsed_shapes(shape or []))
    options = Options(level=level)
    if report is not None:
        _write_report(model, options, report)
    if emit is Emit.LIBRARY:
        made = _library(model, source, output, name, options)
    else:
        made = _file(model, source, output, case)
    made["seconds"] = round(time.perf_counter() - started, 2)
    if as_json:
        typer.echo(json.dumps(made))
        return
    width = max(map(len, made))
    for key, value in made.items():
        typer.echo(f"{key:<{width}}  {value}")


def _file(model: Model, source: Path, output: Path | None, case: bool) -> dict[str, Any]:
    path = output or source.with_suffix(EXTENSION)
    cases = (_case(model),) if case else ()
    whole = Model(model.graph, model.inputs, model.outputs, {"source": source.name}, {}, cases)
    written = write_models(path, [whole], "compile")
    return {
        "written": str(path),
        "size": size(written.nbytes),
        "nodes": len(model.graph.nodes),
        "inputs": _listed(model.inputs, model.graph.inputs),
        "outputs": _listed(model.outputs, model.graph.outputs),
    }


def _case(model: Model) -> Case:
    inputs = random_inputs(model)
    results = Runner(model.graph)([inputs[name] for name in model.inputs])
    return Case(inputs, dict(zip(model.outputs, results, strict=True)))


def _listed(names: tuple[str, ...], values: Any) -> str:
    return ", ".join(f"{n} {v.type}" for n, v in zip(names, values, strict=True))


def _library(
    model: Model, source: Path, output: Path | None, name: str, options: Options
) -> dict[str, Any]:
    prefix = name or "".join(c if c.isalnum() else "_" for c in source.stem)
    made = write_library(model, output or source.parent, prefix, options)
    return {
        "library": str(made.library),
        "header": str(made.header),
        "size": size(made.library.stat().st_size),
        "weights": size(made.weights),
        "scratch memory": size(made.scratch),
        "inputs": _listed(model.inputs, model.graph.inputs),
        "outputs": _listed(model.outputs, model.graph.outputs),
    }


def _write_report(model: Model, options: Options, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stages = Stages(model.graph, options=options)
    (folder / "explain.txt").write_text(stages.explained(full=True), encoding="utf-8")
    stages.diagram(folder / "program.html")
