"""Models as commands take them: ONNX files and Treadle's own, with shapes given by hand."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.env import DEFAULT_DEVICE
from treadle.base.errors import LoadError
from treadle.device import set_default_device
from treadle.engine.package import Model, read_models
from treadle.graph.retype import retyped
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of
from treadle.tensor import Tensor

Shapes = dict[str, tuple[int, ...]]
EXTENSION = ".tm"
"""Of the model files that commands write."""


def parsed_shapes(given: Sequence[str]) -> Shapes:
    """Shapes such as `x=1,3,224,224`, by name.

    Raises:
        LoadError: one is written in another way.
    """
    shapes: Shapes = {}
    for text in given:
        name, sign, extents = text.rpartition("=")
        parts = [p.strip() for p in extents.split(",") if p.strip()]
        if not sign or not name or not all(p.isdecimal() for p in parts):
            raise LoadError("--shape", f"{text!r} is no shape", hint="write it as x=1,3,224,224")
        shapes[name] = tuple(int(p) for p in parts)
    return shapes


def open_model(path: Path, shapes: Shapes) -> Model:
    """The model in a file, with inputs of fixed shapes.

    Raises:
        LoadError: it is no model, needs shapes that are not given, or has no input of a name.
    """
    if not DEFAULT_DEVICE.source():
        set_default_device("cpux")  # the command's choice, so that nobody is told of a missing GPU
    if path.suffix == ".onnx":
        return _from_onnx(path, shapes)
    model = read_models(path)[0]
    unknown = set(shapes) - set(model.inputs)
    if unknown:
        raise LoadError(
            str(path),
            f"it has no input {', '.join(sorted(unknown))}",
            saw=f"inputs {', '.join(model.inputs)}",
        )
    if not shapes:
        return model
    ends = zip(model.inputs, model.graph.inputs, strict=True)
    wanted = [shapes.get(name, value.type.shape) for name, value in ends]
    return Model(retyped(model.graph, wanted), model.inputs, model.outputs, model.info)


def _from_onnx(path: Path, shapes: Shapes) -> Model:
    try:
        onnx: Any = importlib.import_module("treadle.interop.onnx")
    except ModuleNotFoundError as error:
        raise LoadError(str(path), str(error), hint="pip install treadle[onnx]") from error
    network = onnx.load(path)
    network.eval()
    inputs = [
        _sample(path, name, network.input_types[name], shapes) for name in network.input_names
    ]
    unknown = set(shapes) - set(network.input_names)
    if unknown:
        raise LoadError(
            str(path),
            f"it has no input {', '.join(sorted(unknown))}",
            saw=f"inputs {', '.join(network.input_names)}",
        )
    captured = capture(network, tuple(inputs), {}, path.stem)
    names = Ends(network.input_names, network.output_names)
    return model_of(path.stem, captured, argument_names(inputs, {}), names)


def _sample(
    path: Path, name: str, described: tuple[np.dtype[Any], tuple[int | str, ...]], shapes: Shapes
) -> Tensor:
    dtype, declared = described
    shape = shapes.get(name, declared)
    if not all(isinstance(d, int) for d in shape):
        listed = ",".join(str(d) for d in shape)
        raise LoadError(
            str(path),
            f"input {name} has extents that are not fixed: {listed}",
            hint=f"give them: --shape {name}=1,3,224,224",
        )
    return Tensor(np.zeros([int(d) for d in shape], dtype), dtype=dtype)


def random_inputs(model: Model, seed: int = 0) -> dict[str, Any]:
    """Arrays for all inputs: normal floats, integers from 0 to 9."""
    generator = np.random.default_rng(seed)
    found = {}
    for name, value in zip(model.inputs, model.graph.inputs, strict=True):
        kind, shape = value.type.dtype, tuple(int(d) for d in value.type.shape)
        if kind.is_float:
            found[name] = generator.standard_normal(shape).astype(kind.numpy)
        else:
            most = 2 if kind.name == "bool" else 10
            found[name] = generator.integers(0, most, shape).astype(kind.numpy)
    return found
