"""Models out of modules and foreign files, each with what it must be equal to."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.errors import DTypeError, LoadError
from treadle.cli.convert.checkpoints import torch_modules
from treadle.cli.models.opening import open_model, with_outputs
from treadle.engine.package.models import Model, Runner
from treadle.jit.capture import capture
from treadle.jit.captured import Output
from treadle.jit.dump import Ends, argument_names, model_of
from treadle.tensor import Tensor

Run = Callable[[Sequence[Array]], list[Array]]


@dataclass(frozen=True, slots=True)
class DescribedInput:
    """An input as the command line describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    def zeros(self) -> Array:
        """An array of it."""
        return np.zeros(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """A model, and what it was before.

    Attributes:
        model: as it is to be written.
        run: computes what it must be equal to.
        witness: what that is, in words.
        record: framework and version.
    """

    model: Model
    run: Run
    witness: str
    record: dict[str, Any]


def parsed_inputs(given: Sequence[str]) -> list[DescribedInput]:
    """Inputs such as `x=1,3,224,224` and `tokens=1,16:int64`.

    Raises:
        LoadError: one is written in another way.
    """
    found = []
    for text in given:
        name, sign, rest = text.partition("=")
        extents, _, dtype = rest.partition(":")
        parts = [p.strip() for p in extents.split(",") if p.strip()]
        if not sign or not name or not all(p.isdecimal() for p in parts):
            hint = "write it as x=1,3,224,224 or tokens=1,16:int64"
            raise LoadError("--input", f"{text!r} is not an input", hint=hint)
        try:
            kind = as_dtype(dtype or "float32").numpy
        except DTypeError as error:
            raise LoadError("--input", f"{dtype!r} is not an element type", saw=text) from error
        found.append(DescribedInput(name, tuple(int(p) for p in parts), kind))
    return found


def optional(path: Path, module: str, extra: str) -> Any:
    """A module that needs an extra.

    Raises:
        LoadError: the extra is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise LoadError(str(path), str(error), hint=f"pip install treadle[{extra}]") from error


# -- modules of the user's ---------------------------------------------------------------------


def from_module(module: Any, inputs: Sequence[DescribedInput], name: str) -> ModelOrigin:
    """A module of the user's, of Treadle or PyTorch, in evaluation mode.

    Raises:
        TreadleError: it cannot be captured for such inputs.
    """
    if not inputs:
        raise LoadError("--input", "the model's inputs are not known", hint="--input x=1,3,224,224")
    arrays = [i.zeros() for i in inputs]
    names = [i.name for i in inputs]
    handling = torch_modules(module)
    if handling is not None:
        program = handling.export_module(module, arrays)
        return _from_program(program, module, names, name, {})
    module.eval()
    given = [Tensor(a, dtype=a.dtype) for a in arrays]
    captured = capture(module, tuple(given), {}, name)
    model = model_of(name, captured, argument_names(given, {}), Ends(names))
    return ModelOrigin(model, _runner(module), "the module, run op by op", {"framework": "treadle"})


def _runner(module: Any) -> Run:
    def run(arrays: Sequence[Array]) -> list[Array]:
        found = module(*(Tensor(a, dtype=a.dtype) for a in arrays))
        return [t.numpy() for t in _tensors(found)]

    return run


def _tensors(found: Any) -> list[Tensor]:
    """Tensors in a result, in the order of the model's outputs."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, dict):
        return [t for value in found.values() for t in _tensors(value)]
    if isinstance(found, (list, tuple)):
        return [t for value in found for t in _tensors(value)]
    return []


# -- programs of PyTorch -----------------------------------------------------------------------


def from_exported_file(
    path: Path, inputs: Sequence[DescribedInput], allow_native: bool
) -> ModelOrigin:
    """The program of a `.pt2` file.

    Raises:
        LoadError: what it names may not run, or PyTorch is missing or cannot read it.
        UnsupportedOp: it has operators without counterpart.
    """
    torch = optional(path, "treadle.interop.torch", "torch")
    program = torch.read_exported(path, allow_native=allow_native)
    shapes = {i.name: i.shape for i in inputs}
    return _from_program(program, program, (), path.stem, shapes)


def _from_program(
    program: Any,
    callee: Any,
    names: Sequence[str],
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> ModelOrigin:
    """A program of `torch.export`; `callee` is what PyTorch runs in comparison.

    `names` are those of its inputs where they are not to have the program's, `shapes` fix extents.
    """
    from treadle.interop import torch
    from treadle.interop.torch import modules as handling

    module = torch.from_exported(program)
    called = list(names or module.input_names)
    unknown = sorted(set(shapes) - set(called))
    if unknown:
        problem = f"it has no input {', '.join(unknown)}"
        raise LoadError(name, problem, saw=f"inputs {', '.join(called)}")
    types = zip(called, module.input_types.values(), strict=True)
    given = [_sample(name, end, dtype, shapes.get(end, shape)) for end, (dtype, shape) in types]
    captured = capture(module.results, tuple(given), {}, name)
    results = zip(module.output_names, captured.results, strict=True)
    ends = Ends(called, [end for end, result in results if isinstance(result, Output)])
    model = model_of(name, captured, argument_names(given, {}), ends)
    record = {"framework": "torch", "version": handling.version()}
    witness = f"PyTorch {handling.version()}"
    return ModelOrigin(model, lambda arrays: handling.results_of(callee, arrays), witness, record)


def _sample(name: str, end: str, dtype: Any, shape: Sequence[int | str]) -> Tensor:
    if not all(isinstance(d, int) for d in shape):
        hint = f"give them: --input {end}=1,3,224,224"
        raise LoadError(name, f"input {end} has extents that are not fixed", hint=hint)
    return Tensor(np.zeros([int(d) for d in shape], dtype), dtype=dtype)


# -- model files -------------------------------------------------------------------------------


def from_file(path: Path, inputs: Sequence[DescribedInput]) -> ModelOrigin:
    """An ONNX model or a model file.

    Raises:
        LoadError: it cannot be read, or has other inputs.
    """
    model = open_model(path, {i.name: i.shape for i in inputs})
    record = dict(model.info.get("source", {})) if isinstance(model.info, dict) else {}
    if path.suffix == ".onnx":
        run, witness = onnx_runner(path, model.outputs)
        return ModelOrigin(model, run, witness, record)
    return ModelOrigin(model, Runner(model.graph), f"{path.name}, run by Treadle", record)


def with_results(origin: ModelOrigin, names: Sequence[str]) -> ModelOrigin:
    """The model with some of its results.

    Raises:
        LoadError: it has none of a name.
    """
    own = origin.model.outputs
    unknown = [name for name in names if name not in own]
    if unknown:
        problem = f"the model has no result called {', '.join(unknown)}"
        raise LoadError("--outputs", problem, saw=f"results {', '.join(own)}")
    places = [own.index(name) for name in names]

    def run(arrays: Sequence[Array]) -> list[Array]:
        found = origin.run(arrays)
        return [found[i] for i in places]

    return replace(origin, model=with_outputs(origin.model, names), run=run)


def onnx_runner(path: Path, outputs: Sequence[str]) -> tuple[Run, str]:
    """Return the runner of an ONNX file, and its name: ONNX Runtime where that is installed and
    takes it.

    Raises:
        LoadError: neither it nor the extra is installed, or the file cannot be read.
    """
    try:
        runtime: Any = importlib.import_module("onnxruntime")
        session = runtime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    except Exception:  # it is missing, or raises a class of its own: too new an opset, above all
        network = optional(path, "treadle.interop.onnx", "onnx").load(path)
        network.eval()
        return _runner(network), "the ONNX model, run op by op"
    names = [i.name for i in session.get_inputs()]

    def run(arrays: Sequence[Array]) -> list[Array]:
        try:
            found: list[Array] = session.run(list(outputs), dict(zip(names, arrays, strict=True)))
        except Exception as error:  # classes of its own
            text = str(error).partition("\n")[0]
            raise LoadError(str(path), f"ONNX Runtime cannot run it: {text}") from error
        return found

    return run, f"ONNX Runtime {runtime.__version__}"
