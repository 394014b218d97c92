"""Graphs as OpenVINO's models, and which nodes of them OpenVINO says it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import openvino as ov
from openvino import opset15 as opset

from treadle.backends.openvino.patterns import fake_quantized
from treadle.backends.openvino.table import Output, writing
from treadle.backends.openvino.translation import (
    constant,
    parameter,
    supports,
    symbols_of_call,
    translate,
)
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value, symbols_of
from treadle.ops.constant import Constant
from treadle.ops.op import Op


def to_model(graph: Graph, *, int8: bool = False) -> Any:
    """The model of a graph all of whose ops have translations.

    Args:
        graph: where it has symbols, the model is for all of their extents; it takes their numbers
            as one more input if its other inputs do not tell them.
        int8: rounding to a grid becomes `FakeQuantize`, from which OpenVINO makes integer kernels.
    """
    known = {v: parameter(v.type) for v in graph.inputs}
    inputs = [known[v].get_node() for v in graph.inputs]
    grids = fake_quantized(graph) if int8 else {}
    with writing(symbols_of(graph)) as extents:
        for value in graph.inputs:
            extents.has(known[value], value.type.shape)
        for node in graph.nodes:
            if isinstance(node.op, Constant):
                known[node.output] = constant(node.op.data.array)
            elif node in grids:
                known[node.output] = grids[node].made(known)
            else:
                types = [_plain(v) for v in node.inputs]
                made = translate(node.op, types, [known[v] for v in node.inputs])
                known.update(zip(node.outputs, made, strict=True))
    results = [opset.result(known[v]) for v in graph.outputs]
    return ov.Model(results, [*inputs, *extents.read], graph.name)


def _plain(value: Value) -> TensorType:
    return TensorType(value.type.dtype, value.type.shape)


# -- asking ------------------------------------------------------------------------------------

Call = tuple[Op, tuple[TensorType, ...]]
"""An op on operands of some types, of which a program has many alike."""


def calls_of(graph: Graph) -> dict[Node, Call]:
    """The calls of a graph that have translations."""
    found = {}
    for node in graph.nodes:
        call = node.op, tuple(_plain(v) for v in node.inputs)
        if not isinstance(node.op, Constant) and supports(*call):
            found[node] = call
    return found


class Question:
    """A model with one of each of some calls, beside one another, to be shown to OpenVINO."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._parts: dict[Call, list[str]] = {}
        inputs: list[Any] = []
        results: list[Any] = []
        for op, types in calls:
            operands = [parameter(t) for t in types]
            with writing(symbols_of_call(op, types)) as extents:
                made = translate(op, types, operands)
            nodes = [v.get_node() for v in operands] + extents.read
            self._parts[op, types] = list(_between(made, nodes))
            inputs += nodes
            results += [opset.result(v) for v in made]
        self.model = ov.Model(results, inputs, "question")

    def answered(self, query: Mapping[str, str]) -> dict[Call, bool]:
        """Return, for each call, whether OpenVINO names all its parts in the answer."""
        return {call: all(p in query for p in parts) for call, parts in self._parts.items()}


def _between(results: Iterable[Output], inputs: Iterable[Any]) -> Iterable[str]:
    """Names of nodes of a model on the way from inputs to results, constants left out."""
    stop = {node.get_friendly_name() for node in inputs}
    seen: dict[str, None] = {}
    waiting = [v.get_node() for v in results]
    while waiting:
        node = waiting.pop()
        name = node.get_friendly_name()
        if name in stop or name in seen or node.get_type_name() == "Constant":
            continue
        seen[name] = None
        waiting += [v.get_node() for v in node.input_values()]
    return seen
