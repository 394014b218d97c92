"""ONNX files as models of fixed shapes, or of shapes within ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.errors import LoadError
from treadle.cli.models.sources import Shapes, checked_axes, no_input, provenance
from treadle.engine.package.models import Model
from treadle.engine.package.open_graph import OpenGraph
from treadle.graph.cleanup import DeadCode
from treadle.graph.ir import Graph
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, Weights, argument_names, model_of
from treadle.jit.open_dump import asked, model_for_axes, model_for_extents
from treadle.tensor import Tensor


def from_onnx(path: Path, shapes: Shapes, outputs: Sequence[str], batch: int) -> Model:
    """An ONNX model; see `open_model`, which has the arguments.

    Raises:
        LoadError: ONNX is not installed, the file is damaged, or something does not fit it.
    """
    network = opened_onnx(path)
    unknown = set(shapes) - set(network.input_names)
    if unknown:
        raise no_input(path, unknown, network.input_names)
    if outputs:
        network.choose_outputs(outputs)
    inputs = [
        _sample(path, name, network.input_types[name], shapes, batch)
        for name in network.input_names
    ]
    captured = capture(network, tuple(inputs), {}, path.stem)
    names = Ends(network.input_names, outputs or network.output_names)
    weights, call = Weights(), asked(tuple(inputs), {})
    model = model_of(path.stem, captured, argument_names(inputs, {}), names, weights=weights)

    def opened() -> Graph:
        wide = model_for_extents(network, model, call, captured, False, weights).opened
        return model.graph if wide is None or wide.is_fixed else wide.graph

    return _cleaned(replace(model, opened=OpenGraph(model.graph, opened)), path, network)


def _cleaned(model: Model, path: Path, network: Any) -> Model:
    """The model without what only other outputs needed, and its source."""
    info = {"source": {**provenance(path), **network.provenance}}
    return replace(model.changed(DeadCode()(model.graph), DeadCode()), info=info)


def opened_for_axes(
    path: Path,
    network: Any,
    inputs: Sequence[tuple[str, np.dtype[Any], Sequence[Any]]],
    outputs: Sequence[str],
) -> Model:
    """An ONNX model with a graph for other extents.

    Args:
        path: of the file.
        network: of `opened_onnx`.
        inputs: name, element type, and for each axis its extent, or (name, least, largest, ...).
        outputs: names of values that become the outputs in place of the model's own.

    Raises:
        TreadleError: the model does not run, or is another program at other extents.
    """
    if outputs:
        network.choose_outputs(outputs)
    samples, axes = [], {}
    words: dict[str, str] = {}
    for number, (_, dtype, shape) in enumerate(inputs):
        open_ = {axis: d for axis, d in enumerate(shape) if not isinstance(d, int)}
        for name, *_ in open_.values():  # What the graph's text can spell, and no two alike.
            word = re.sub(r"\W", "_", name)
            word = word if word[:1].isalpha() else f"extent_{word}"
            words.setdefault(name, f"{word}_{len(words)}" if word in words.values() else word)
        axes[number] = {axis: words[d[0]] for axis, d in open_.items() if d[2] > 1}
        extents = [d if isinstance(d, int) else max(d[1], min(d[2], 2)) for d in shape]
        samples.append(Tensor(np.zeros(extents, dtype), dtype=dtype))
    captured = capture(network, tuple(samples), {}, path.stem)
    names = Ends(network.input_names, outputs or network.output_names)
    model = model_of(path.stem, captured, argument_names(samples, {}), names)
    model = model_for_axes(network, model, asked(tuple(samples), {}), captured, axes)
    return _cleaned(model, path, network)


def opened_onnx(path: Path) -> Any:
    """The network of an ONNX file, for inference.

    Raises:
        LoadError: ONNX is not installed, or the file is damaged.
    """
    try:
        from treadle.interop import onnx
    except ModuleNotFoundError as error:
        raise LoadError(str(path), str(error), hint="pip install treadle[onnx]") from error
    network = onnx.load(path)
    network.eval()
    return network


def _sample(
    path: Path,
    name: str,
    described: tuple[np.dtype[Any], tuple[int | str, ...]],
    shapes: Shapes,
    batch: int,
) -> Tensor:
    dtype, declared = described
    if batch and declared and not isinstance(declared[0], int):
        declared = (batch, *declared[1:])
    shape = shapes.get(name, declared)
    if name in shapes and declared:  # A model may leave out how many axes there are.
        checked_axes(name, shapes[name], declared)
        _require_own(name, shapes[name], declared)
    if not all(isinstance(d, int) for d in shape):
        listed = ",".join(str(d) for d in shape)
        batch_of_one = (
            1 if axis == 0 and not isinstance(d, int) else d for axis, d in enumerate(shape)
        )
        example = ",".join(str(d) for d in batch_of_one)
        words = ", ".join(d for d in shape[1:] if isinstance(d, str))
        raise LoadError(
            str(path),
            f"input {name} has extents that are not fixed: {listed}",
            hint=f"give them: --shape {name}={example}"
            + (f", with numbers in place of {words}" if words else ""),
        )
    return Tensor(np.zeros([int(d) for d in shape], dtype), dtype=dtype)


def _require_own(name: str, given: Sequence[int], declared: Sequence[int | str]) -> None:
    """Refuse to change an extent that the model fixes: constants of the graph may depend on it."""
    for axis, (wanted, own) in enumerate(zip(given, declared, strict=True)):
        if isinstance(own, int) and own != wanted:
            spelled = ",".join(map(str, declared))
            raise LoadError(
                "--shape",
                f"input {name} has the fixed extent {own} on axis {axis}, not {wanted}",
                saw=f"the model says {name}={spelled}",
                hint="leave --shape out, or export the model with this axis open"
                if all(isinstance(d, int) for d in declared)
                else "give the axes that are open, or export the model with this one open",
            )
