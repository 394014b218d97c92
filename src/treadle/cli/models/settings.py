"""Settings from options of commands: of the compiler, element types, preprocessing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.base.errors import LoadError, TreadleError
from treadle.cli.arguments import MAPS, PASSES, Precision
from treadle.cli.models.inputs import read_arrays
from treadle.cli.status import Misuse
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.graph.ir import Graph

if TYPE_CHECKING:
    from treadle.quantization.precision import PrecisionReport

NOTHING: tuple[object, ...] = (None, (), [], {})
"""Values of options that were not given."""


def checked_passes(names: Sequence[str]) -> tuple[str, ...]:
    """Names of passes.

    Raises:
        Misuse: there is none of a name.
    """
    return _known("--disable", "pass", names, PASSES)


def checked_maps(names: Sequence[str]) -> tuple[str, ...]:
    """Names of orders.

    Raises:
        Misuse: there is none of a name.
    """
    return _known("--maps", "order", names, MAPS)


def _known(option: str, what: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            hint = _guess(name, known)
            raise Misuse(option, f"there is no {what} {name!r}", hint=hint)
    return tuple(names)


def _guess(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Options of commands that become options of the compiler; None where they were not given."""

    level: int | None = None
    disable: Sequence[str] | None = None
    fusion_switch: Path | None = None
    maps: Sequence[str] | None = None
    winograd: int | None = None
    file: Path | None = None

    @property
    def is_none(self) -> bool:
        """True if nothing was given."""
        return all(getattr(self, f.name) in NOTHING for f in fields(self))

    def options(self) -> Options:
        """The compiler's options: of the environment, then of the file, then of the command line.

        Raises:
            Misuse, EngineError, LoadError: a name or a file is not right.
        """
        given = {} if self.file is None else read_options(self.file)
        if self.level is not None:
            given["level"] = self.level
        if self.disable:
            given["disabled"] = checked_passes(self.disable)
        if self.maps:
            given["layouts"] = checked_maps(self.maps)
        if self.winograd is not None:
            given["winograd"] = self.winograd
        if self.fusion_switch is not None:
            given["fusion_switch"] = str(self.fusion_switch)
        return Options(**given)


def read_options(path: Path) -> dict[str, Any]:
    """Options of the compiler out of a JSON file.

    Raises:
        LoadError: it is not an object of options that there are.
    """
    known = [f.name for f in fields(Options) if f.init]
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(given, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        hint = 'write {"level": 3}'
        raise LoadError(str(path), f"it cannot be read: {error}", hint=hint) from error
    plain = Options()
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise LoadError(str(path), f"there is no option {name!r}", hint=_guess(name, known))
        usual = getattr(plain, name)
        made[name] = tuple(value) if isinstance(value, list) else value
        if type(made[name]) is not type(usual):
            raise LoadError(
                str(path),
                f"{name} cannot be {value!r}",
                hint=f"it is of type {type(usual).__name__}",
            )
    return made


def precise(
    model: Model,
    mode: Precision | None,
    keep: Sequence[str] | None,
    allow: Sequence[str] | None,
    calibration: Path | None,
    ranges: Mapping[str, Sequence[tuple[int, ...]]] | None = None,
) -> tuple[Model, PrecisionReport | None]:
    """The model in other element types, and what became of its ops.

    Args:
        model: as it was read.
        mode, keep, allow, calibration: as `with_precision` has them.
        ranges: of extents that the model is for, by input. Its graph for other extents is changed
            then, and the one for its own follows from that.

    Raises:
        Misuse: a list or data was given without a mode that takes it, or int8 without data.
        GraphError: a name fits nothing, or calibration data do not fit the model.
        ShapeError: it has no graph for other extents.
    """
    if mode is None:
        if keep or allow or calibration:
            given = "--keep" if keep else "--allow" if allow else "--calibration"
            raise Misuse(given, "it goes with --precision", hint="say which precision")
        return model, None
    if mode is Precision.INT8 and calibration is None:
        raise Misuse("--precision", "int8 needs --calibration", hint="give it samples.npz")
    from treadle.deploy.ranges import open_form
    from treadle.engine.package.open_graph import fixed_graph
    from treadle.quantization.precision import calibration_batches, with_precision

    graph = model.graph if ranges is None else open_form(model)
    batches: Sequence[Any] = ()
    if calibration is not None:
        ends = zip(model.inputs, model.graph.inputs, strict=True)
        spans = {n: [(int(d), int(d)) for d in v.type.shape] for n, v in ends}
        spans |= {n: [(e[0], e[-1]) for e in given] for n, given in (ranges or {}).items()}
        batches = calibration_batches(graph, model.inputs, read_arrays(calibration), spans)
    asked: Any = {"keep": keep or (), "allow": allow or (), "calibration": batches}
    graph, report = with_precision(graph, mode.value, **asked)
    if ranges is not None:
        closed = fixed_graph(graph, [v.type.shape for v in model.graph.inputs])
        return model.changed(closed, lambda _: graph), report

    def wide(given: Graph) -> Graph:
        try:
            return with_precision(given, mode.value, **asked)[0]
        except TreadleError:
            return graph  # It is for these extents only.

    return model.changed(graph, wide), report


def preprocessed(model: Model, path: Path | None) -> Model:
    """The model with the steps of a file in front of its inputs, which its `info` keeps.

    Raises:
        LoadError: the file is wrong, or does not fit the model.
    """
    if path is None:
        return model
    from treadle.deploy.preprocessing import read_preprocessing, with_preprocessing

    steps = read_preprocessing(path)
    made = with_preprocessing(model, steps)
    info = model.info if isinstance(model.info, dict) else {}
    tables = {name: what.as_dict() for name, what in steps.items()}
    return replace(made, info={**info, "preprocessing": tables})
