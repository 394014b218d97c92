"""Translation of ops: which are possible, and their nodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as opset

from treadle.backends.api import Support, no, yes
from treadle.backends.openvino import elementwise, quantized, reductions, shapes, windows
from treadle.backends.openvino.extents import dimensions
from treadle.backends.openvino.table import TABLE, TYPES, Output, writing
from treadle.base.errors import ShapeError
from treadle.base.extent import Symbol
from treadle.base.guards import asking_nothing
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.ir import Graph, is_open_op, symbols_in
from treadle.ops.composite import Composite, expand
from treadle.ops.creation import Creation
from treadle.ops.op import Op

FAMILIES = (elementwise, quantized, reductions, shapes, windows)
"""Modules that fill the table."""
MOST_MADE = 1 << 24
"""Bytes of values made of nothing that a model holds as data."""


def supports(op: Op, types: Sequence[TensorType]) -> Support:
    """Return whether there is a translation for operands of these types.

    Open extents may be asked whether they are 0.
    """
    types = tuple(types)
    is_open = is_open_op(op) or not all(t.is_static for t in types)
    if is_open and not all(d for t in (*types, *op.infer(*types)) for d in t.shape):
        return no("shape", f"{op.name} of no elements")
    with asking_nothing():
        return _supports(op, types)


@functools.cache
def _supports(op: Op, types: tuple[TensorType, ...]) -> Support:
    results = op.infer(*types)
    for type_ in (*types, *results):
        if type_.dtype not in TYPES:
            return no("dtype", f"{op.name} of {type_.dtype.name}")
        if type_.is_static and not type_.nbytes:
            return no("shape", f"{op.name} of no elements")
    if isinstance(op, Creation):
        if not all(t.is_static for t in results):
            return no("size-limit", f"{op.name} of open extents, which is no data")
        small = sum(t.nbytes for t in results) <= MOST_MADE
        return yes() if small else no("size-limit", f"{op.name} of so many bytes of data")
    known = TABLE.get(type(op))
    answer = no("op", f"there is no translation of {op.name}") if known is None else yes()
    try:
        if known is not None:
            answer = known.check(op, types)
        if not answer and isinstance(op, Composite):
            answer = _supports_body(op, types)
        return _tried(op, types) if answer else answer
    except ShapeError as error:  # Somebody has asked for the number that an open extent is.
        return no("dynamic-shape", f"{op.name}: {error.problem}")


def _tried(op: Op, types: tuple[TensorType, ...]) -> Support:
    """Return whether OpenVINO takes the op's nodes, and there are any.

    A model whose result is an operand itself is left out: it writes nothing to where the result
    belongs.
    """
    operands = [parameter(t) for t in types]
    names = {v.get_node().get_friendly_name() for v in operands}
    try:
        with writing(symbols_of_call(op, types)):
            made = translate(op, types, operands)
    except ShapeError:  # It is a RuntimeError, too.
        raise
    except RuntimeError as error:  # OpenVINO's own rules of shapes.
        return no("shape", str(error).strip().splitlines()[-1])
    if any(v.get_node().get_friendly_name() in names for v in made):
        return no("alias", f"{op.name} changes nothing")
    return yes()


def symbols_of_call(op: Op, types: tuple[TensorType, ...]) -> tuple[Symbol, ...]:
    """The symbols that an op on operands of these types mentions."""
    return symbols_in((*op.attributes.values(), *types))


def parameter(type_: TensorType) -> Output:
    """An input of a model."""
    return opset.parameter(dimensions(type_.shape), TYPES[type_.dtype]).output(0)


def _supports_body(op: Composite, types: tuple[TensorType, ...]) -> Support:
    for node in body_of(op, types).nodes:
        if node.op.name == "constant":
            continue
        answer = _supports(node.op, tuple(v.type for v in node.inputs))
        if not answer:
            return no(answer.reason or "op", f"{op.name}: {answer.message}")
    return yes()


def body_of(op: Composite, types: tuple[TensorType, ...]) -> Graph:
    """A composite in terms of other ops."""
    return trace_body(lambda *xs: expand(op, xs), types, op.name)


def translate(op: Op, types: Sequence[TensorType], operands: Sequence[Output]) -> list[Output]:
    """The results of an op, as outputs of nodes of a model."""
    types = tuple(TensorType(t.dtype, t.shape) for t in types)
    if isinstance(op, Creation):
        return [constant(op.reference())]
    known = TABLE.get(type(op))
    if known is not None and known.check(op, types):
        given = (types, *operands) if known.is_typed else operands
        return _outputs(known.make(op, *given))
    if not isinstance(op, Composite):
        raise NotImplementedError(f"there is no translation of {op.name}")
    return translate_graph(body_of(op, types), operands)


def translate_graph(graph: Graph, operands: Sequence[Output]) -> list[Output]:
    """The results of a graph."""
    known = dict(zip(graph.inputs, operands, strict=True))
    for node in graph.nodes:
        if node.op.name == "constant":
            made = [constant(node.op.reference())]
        else:
            types = [v.type for v in node.inputs]
            made = translate(node.op, types, [known[v] for v in node.inputs])
        known.update(zip(node.outputs, made, strict=True))
    return [known[v] for v in graph.outputs]


def constant(array: Any) -> Output:
    """Data of a model, which is not copied."""
    return opset.constant(np.asarray(_Writable(array)), shared_memory=True).output(0)


class _Writable:
    """An array that only looks as if it could be written, as OpenVINO wants those that it shares.

    It holds on to the array, and what is made of it holds on to it.
    """

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array, order="C")
        known = self._array.__array_interface__
        self.__array_interface__ = {**known, "data": (known["data"][0], False), "strides": None}


def _outputs(made: Any) -> list[Output]:
    if isinstance(made, ov.Node):
        return [made.output(0)]
    return list(made) if isinstance(made, list) else [made]
