"""The ways to run a model here, and how far their results are from a peer's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import treadle as mge
from treadle.engine.package.models import write_models
from treadle.interop.torch import from_exported, left_to_torch
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of
from treadle.utils.comp_graph_tools import GraphInference

Array = np.ndarray[Any, Any]
Found = dict[str, Any]
"""`gaps` by way, `ms` and `peer`, the least of calls in turn, `refused` and `left` in words."""


def gap(results: Any, expected: Sequence[Any]) -> float:
    """The largest difference, relative to the largest number of each result.

    Results whose numbers are all below 0.1 count as that: ONNX Runtime's sigmoid has seven digits
    of 1.
    """
    arrays = [array_of(r) for r in (results if isinstance(results, (tuple, list)) else [results])]
    wanted = [array_of(e) for e in expected]
    if [a.shape for a in arrays] != [e.shape for e in wanted]:
        return float("inf")
    found = [_worst(a, e) for a, e in zip(arrays, wanted, strict=True) if e.size]
    return max(found, default=0.0)


def _worst(found: Array, wanted: Array) -> float:
    if not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return 0.0 if np.array_equal(found, wanted, equal_nan=True) else float("inf")
    difference = np.abs(found.astype(np.float64) - wanted).max()
    return float(difference / max(np.abs(wanted).max(), 0.1))


def array_of(value: Any) -> Array:
    """Numbers of a tensor of ours, of PyTorch's, or an array."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    return np.asarray(value.numpy() if isinstance(value, mge.Tensor) else value)


def least(ours: Callable[[], Any], peer: Callable[[], Any], seconds: float = 0.5) -> Found:
    """Milliseconds of the quickest call of each, called in turn."""
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    while len(times[0]) < 3 or (time.perf_counter() < end and len(times[0]) < 200):
        for run, taken in zip((ours, peer), times, strict=True):
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
    return {"ms": 1e3 * min(times[0]), "peer": 1e3 * min(times[1])}


def ours(array: Any) -> mge.Tensor:
    """A tensor of the same element type."""
    array = array_of(array)
    return mge.Tensor(array, dtype=array.dtype)


def from_file(function: Callable[..., Any], inputs: Sequence[Array], folder: Path) -> Any:
    """Results of a model file that a function of tensors is saved as, read again."""
    tensors = [ours(a) for a in inputs]
    captured = capture(function, tuple(tensors), {}, "zoo")
    names = [f"x{i}" for i in range(len(inputs))]
    model = model_of("zoo", captured, argument_names(tensors, {}), Ends(names))
    write_models(folder / "model.tm", [model], "zoo")
    given = dict(zip(names, inputs, strict=True))
    return tuple(GraphInference(str(folder / "model.tm")).run(inp_dict=given).values())


def ways_of(
    function: Callable[..., Any], inputs: Sequence[Array], peer: Callable[[], Any]
) -> Found:
    """Run a function of tensors eagerly, compiled and as a file, beside a peer with its inputs."""
    expected = _listed(peer())
    tensors = [ours(a) for a in inputs]
    program = mge.jit.compile(lambda *given: function(*given))
    gaps = {
        "eager": gap(_listed(function(*tensors)), expected),
        "compiled": gap(_listed(program(*tensors)), expected),
    }
    with tempfile.TemporaryDirectory() as folder:
        gaps["file"] = gap(from_file(function, inputs, Path(folder)), expected)
    return {"gaps": gaps, **least(lambda: program(*tensors), peer)}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def torch_ways(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Found:
    """An exported model in the ways above, and the model through PyTorch's compiler.

    That runs forward and backward: parameters' gradients are compared, each relative to its
    largest number and to a hundredth of the largest of all.
    """
    with torch.no_grad():
        program = torch.export.export(model, inputs, strict=False)
        module = from_exported(program)

        def call(*given: Any) -> Any:
            return module.results(*given)

        found = ways_of(call, [array_of(i) for i in inputs], lambda: _first(model(*inputs)))
    torch._dynamo.reset()
    before = {entry.operator for entry in left_to_torch()}
    compiled = torch.compile(model, backend="treadle", dynamic=False)
    results = [_trained(run, model, inputs) for run in (model, compiled)]
    (y, expected), (y2, gradients) = results
    found["gaps"]["backend"] = gap(y2, [y])
    largest = max((float(g.abs().max()) for g in expected if g.numel()), default=0.0)
    found["gaps"]["gradients"] = max(
        float((a - b).abs().max() / max(float(b.abs().max()), largest / 100))
        for a, b in zip(gradients, expected, strict=True)
    )
    found["left"] = sorted({entry.operator for entry in left_to_torch()} - before)
    return found


def _first(value: Any) -> Any:
    return list(value) if isinstance(value, (tuple, list)) else value


def _trained(run: Callable[..., Any], model: torch.nn.Module, inputs: Any) -> tuple[Any, list[Any]]:
    """What a model gives, and the gradients of a loss of it."""
    model.zero_grad()
    y = run(*inputs)
    torch.manual_seed(1)
    # By the shape: `randn_like` draws in the order of strides, which are row-major here.
    (y * torch.randn(y.shape)).sum().backward()
    return y.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]
