"""Models as commands take them: ONNX files and Treadle's own, with shapes given by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import numpy as np

from treadle.base.env import DEFAULT_DEVICE
from treadle.base.errors import LoadError
from treadle.cli.models.sources import Shapes, checked_axes, no_input
from treadle.cli.status import Misuse
from treadle.device import set_default_device
from treadle.engine.package.models import Model, read_models
from treadle.engine.package.open_graph import OpenGraph
from treadle.engine.phases import PhasedRunner
from treadle.graph.cleanup import DeadCode
from treadle.graph.ir import Graph, Value
from treadle.graph.printer import value_names
from treadle.inspect import Inspected
from treadle.interop.files import read_foreign_models
from treadle.ops.elementwise import Cast
from treadle.ops.families import Movement

EXTENSION = ".tm"
"""Of the model files that commands write."""


def parsed_shapes(given: Sequence[str], option: str = "--shape") -> Shapes:
    """Shapes such as `x=1,3,224,224`, by name.

    Raises:
        Misuse: one is written in another way.
    """
    shapes: Shapes = {}
    for text in given:
        name, sign, extents = text.rpartition("=")
        parts = [p.strip() for p in extents.split(",") if p.strip()]
        if not sign or not name or not all(p.isdecimal() for p in parts):
            raise Misuse(option, f"{text!r} is not a shape", hint="write it as x=1,3,224,224")
        shapes[name] = tuple(int(p) for p in parts)
    return shapes


def on_host() -> None:
    """Take the host for tensors; the command's choice, so that nobody is told of a missing GPU."""
    if not DEFAULT_DEVICE.source():
        set_default_device("cpux")


def open_model(
    path: Path,
    shapes: Shapes,
    outputs: Sequence[str] = (),
    batch: int = 0,
    allow_native: bool | None = None,
) -> Model:
    """The model in a file, with inputs of fixed shapes; `info["source"]` tells its provenance.

    Args:
        path: of an ONNX model or of a model file.
        shapes: of inputs that are to have others than the file says.
        outputs: names of values or nodes that become the outputs in place of the model's own.
        batch: first extent of inputs whose first extent is open.
        allow_native: whose parts of other engines are used, as in `read_models`.

    Raises:
        FileNotFoundError: there is no such file.
        LoadError: it is not a model, needs shapes that are not given, or has nothing of a name.
    """
    on_host()
    read_foreign_models()
    if path.suffix == ".onnx":
        from treadle.cli.models.onnx import from_onnx  # with all that modules and capture need

        return from_onnx(path, shapes, outputs, batch)
    models = read_models(path, allow_native=allow_native)
    if not models:
        raise LoadError(str(path), "it holds no model", hint="write it again")
    model = models[0]
    unknown = set(shapes) - set(model.inputs)
    if unknown:
        raise no_input(path, unknown, model.inputs)
    if outputs:
        model = with_outputs(model, outputs)
    if not shapes:
        return model
    return with_shapes(model, shapes)


def with_shapes(model: Model, shapes: Shapes) -> Model:
    """The model for inputs of other shapes; without its cases, which are for the old ones."""
    ends = zip(model.inputs, model.graph.inputs, strict=True)
    wanted = [
        checked_axes(name, shapes[name], value.type.shape) if name in shapes else value.type.shape
        for name, value in ends
    ]
    return model.changed(model.at(wanted), lambda wide: wide)


_NUMBER = re.compile(r"\[\d+\]$")


def with_outputs(model: Model, names: Sequence[str]) -> Model:
    """The model with other values as its outputs.

    Args:
        model: whose values are looked at.
        names: of outputs; of nodes of the source, whose last result is meant; or of values, as the
            text of the graph has them, such as %12.

    Raises:
        LoadError: nothing has such a name.
    """
    texts = {text: value for value, text in value_names(model.graph).items()}
    # A node of the source may have become several, name[0] and so on, of which the last counts.
    whole_nodes = {
        _NUMBER.sub("", name): node.outputs[-1] for node in model.graph.nodes for name in node.names
    }
    plain = {t.removeprefix("%"): v for t, v in texts.items()}
    known: dict[str, Value] = {**whole_nodes, **texts, **plain}
    for node in model.graph.nodes:
        if node.group:
            known[node.group] = node.outputs[-1]
    known.update(zip(model.outputs, model.graph.outputs, strict=True))
    unknown = [name for name in names if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known, 3)
        raise LoadError(
            "--outputs",
            f"the model has nothing called {', '.join(unknown)}",
            hint=f"did you mean {' or '.join(near)}?" if near else "info --graph lists values",
        )
    chosen = [known[n] for n in names]
    graph = DeadCode()(model.graph.with_nodes(model.graph.nodes, chosen))
    opened = _opened_for(model, chosen, graph)
    outputs = tuple(names)
    return replace(model, graph=graph, outputs=outputs, cases=(), segments={}, opened=opened)


def _opened_for(model: Model, chosen: Sequence[Value], closed: Graph) -> OpenGraph | None:
    """The form for other extents of a model whose outputs were chosen, if it has the same ops."""
    known = model.opened
    if known is None or known.closed is not model.graph or known.is_fixed:
        return known
    pairs = list(zip(model.graph.nodes, known.graph.nodes, strict=False))
    alike = len(pairs) == len(model.graph.nodes) == len(known.graph.nodes)
    if not alike or any(node.op.name != other.op.name for node, other in pairs):
        return known  # of another graph, and so of no use
    found = dict(zip(model.graph.inputs, known.graph.inputs, strict=True))
    for node, other in pairs:
        found.update(zip(node.outputs, other.outputs, strict=True))
    graph = DeadCode()(known.graph.with_nodes(known.graph.nodes, [found[v] for v in chosen]))
    return OpenGraph(closed, lambda: graph)


def source_of(model: Model) -> dict[str, Any]:
    """Return a model's information on its source."""
    info = model.info if isinstance(model.info, Mapping) else {}
    source = info.get("source")
    return dict(source) if isinstance(source, Mapping) else {}


def random_inputs(model: Model, seed: int = 0) -> dict[str, Any]:
    """Arrays for all inputs: normal floats, integers from 0 to 9, bytes from 0 to 255.

    Integers that the model takes as indices are in range.
    """
    generator = np.random.default_rng(seed)
    found, beyond = {}, _first_beyond(model.graph)
    for name, value in zip(model.inputs, model.graph.inputs, strict=True):
        kind, shape = value.type.dtype, tuple(int(d) for d in value.type.shape)
        if kind.is_float:
            found[name] = generator.standard_normal(shape).astype(kind.numpy)
        else:
            most = {"bool": 2, "uint8": 256}.get(kind.name, 10)
            most = min(most, beyond.get(value, most))
            found[name] = generator.integers(0, most, shape).astype(kind.numpy)
    return found


def run_once(program: Inspected, model: Model) -> PhasedRunner:
    """Run a model in phases on random inputs, which compiles those that they take."""
    inputs, runner = random_inputs(model), cast(PhasedRunner, program.compile())
    runner.run([inputs[name] for name in model.inputs])
    return runner


def _first_beyond(graph: Graph) -> dict[Value, int]:
    """The first number that is not an index, of inputs that are indices, moved or cast or as they
    are; 1 for axes without elements."""
    origin, found = {v: v for v in graph.inputs}, dict[Value, int]()
    for node in graph.nodes:
        for operand, _, beyond in node.op.index_ranges(tuple(v.type for v in node.inputs)):
            source = origin.get(node.inputs[operand])
            if source is not None and isinstance(beyond, int):
                found[source] = max(1, min(beyond, found.get(source, beyond)))
        moved = isinstance(node.op, Movement | Cast) and origin.get(node.inputs[0])
        if moved:
            origin[node.output] = moved
    return found
