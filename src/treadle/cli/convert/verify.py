"""Files written, read again, and compared with what they were made from."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from treadle.base.files.atomic import write_atomically
from treadle.cli.convert.origins import ModelOrigin, onnx_runner, optional
from treadle.cli.models.comparison import Comparison, compared
from treadle.cli.models.opening import random_inputs
from treadle.engine.package.models import Case, Model, Runner, read_models, write_models

_SEED = 1
"""Not that of the inputs that `compile` keeps."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Files that were written, and their comparison.

    Attributes:
        nbytes: size of the file.
        comparisons: one per output.
        reader: what read the file again.
    """

    nbytes: int
    comparisons: list[Comparison]
    reader: str

    @property
    def is_equal(self) -> bool:
        """True if all outputs are as near as the tolerance asks."""
        return all(c.equal for c in self.comparisons)


def unverified(path: Path) -> Path:
    """Return the name of a file until it has been compared."""
    return path.with_name(f"{path.stem}.unverified{path.suffix}")


def write_checked(source: ModelOrigin, path: Path, tolerance: float) -> Checked:
    """Write a model, read it again, and compare its outputs on random inputs with the source's.

    The file gets its name when they are equal; else it stays as `NAME.unverified.tm`.

    Raises:
        UnsupportedOp: ONNX has no counterpart of an op.
        OSError: the file cannot be written.
    """
    model = source.model
    inputs = random_inputs(model, _SEED)
    arrays = [inputs[name] for name in model.inputs]
    wanted = [np.asarray(a) for a in source.run(arrays)]
    aside = unverified(path)
    if path.suffix == ".onnx":
        _write_onnx(model, aside)
        run, reader = onnx_runner(aside, model.outputs)
    else:
        case = Case(inputs, dict(zip(model.outputs, wanted, strict=True)), tolerance)
        write_models(aside, [replace(model, cases=(case,))], "convert")
        again = read_models(aside)[0]
        run, reader = Runner(again.graph), "Treadle"
    found = run(arrays)
    pairs = zip(model.outputs, found, wanted, strict=True)
    checked = Checked(
        aside.stat().st_size,
        [compared(name, np.asarray(a), b, tolerance) for name, a, b in pairs],
        reader,
    )
    if checked.is_equal:
        os.replace(aside, path)
    return checked


def _write_onnx(model: Model, path: Path) -> None:
    exporter = optional(path, "treadle.interop.onnx.export", "onnx")
    made = exporter.graph_to_onnx(model.graph, model.inputs, model.outputs, path.stem)
    data = made.SerializeToString()
    write_atomically(os.fspath(path), [data], len(data))
