"""Parts that the tools which run models share: reading inputs, timing, checking, writing values."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from treadle.base.array import Array
from treadle.base.files.numpy_files import load_array
from treadle.engine.package.models import Case, Model
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node


class WrongValues(AssertionError):
    """A model did not compute what was expected."""


def with_batch(model: Model, batch: int) -> Model:
    """The model for another extent of the first axis of its inputs."""
    shapes = [(batch, *v.type.shape[1:]) if v.type.shape else () for v in model.graph.inputs]
    return replace(model, graph=model.at(shapes), cases=())


def parsed_inputs(text: str, model: Model, seed: int = 0) -> dict[str, Array]:
    """Arrays by input: `a.npy`, `name:a.npy;other:#rand(0, 1)`, `name:{"shape": ...}`-free JSON.

    What is not given is drawn at random between 0 and 1.

    Raises:
        ValueError: an input is unknown, or a value cannot be read.
    """
    found: dict[str, Array] = {}
    for part in filter(None, text.split(";")):
        name, colon, value = part.partition(":")
        if not colon or name not in model.inputs:
            if len(model.inputs) != 1:
                raise ValueError(f"--input {part!r}: begin with one of {list(model.inputs)}")
            name, value = model.inputs[0], part
        found[name] = _value(value)
    generator = np.random.default_rng(seed)
    for value_of, name in zip(model.graph.inputs, model.inputs, strict=True):
        if name not in found:
            made = generator.random([int(d) for d in value_of.type.shape])
            found[name] = made.astype(value_of.type.dtype.numpy)
    return found


def _value(text: str) -> Array:
    if text.startswith("#rand"):
        low, high, *shape = [float(x) for x in text[5:].strip(" ()").split(",")]
        return np.random.default_rng(0).uniform(low, high, [int(s) for s in shape])
    if text.lstrip().startswith(("[", "{")):
        return np.asarray(json.loads(text))
    if text.endswith(".npy"):
        return load_array(text)
    raise ValueError(f"--input {text!r} is no .npy file, no #rand(low, high, shape) and no JSON")


def as_wanted(model: Model, given: Mapping[str, Array]) -> tuple[Graph, list[Array]]:
    """The graph for these inputs, and the inputs in order and type."""
    arrays = [
        np.ascontiguousarray(given[name], value.type.dtype.numpy)
        for value, name in zip(model.graph.inputs, model.inputs, strict=True)
    ]
    return model.at([a.shape for a in arrays]), arrays


@dataclass(slots=True)
class Timing:
    """Seconds of runs: of the first, of those that only warm up, and of the measured ones."""

    first: float = 0.0
    measured: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.measured:
            return f"first run {1e3 * self.first:.3f} ms"
        found = np.array(self.measured) * 1e3
        return (
            f"{len(found)} runs: avg {found.mean():.3f} ms, median {np.median(found):.3f} ms, "
            f"min {found.min():.3f} ms, max {found.max():.3f} ms, std {found.std():.3f} ms; "
            f"first run {1e3 * self.first:.3f} ms"
        )


def timed(
    runner: Callable[[Sequence[Array]], list[Array]],
    arrays: Sequence[Array],
    warmup: int,
    count: int,
    tell: Callable[[str], None] | None = None,
) -> tuple[list[Array], Timing]:
    """Run a model: the last results, and how long each run took."""
    timing = Timing()
    began = time.perf_counter()
    results = runner(arrays)
    timing.first = time.perf_counter() - began
    for _ in range(max(0, warmup - 1)):
        runner(arrays)
    for number in range(count):
        began = time.perf_counter()
        results = runner(arrays)
        timing.measured.append(time.perf_counter() - began)
        if tell is not None:
            tell(f"run {number}: {1e3 * timing.measured[-1]:.3f} ms")
    return results, timing


def check_case(model: Model, case: Case, results: Mapping[str, Array]) -> float:
    """The largest relative difference from a test case's results.

    Raises:
        WrongValues: it exceeds what the case allows.
    """
    worst = 0.0
    for name, want in case.outputs.items():
        got = results[name]
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        difference = float(np.abs(got.astype(np.float64) - want).max(initial=0)) / scale
        worst = max(worst, difference)
        if not difference <= case.maxerr:
            raise WrongValues(f"{name} differs by {difference:.3g}, allowed are {case.maxerr:.3g}")
    return worst


def values_of(graph: Graph, arrays: Sequence[Array]) -> list[tuple[str, str, Array]]:
    """Name, op and array of every result in a graph, computed by the references of the ops."""
    found: list[tuple[str, str, Array]] = []

    def observe(node: Node, results: tuple[Array, ...]) -> None:
        for value, array in zip(node.outputs, results, strict=True):
            found.append((value.name or f"{len(found):04d}_{node.op.name}", node.op.name, array))

    evaluate(graph, arrays, observe)
    return found


def facts(name: str, op: str, array: Array) -> str:
    """A line about an array."""
    text = f"{name} {op} {array.dtype}{list(array.shape)}"
    if not array.size or array.dtype.kind not in "fiub":
        return text
    wide = array.astype(np.float64)
    rms = float(np.sqrt(np.mean(np.square(wide))))
    return f"{text} mean {wide.mean():.6g} min {wide.min():.6g} max {wide.max():.6g} rms {rms:.6g}"


def write_arrays(folder: Path, found: Iterable[tuple[str, str, Array]]) -> int:
    """Write arrays as numbered `.npy` files; how many."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, (name, _, array) in enumerate(found, 1):
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        np.save(folder / f"{count - 1:04d}_{safe}.npy", array)
    return count
