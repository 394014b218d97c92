"""Runs an ONNX graph node by node on operands: eagerly on tensors, or into a graph.

What depends on known arrays alone (shapes, initializers) stays on the host, computed by the oracles
of the ops, so that shapes are numbers by the time they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import onnx
from onnx import defs, numpy_helper

from treadle.base.errors import LoadError, OutOfMemory, TreadleError, UnsupportedOp
from treadle.base.modes import ACTIVE, LOCAL
from treadle.interop.onnx.nodes import (
    ALIGNED,
    OnnxNode,
    Value,
    aligned,
    concrete,
    known,
    together,
)
from treadle.interop.onnx.registry import Converter, find
from treadle.interop.onnx.sizes import Extents, with_extents
from treadle.interop.onnx.stored import MemoryBudget
from treadle.ops.abstract import ArrayOperand

DEEPEST = 32
"""Graphs inside of graphs, and functions that call functions."""
NOT_FOLDED = frozenset(
    ("RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli")
)
"""Operators that give something else at each call."""
_WRONG = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of converters for nodes that the standard does not allow."""
MOST_STEPS = 10_000_000
"""Nodes that one call runs, those of loops and functions included: more than any model means."""
Names = dict[str, Value]


class OnnxRunner:
    """One model's operators, functions and versions.

    Args:
        opsets: version of each domain.
        functions: those that the model defines, by domain and name.
        observe: told the name and value of every result.
        room: counts the arrays that nodes make.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        functions: Mapping[tuple[str, str], onnx.FunctionProto],
        observe: Callable[[str, Value], None] | None = None,
        room: MemoryBudget | None = None,
    ) -> None:
        self._opsets = {("" if k == "ai.onnx" else k): v for k, v in opsets.items()}
        self._functions = functions
        self._observe = observe
        self._room = room
        self._steps = MOST_STEPS

    def run(
        self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], names: Names
    ) -> list[Value]:
        """Run nodes whose inputs are in `names`; the values called `outputs`."""
        self._body(nodes, names, self._opsets, 0)
        return [self._find(o, names) for o in outputs]

    def folded(self, nodes: Sequence[onnx.NodeProto], names: Names) -> list[onnx.NodeProto]:
        """Run the nodes that need nothing but `names`, to which they add; the others."""
        left = []
        for node in nodes:
            ready = all(n in names for n in node.input if n)
            if (
                ready
                and node.op_type not in NOT_FOLDED
                and not any(map(_has_graph, node.attribute))
            ):
                self._body([node], names, self._opsets, 0)
            else:
                left.append(node)
        return left

    def graph(self, graph: onnx.GraphProto, names: Names, depth: int = 0) -> list[Value]:
        """Run a graph whose inputs and initializers are in `names`; its outputs."""
        self._body(graph.node, names, self._opsets, depth)
        return [self._find(o.name, names) for o in graph.output]

    def _body(
        self, nodes: Sequence[onnx.NodeProto], names: Names, opsets: Mapping[str, int], depth: int
    ) -> None:
        if depth > DEEPEST:
            raise UnsupportedOp("onnx", f"graphs are nested more than {DEEPEST} deep")
        for proto in nodes:
            inputs = [self._find(n, names) if n else None for n in proto.input]
            self._step(proto)
            with _named(proto):
                results = self._node(proto, inputs, names, opsets, depth)
            for name, value in zip(proto.output, results, strict=False):
                if name:
                    names[name] = value
                    self._count(proto, value)
                    if self._observe is not None:
                        self._observe(name, value)

    def _step(self, proto: onnx.NodeProto) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise UnsupportedOp(
                f"onnx {proto.op_type}",
                f"{MOST_STEPS} nodes have run, and the model goes on (node {proto.name!r})",
                hint="check the model for loops and functions that do not end",
            )

    def _count(self, proto: onnx.NodeProto, value: Value) -> None:
        if self._room is not None and type(value) is ArrayOperand:
            self._room.take(value.array.nbytes, f"the result of {proto.op_type} {proto.name!r}")

    @staticmethod
    def _find(name: str, names: Names) -> Value:
        try:
            return names[name]
        except KeyError:
            raise UnsupportedOp(
                "onnx", f"the value {name!r} is used before it is made", hint="check the model"
            ) from None

    # -- one node --------------------------------------------------------------------------

    def _node(
        self,
        proto: onnx.NodeProto,
        inputs: list[Value],
        names: Names,
        opsets: Mapping[str, int],
        depth: int,
    ) -> Sequence[Value]:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        own = self._functions.get((domain, proto.op_type))
        if own is not None:
            return self._function(own, proto, inputs, depth)
        version = opsets.get(domain, 1)
        node = self._described(proto, version, names, depth)
        entry = find(node)
        if entry is None:
            body = _schema_function(proto, node, inputs)
            if body is None:
                if domain and domain not in _STANDARD:
                    raise node.refuse(
                        f"nothing is registered for it in the domain {domain!r}",
                        f'import the module with the custom op whose onnx is "{domain}::'
                        f'{proto.op_type}", or register a converter with converts(...)',
                    )
                raise node.refuse(f"opset {version} of it has no converter")
            return self._function(body, proto, inputs, depth, _defaults(proto, version))
        try:
            return _convert(entry, node, inputs)
        except TreadleError as error:
            if not error.where.startswith("onnx") and not isinstance(error, LoadError):
                given = ", ".join(n or "-" for n in proto.input)
                error.rename(f"onnx {proto.op_type} {node.name!r} of {given}: {error.where}")
            raise
        except NotImplementedError:
            raise
        except MemoryError as error:
            problem = f"node {node.name!r} asks for more memory than there is"
            raise OutOfMemory(f"onnx {proto.op_type}", problem) from error
        except _WRONG as error:
            raise UnsupportedOp(
                f"onnx {proto.op_type}",
                f"node {node.name!r} cannot be converted: {type(error).__name__}: {error}",
                hint="check the model with onnx.checker",
            ) from error

    def _described(self, proto: onnx.NodeProto, version: int, names: Names, depth: int) -> OnnxNode:
        def run(graph: onnx.GraphProto, inputs: Sequence[Value]) -> list[Value]:
            inside = dict(names)
            inside.update((i.name, known(numpy_helper.to_array(i))) for i in graph.initializer)
            inside.update(zip((i.name for i in graph.input), inputs, strict=True))
            return self.graph(graph, inside, depth + 1)

        attributes = {a.name: attribute_value(a) for a in proto.attribute}
        name = proto.name or next(iter(proto.output), "")
        wanted = tuple(bool(o) for o in proto.output)
        counts = len(proto.input), len(proto.output)
        ask = None if self._room is None else self._room.ask
        return OnnxNode(
            proto.op_type, proto.domain, version, attributes, name, *counts, wanted, run, ask
        )

    def _function(
        self,
        body: onnx.FunctionProto,
        proto: onnx.NodeProto,
        inputs: list[Value],
        depth: int,
        defaults: Mapping[str, onnx.AttributeProto] | None = None,
    ) -> list[Value]:
        """Run a function in the place of a node; attributes of the node are put into its nodes."""
        given = {a.name: a for a in proto.attribute}
        own = {a.name: a for a in body.attribute_proto}
        nodes = [_with_attributes(n, {**(defaults or {}), **own, **given}) for n in body.node]
        names: Names = dict.fromkeys(body.input)
        names.update(zip(body.input, inputs, strict=False))
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in body.opset_import}
        self._body(nodes, names, {**self._opsets, **opsets}, depth + 1)
        return [names.get(o) for o in body.output]


_STANDARD = ("ai.onnx.ml", "ai.onnx.preview.training")


def _named(proto: onnx.NodeProto) -> AbstractContextManager[None]:
    """Give the name of the node to ops that a program captures in the block."""
    capture: Any = LOCAL.capture if ACTIVE.count else None
    if capture is None:
        return nullcontext()
    name = proto.name or next(iter(proto.output), "")
    found: AbstractContextManager[None] = capture.called(name)
    return found


def _has_graph(attribute: onnx.AttributeProto) -> bool:
    return attribute.HasField("g") or bool(attribute.graphs)


def _convert(entry: Converter, node: OnnxNode, inputs: list[Value]) -> Sequence[Value]:
    if any(isinstance(v, Extents) for v in inputs):
        made = with_extents(node, inputs, entry)
        if made is not None:
            return (made,)
        inputs = _without_extents(entry, inputs)
    everything = entry.host == (-1,)
    values: list[Any] = [
        None
        if v is None or not (everything or i in entry.host)
        else concrete(v, node, f"input {i}")
        for i, v in enumerate(inputs)
    ]
    rest = [i for i in range(len(inputs)) if not everything and i not in entry.host]
    left = [inputs[i] for i in rest]
    for i, value in zip(rest, left if entry.separate else together(left), strict=True):
        values[i] = value
    if node.opset < 7 and node.op_type in ALIGNED and node.domain in ("", "ai.onnx"):
        values[1] = aligned(node, *values)
    made = entry.convert(node, *values)
    return made if isinstance(made, tuple) else (made,)


def _without_extents(entry: Converter, inputs: Sequence[Value]) -> list[Value]:
    """Extents as the node takes them: a list for its shape, else computed, else as numbers."""
    mine = [v for v in inputs if isinstance(v, Extents)]
    operands = not all(v is None or isinstance(v, Extents | ArrayOperand) for v in inputs)
    operands = operands or any(v.is_found for v in mine)
    made = []
    for i, value in enumerate(inputs):
        if not isinstance(value, Extents) and entry.symbols and entry.host and i not in entry.host:
            made.append(together([mine[0].anchor, value])[1])  # What is made of it has symbols.
        elif not isinstance(value, Extents) or (entry.symbols and not entry.host):
            made.append(value)
        elif i in entry.host or entry.host == (-1,):
            made.append(known(value.array) if entry.symbols else value.numbers())
        else:
            made.append(value.computed() if operands else value.numbers())
    return made


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """An attribute as Python and NumPy have it."""
    found = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.STRING:
        return found.decode("utf-8", "replace")
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [s.decode("utf-8", "replace") for s in found]
    if attribute.type == onnx.AttributeProto.TENSOR:
        return numpy_helper.to_array(found)
    return list(found) if isinstance(found, (list, tuple)) else found


# -- functions of schemas ----------------------------------------------------------------------


def _schema_function(
    proto: onnx.NodeProto, node: OnnxNode, inputs: Sequence[Value]
) -> onnx.FunctionProto | None:
    """The body that ONNX defines for an operator, or None."""
    try:
        schema: Any = defs.get_schema(proto.op_type, node.opset, proto.domain)
    except defs.SchemaError:
        return None
    if schema.has_function:
        whole: onnx.FunctionProto = schema.function_body
        return whole
    if not schema.has_context_dependent_function:
        return None
    types = [_type_of(v).SerializeToString() for v in inputs]
    for version in sorted(schema.context_dependent_function_opset_versions, reverse=True):
        if version <= node.opset:
            body = onnx.FunctionProto()
            body.ParseFromString(
                schema.get_context_dependent_function_with_opset_version(
                    version, proto.SerializeToString(), types
                )
            )
            return body
    return None


def _defaults(proto: onnx.NodeProto, version: int) -> dict[str, onnx.AttributeProto]:
    """Return the attributes of an operator that hold where a node does not give them."""
    schema = defs.get_schema(proto.op_type, version, proto.domain)
    return {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}


def _type_of(value: Value) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        element = _type_of(value[0]) if value else onnx.TypeProto()
        return onnx.helper.make_sequence_type_proto(element)
    array = value.array if type(value) is ArrayOperand else None
    numpy = array.dtype if array is not None else value.type.dtype.numpy
    shape = array.shape if array is not None else tuple(value.type.shape)
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(numpy))
    named = [d if isinstance(d, int) else str(d) for d in shape]
    return onnx.helper.make_tensor_type_proto(element_type, named)


def _with_attributes(
    node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """A function's node with what the call gives in the place of references to it."""
    if not any(a.ref_attr_name or a.HasField("g") for a in node.attribute):
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            source = given.get(attribute.ref_attr_name)
            if source is not None:
                made.attribute.add().CopyFrom(source)
                made.attribute[-1].name = attribute.name
            continue
        made.attribute.add().CopyFrom(attribute)
        if attribute.HasField("g"):
            inner = [_with_attributes(n, given) for n in attribute.g.node]
            del made.attribute[-1].g.node[:]
            made.attribute[-1].g.node.extend(inner)
    return made
