"""Steps of `treadle convert`: put a model together, write it, check it, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from treadle.base.errors import LoadError
from treadle.base.table import size
from treadle.cli.compile.making import command_line
from treadle.cli.console import Progress, progress, show_facts, show_json, show_table
from treadle.cli.convert.checkpoints import (
    LoadedCheckpoint,
    build_model,
    came_from,
    listed,
    load_into,
    parsed_rules,
)
from treadle.cli.convert.origins import (
    ModelOrigin,
    from_exported_file,
    from_file,
    from_module,
    parsed_inputs,
    with_results,
)
from treadle.cli.convert.verify import Checked, unverified, write_checked
from treadle.cli.models.opening import EXTENSION, on_host
from treadle.cli.status import Status

_MODELS = (".onnx", ".pt2", EXTENSION)


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of what is to be converted.

    Attributes:
        source: a checkpoint or a model.
        code: what builds the model of a checkpoint.
        arguments: its arguments, as JSON.
        key: where the weights are in the checkpoint.
        rules: of renaming.
        strict: whether weights must fit the model exactly.
        inputs: of the model.
        outputs: names of the results that are kept; all if there are none.
        output: where it goes.
        onnx: whether that is an ONNX model, rather than a model file.
        tolerance: of the comparison.
        command: the command line, for the record.
        allow_native: whether code in a `.pt2` file may run.
    """

    source: Path
    code: str
    arguments: str
    key: str
    rules: Sequence[str]
    strict: bool
    inputs: Sequence[str]
    outputs: Sequence[str]
    output: Path | None
    onnx: bool
    tolerance: float
    command: Sequence[str]
    allow_native: bool = False


def convert(wish: Wish, as_json: bool) -> None:
    """Convert, and print what was done.

    Raises:
        TreadleError, OSError: something cannot be read, converted or written.
        typer.Exit: with status 3 where outputs differ, 1 where weights do not fit.
    """
    on_host()
    path = _target(wish)
    with progress(f"reading {wish.source.name}") as now:
        source, loaded = _read(wish, now)
        if source is not None:
            now.tell("writing and comparing")
            checked = write_checked(source, path, wish.tolerance)
    if source is None:
        _refuse(loaded, as_json)
        raise typer.Exit(Status.FAILED)
    (_tell_json if as_json else _tell)(source, loaded, checked, path)
    if not checked.is_equal:
        raise typer.Exit(Status.DIFFERENT)


def _target(wish: Wish) -> Path:
    suffix = ".onnx" if wish.onnx else EXTENSION
    path = wish.output or wish.source.with_name(wish.source.stem + suffix)
    if path.suffix != suffix:
        raise LoadError("--output", f"the name of such a file ends in {suffix}", saw=str(path))
    return path


def _read(wish: Wish, now: Progress) -> tuple[ModelOrigin | None, LoadedCheckpoint | None]:
    """The source, or None where its weights do not fit; and what became of a checkpoint."""
    inputs = parsed_inputs(wish.inputs)
    is_model = wish.source.suffix in _MODELS and not wish.source.is_dir()
    if not is_model and not wish.code:
        raise LoadError(
            str(wish.source),
            "a checkpoint holds weights and no model",
            hint="say what builds the model: --model package.module:function",
        )
    if is_model and wish.code:
        raise LoadError("--model", f"{wish.source.name} is a model", hint="leave --model out")
    if is_model:
        return _described(_from_model(wish, inputs), wish), None
    now.tell(f"building {wish.code}")
    module = build_model(wish.code, wish.arguments)
    now.tell(f"loading {wish.source.name}")
    loaded = load_into(module, wish.source, wish.key, parsed_rules(wish.rules), wish.strict)
    if wish.strict and not loaded.fit.is_whole:
        return None, loaded
    now.tell("tracing")
    return _described(from_module(module, inputs, wish.source.stem), wish), loaded


def _from_model(wish: Wish, inputs: Sequence[Any]) -> ModelOrigin:
    suffix = wish.source.suffix
    if suffix == (".onnx" if wish.onnx else EXTENSION):
        raise LoadError(
            str(wish.source),
            "it is such a file already",
            hint="treadle compile takes model files; --to says what to write",
        )
    return (
        from_exported_file(wish.source, inputs, wish.allow_native)
        if suffix == ".pt2"
        else from_file(wish.source, inputs)
    )


def _described(source: ModelOrigin, wish: Wish) -> ModelOrigin:
    """The model with the results that are kept, and what its file says of where it is from."""
    source = with_results(source, wish.outputs) if wish.outputs else source
    came = {**came_from(wish.source), **source.record}
    info = {"source": came, "command": command_line(wish.command)}
    return replace(source, model=replace(source.model, info=info))


# -- telling -----------------------------------------------------------------------------------


def _refuse(loaded: LoadedCheckpoint | None, as_json: bool) -> None:
    """Show which weights do not fit."""
    rows = loaded.problems() if loaded is not None else []
    if as_json:
        names = ("problem", "name", "checkpoint", "model")
        show_json({"problems": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    if loaded is not None:
        show_facts(loaded.facts())
    header = ("problem", "name", "checkpoint", "model")
    title = f"weights that do not fit: {len(rows)}; nothing was written"
    show_table(title, header, listed(rows))
    typer.echo("--rename gives other names, --no-strict takes what fits")


def _tell(
    source: ModelOrigin, loaded: LoadedCheckpoint | None, checked: Checked, path: Path
) -> None:
    facts: dict[str, Any] = {}
    if loaded is not None:
        facts |= loaded.facts()
    model = source.model
    where = path if checked.is_equal else unverified(path)
    facts |= {
        "written": str(where),
        "size": size(checked.nbytes),
        "inputs": _ends(model.inputs, model.graph.inputs),
        "outputs": _ends(model.outputs, model.graph.outputs),
        "compared": f"{source.witness}; the file was read by {checked.reader}",
    }
    show_facts(facts)
    if loaded is not None and loaded.problems():
        header = ("problem", "name", "checkpoint", "model")
        show_table("weights that do not fit", header, listed(loaded.problems()))
    rows = [
        (c.name, "equal" if c.equal else "DIFFERENT", f"{c.worst:.3g}", f"{c.relative:.3g}")
        for c in checked.comparisons
    ]
    show_table("outputs", ("name", "", "greatest difference", "relative"), rows)
    for comparison in checked.comparisons:
        if not comparison.equal:
            typer.echo(str(comparison))


def _tell_json(
    source: ModelOrigin, loaded: LoadedCheckpoint | None, checked: Checked, path: Path
) -> None:
    show_json(
        {
            "written": str(path) if checked.is_equal else None,
            "bytes": checked.nbytes,
            "inputs": list(source.model.inputs),
            "outputs": [c.as_dict() for c in checked.comparisons],
            "compared_with": source.witness,
            "read_by": checked.reader,
            "checkpoint": loaded.facts() if loaded is not None else None,
            "problems": loaded.problems() if loaded is not None else [],
        }
    )


def _ends(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{n} {v.type}" for n, v in zip(names, values, strict=True))
