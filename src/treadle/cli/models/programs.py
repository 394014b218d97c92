"""Models on their way to a call: opened, changed as options ask, with native code or compiled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.base.array import Array
from treadle.base.errors import LoadError
from treadle.base.files.source import open_source
from treadle.base.files.trust import FileOrigin
from treadle.base.table import duration
from treadle.cli.arguments import Precision
from treadle.cli.models.measure import Program
from treadle.cli.models.opening import open_model
from treadle.cli.models.settings import NOTHING, Tuning, precise, preprocessed
from treadle.cli.models.sources import Shapes
from treadle.cli.status import Unfit
from treadle.engine.options import Options
from treadle.engine.package import foreign
from treadle.engine.package import opened as model_container
from treadle.engine.package.models import Model, Runner
from treadle.engine.package.native_part import Described, described
from treadle.engine.package.offline import load_offline
from treadle.engine.phases import stages_of
from treadle.engine.pipeline import Stages
from treadle.interop.files import read_foreign_models

if TYPE_CHECKING:
    from treadle.quantization.precision import PrecisionReport


@dataclass(frozen=True, slots=True)
class Change:
    """Differences between a model and what its file says.

    Attributes:
        shapes: of inputs.
        outputs: names of values that become the outputs.
        preprocess: file of steps in front of inputs.
        precision, keep, allow, calibration: element types.
    """

    shapes: Shapes = field(default_factory=dict)
    outputs: Sequence[str] = ()
    preprocess: Path | None = None
    precision: Precision | None = None
    keep: Sequence[str] | None = None
    allow: Sequence[str] | None = None
    calibration: Path | None = None

    @property
    def is_none(self) -> bool:
        """True if the model stays as it is."""
        return all(getattr(self, f.name) in NOTHING for f in fields(self))


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that is ready to be called.

    Attributes:
        model: with its graph.
        run: calls it: arrays by position in, arrays out.
        options: that it is compiled with.
        code: what runs, in a few words.
        precision: what became of its ops, if that was asked.
    """

    model: Model
    run: Program
    options: Options
    code: str
    precision: PrecisionReport | None = None

    def stages(self) -> Stages:
        """The way of its graph through the compiler of this process."""
        return stages_of(self.model.graph, options=self.options)


def changed(
    path: Path, change: Change, batch: int = 0, allow_native: bool | None = None
) -> tuple[Model, PrecisionReport | None]:
    """The model of a file, changed.

    Args:
        path: of the file.
        change: of the model.
        batch: first extent of inputs that leave it open.
        allow_native: whose parts of other engines are used, as in `read_models`.

    Raises:
        TreadleError: it cannot be read, or a change does not fit it.
    """
    model = open_model(path, change.shapes, change.outputs, batch, allow_native)
    model, report = precise(model, change.precision, change.keep, change.allow, change.calibration)
    return preprocessed(model, change.preprocess), report


def native_parts(path: Path) -> list[Described]:
    """The native parts of a file, described; none where it is not a model file.

    Raises:
        CheckpointError: the file is damaged.
    """
    if path.suffix == ".onnx":
        return []
    read_foreign_models()
    with open_source(path) as source:
        if foreign(source.read(0, 32)) is not None:
            return []
        manifest = model_container(source).manifest
        try:
            return [described(part) for part in manifest["models"][0].get("native", ())]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise source.error(f"its native part is damaged: {error}") from error


def origin_of(path: Path) -> FileOrigin:
    """Return the maker of a model file.

    Raises:
        CheckpointError: the file is damaged.
    """
    with open_source(path) as source:
        return model_container(source).origin


def opened(
    path: Path,
    change: Change,
    tuning: Tuning,
    *,
    allow_native: bool | None = None,
    recompile: bool = False,
) -> Opened:
    """A model that is ready to be called: by its own native code, or compiled at the first call.

    Args:
        path: of an ONNX model or a model file.
        change: of the model; what is changed is compiled here.
        tuning: of the compiler; so is what it was asked of.
        allow_native: whose native code is run, as in `load_offline`.
        recompile: compile the graph where no native code fits.

    Raises:
        Unfit: the file has native code, none of which fits this machine.
        ShapeError: it has, but not for these shapes.
        TreadleError: the model cannot be read, or a change does not fit it.
    """
    options = tuning.options()
    parts = native_parts(path)
    model, report = changed(path, change, allow_native=allow_native)
    as_it_is = replace(change, shapes={}).is_none and tuning.is_none
    if parts and as_it_is and allow_native is not False:
        return _native(path, model, options, recompile, allow_native)
    runner = Runner(model.graph, options)
    words = "compiled here" + (", native code of the file left alone" if parts else "")
    return Opened(model, runner, options, words, report)


def _native(
    path: Path, model: Model, options: Options, recompile: bool, allow_native: bool | None
) -> Opened:
    started = time.perf_counter()
    try:
        found = load_offline(path, recompile=recompile, allow_native=allow_native)
    except LoadError as error:
        raise Unfit(
            str(path),
            error.problem,
            saw=error.saw,
            hint="--recompile compiles its graph for this machine",
        ) from error
    took = duration(time.perf_counter() - started)

    def run(arrays: Sequence[Array]) -> list[Array]:
        return list(found.run(arrays).values())

    words = "compiled here"
    if found.target:
        words = f"native code for {found.target}, opened in {took}"
    elif "target" not in found.manifest:
        words += ", native code of the file left alone: nobody who is trusted made it"
    return Opened(model, run, options, words)
