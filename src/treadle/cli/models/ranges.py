"""Ranges in the place of extents, as `treadle serve --shape x=1..8,3` has them, and ONNX files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.base.errors import LoadError
from treadle.cli.models.opening import on_host, open_model
from treadle.cli.models.sources import checked_axes, no_input
from treadle.cli.status import Misuse
from treadle.engine.package.models import Model

_EXTENT = re.compile(r"\d+(?:\.\.\d+)*")

Range = tuple[int, ...]
"""The least and the largest extent, equal where there is one, and edges of ranges between them."""


class Ranged(NamedTuple):
    """An ONNX model whose extents lie in ranges.

    Attributes:
        network: the model.
        inputs: name, element type, and for each axis its extent, or (name, least, largest), and
            edges behind them where there are some.
        outputs: names.
    """

    network: Any
    inputs: list[tuple[str, np.dtype[Any], tuple[Any, ...]]]
    outputs: list[str]


def are_ranged(given: Sequence[str]) -> bool:
    """Return whether shapes have ranges in the place of extents."""
    return any(".." in text.rpartition("=")[2] for text in given)


def parsed_ranges(given: Sequence[str], option: str = "--shape") -> dict[str, tuple[Range, ...]]:
    """Ranges such as `x=1..8,3,32..640`, or `32..256..640` with an edge, by name.

    Raises:
        Misuse: one is written in another way, or ends before it begins.
    """
    found: dict[str, tuple[Range, ...]] = {}
    for text in given:
        name, sign, extents = text.rpartition("=")
        parts = [part.strip() for part in extents.split(",")]
        if not name or not sign or not all(map(_EXTENT.fullmatch, parts)):
            raise Misuse(option, f"{text!r} is not a shape", hint="write it as x=1..8,3,224,224")
        read = [tuple(map(int, part.split(".."))) for part in parts]
        for ends, part in zip(read, parts, strict=True):
            are_edges = len(ends) < 3 or len({*ends}) == len(ends)
            if list(ends) != sorted(ends) or ends[0] < min(1, ends[-1]) or not are_edges:
                problem = f"{part} in {text!r} is not a range"
                raise Misuse(option, problem, hint="write 1..8: both ends, the lower one first")
        found[name] = tuple(2 * ends if len(ends) == 1 else ends for ends in read)
    return found


def parsed_pads(given: Sequence[str]) -> dict[str, float]:
    """Inputs that say what is padding, such as `mask` or `mask=1`, and what they hold there.

    Raises:
        Misuse: one is written in another way.
    """
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value or 0)
        except ValueError:
            problem = f"{text!r} pads with no number"
            raise Misuse("--pad", problem, hint="write --pad mask, or --pad mask=1") from None
    return found


def ranged_onnx(path: Path, ranges: Mapping[str, tuple[Range, ...]]) -> Ranged:
    """An ONNX model for ranges of extents.

    Args:
        path: of the file.
        ranges: of inputs by name. Axes of one name have one range, which may be left out where
            another input has it.

    Raises:
        LoadError: as `open_model`, or a range is missing, or two of one name differ.
    """
    from treadle.cli.models.onnx import opened_onnx  # with all that capture needs

    if path.suffix != ".onnx":
        problem = "ranges of extents need an ONNX file"
        raise LoadError(str(path), problem, hint="compile a model file for several shapes: --gear")
    network = opened_onnx(path)
    unknown = set(ranges) - set(network.input_names)
    if unknown:
        raise no_input(path, unknown, network.input_names)
    known = _named(network, ranges)
    inputs = []
    for i, name in enumerate(network.input_names):
        dtype, declared = network.input_types[name]
        names = network.open_axes.get(i, {})
        if not all(of in known for of in names.values()):
            listed = ",".join(map(str, declared))
            hint = f"give them: --shape {name}={','.join(map(_example, declared))}"
            raise LoadError(str(path), f"input {name} has open extents: {listed}", hint=hint)
        shape = (_extent(d, names.get(a), known) for a, d in enumerate(declared))
        inputs.append((name, dtype, tuple(shape)))
    return Ranged(network, inputs, list(network.output_names))


def ranged_model(
    path: Path, ranges: Mapping[str, tuple[Range, ...]], outputs: Sequence[str]
) -> tuple[Model, dict[str, tuple[Range, ...]]]:
    """The model of a file with a graph for other extents, and the ranges of its inputs.

    Args:
        path: of an ONNX model, or of a model file.
        ranges: of inputs by name.
        outputs: names of values or nodes that become the outputs.

    Raises:
        LoadError: as `open_model`, or a range is missing, or two of one name differ.
        TreadleError: the model is another program at other extents.
    """
    on_host()
    if path.suffix != ".onnx":
        model = open_model(path, {}, outputs)
        unknown = set(ranges) - set(model.inputs)
        if unknown:
            raise no_input(path, unknown, model.inputs)
        return model, dict(ranges)
    from treadle.cli.models.onnx import opened_for_axes  # with all that capture needs

    found = ranged_onnx(path, ranges)
    model = opened_for_axes(path, found.network, found.inputs, outputs)
    spans = {
        name: tuple((d, d) if isinstance(d, int) else (d[1], *sum(d[3:], ()), d[2]) for d in shape)
        for name, _, shape in found.inputs
    }
    return model, spans


def _named(network: Any, ranges: Mapping[str, tuple[Range, ...]]) -> dict[str, tuple[str, Range]]:
    """The range of each name that the model has for extents, and an input that has it."""
    known: dict[str, tuple[str, Range]] = {}
    for i, name in enumerate(network.input_names):
        if name not in ranges:
            continue
        declared = network.input_types[name][1]
        checked_axes(name, ranges[name], declared)
        for axis, (given, own) in enumerate(zip(ranges[name], declared, strict=True)):
            if isinstance(own, int) and given != (own, own):
                problem = f"input {name} has the fixed extent {own} on axis {axis}"
                hint = "give the number, or export the model with this axis open"
                raise LoadError("--shape", f"{problem}, not {_spelled(given)}", hint=hint)
        for axis, of in network.open_axes.get(i, {}).items():
            owner, other = known.setdefault(of, (name, ranges[name][axis]))
            if other != ranges[name][axis]:
                raise LoadError(
                    "--shape",
                    f"the model calls extents of {owner} and {name} {of!r}, so they are equal",
                    saw=f"{_spelled(other)} and {_spelled(ranges[name][axis])}",
                )
    return known


def _extent(declared: int | str, name: str | None, known: Mapping[str, tuple[str, Range]]) -> Any:
    if name is None:
        return declared
    low, *edges, high = known[name][1]
    if low == high:
        return low
    return (name, low, high, tuple(edges)) if edges else (name, low, high)


def _spelled(given: Range) -> str:
    return "..".join(map(str, dict.fromkeys(given)))


def _example(declared: int | str) -> str:
    return str(declared) if isinstance(declared, int) else "1..8"
