"""The portable part of a model file: compiled where there is no native code, and looked into.

This imports the compiler, so networks import it when they first need it.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from treadle.backends.codegen import tuned
from treadle.base.array import Array
from treadle.base.errors import ShapeError, TreadleError
from treadle.base.symbol import Dim
from treadle.engine.devices.names import resolve
from treadle.engine.options import Options
from treadle.engine.package.models import Model, Runner, read_models, write_models
from treadle.graph.ir import Graph, Value
from treadle.inspect import Inspected
from treadle.lite.config import CompileSettings, LiteIO
from treadle.lite.inspection import write_profile, write_values
from treadle.lite.tensor import LiteLayout, Shapes
from treadle.runtime.array import to_host


class Portable:
    """A model as a graph, with a program for every combination of shapes and options.

    Args:
        model: what the file holds.
        choices: what was measured for it.
    """

    def __init__(self, model: Model, choices: tuned.Choices | None = None) -> None:
        self.model = model
        self._runners: dict[tuple[Options, Shapes, str], Runner] = {}
        if choices:
            use_choices(choices)

    @property
    def inputs(self) -> list[LiteIO]:
        """Names and layouts of the inputs."""
        return _ends(self.model.inputs, self.model.graph.inputs)

    @property
    def outputs(self) -> list[LiteIO]:
        """Names and layouts of the outputs."""
        return _ends(self.model.outputs, self.model.graph.outputs)

    def run(self, arrays: Sequence[Array], settings: CompileSettings) -> list[Array]:
        """Run on one array per input; shapes are compiled for when they are first met.

        Raises:
            TreadleError: the model does not take these shapes.
        """
        return self.runner(tuple(a.shape for a in arrays), settings)(arrays)

    def runner(self, shapes: Shapes, settings: CompileSettings) -> Runner:
        """Return the runner of the model on arrays of these shapes."""
        options = self._options(settings)
        known = self._runners.get((options, shapes, settings.device))
        if known is None:
            fit = self._fitting(shapes)
            home = resolve(settings.device) if settings.device else None
            known = Runner(fit, options, home=home)
            self._runners[options, shapes, settings.device] = known
        return known

    def _fitting(self, shapes: Shapes) -> Graph:
        try:
            return self.model.at(shapes)
        except TreadleError as error:
            made_for = [v.type.shape for v in self.model.graph.inputs]
            raise ShapeError(
                "model",
                f"it takes no inputs of these shapes: {error.where}: {error.problem}",
                saw=self._spelled(shapes),
                hint=f"it was made for {self._spelled(made_for)}",
            ) from error

    def _spelled(self, shapes: Sequence[Sequence[Dim]]) -> str:
        names = zip(self.model.inputs, shapes, strict=True)
        return ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in names)

    def _options(self, settings: CompileSettings) -> Options:
        made = engine_options(settings)
        return made if made.layouts else replace(made, layouts=layouts_of(self.model))

    # -- looking inside --------------------------------------------------------------------

    def profile(self, path: str, arrays: Sequence[Array], settings: CompileSettings) -> None:
        """Write how long a run took, and each kernel in runs of their own, as JSON."""
        runner = self.runner(tuple(a.shape for a in arrays), settings)
        runner(arrays)  # compiled by now
        began = time.perf_counter()
        runner(arrays)
        write_profile(path, runner, [to_host(a) for a in arrays], time.perf_counter() - began)

    def values(
        self, kind: str, path: Path, arrays: Sequence[Array], settings: CompileSettings
    ) -> None:
        """Write the value of every op, see `write_values`."""
        runner = self.runner(tuple(a.shape for a in arrays), settings)
        write_values(kind, path, runner.graph, [to_host(a) for a in arrays])

    def explained(self, shapes: Shapes, settings: CompileSettings) -> str:
        """The compiler's report, with the plan of memory."""
        return Inspected(self.runner(shapes, settings).stages).explained(full=True)

    def write(self, path: str, settings: CompileSettings) -> None:
        """Write the model with the layouts that it is to be held in where it is loaded."""
        layouts = list(self._options(settings).layouts)
        chosen = {**self.model.options, "layouts": layouts}
        write_models(path, [replace(self.model, options=chosen)], "LiteNetwork")


def read(raw: bytes, choices: tuned.Choices | None = None) -> Portable:
    """The first model of a file's bytes.

    Raises:
        CheckpointError: the file is damaged, or holds no model.
    """
    return Portable(read_models(io.BytesIO(raw))[0], choices)


def layouts_of(model: Model) -> tuple[str, ...]:
    """The layouts that a model's file says it is to be held in; mostly none."""
    return tuple(str(name) for name in model.options.get("layouts", ()))


def engine_options(settings: CompileSettings) -> Options:
    """The engine's options: `enable_nchw44` and the like choose orders of axes."""
    return Options(
        layouts=settings.layouts,
        reuse_memory=settings.reuse_memory,
        memory_budget=settings.memory_limit,
    )


def use_choices(choices: Mapping[str, Mapping[str, int]]) -> None:
    """Use measurements besides those that this machine has recorded."""
    tuned.install({**tuned.installed(), **choices})


def _ends(names: Sequence[str], values: Sequence[Value]) -> list[LiteIO]:
    made = []
    for name, value in zip(names, values, strict=True):
        # What data decide is known after a run.
        extents = [d if isinstance(d, int) else 0 for d in value.type.shape]
        made.append(LiteIO(name, layout=LiteLayout(extents, value.type.dtype.numpy)))
    return made
