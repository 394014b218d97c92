"""`OnnxModel`: an ONNX model as a module."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from treadle.base.dtype import as_dtype
from treadle.base.errors import LoadError
from treadle.interop.onnx import converters  # noqa: F401  (registers them)
from treadle.interop.onnx.nodes import OnnxNode, Value, extent_of, known, supported
from treadle.interop.onnx.registry import find
from treadle.interop.onnx.runner import OnnxRunner, attribute_value
from treadle.interop.onnx.sizes import Extents
from treadle.interop.onnx.stored import MemoryBudget, dense
from treadle.module.module import Module
from treadle.ops.abstract import ArrayOperand
from treadle.tensor import Parameter, Tensor

QUANTIZED = "QLinear", "QGemm"
"""Prefix of the names of operators that take scales along."""
LEAST_PARAMETER = 2
"""Elements from which on an initializer is a parameter; single numbers are constants."""


class OnnxModel(Module):
    """A model that computes what an ONNX model does; it can be compiled, trained and dumped.

    Float initializers, and what nodes make of constants alone, are parameters, whose names are
    those of the model with `_` for what Python names cannot have. Quantized weights, which are
    matrices of bytes, are buffers, and stay bytes. Other integers, scales of quantized values, and
    whatever decides shapes are constants. The results are those of the graph in order; nodes are
    run one by one, so that a compiled call captures all of it, and its ops bear the names of the
    nodes.

    Args:
        model: the model, with its initializers in place.
        room: counts what nodes make of constants; None: nobody does.

    Attributes:
        input_names, output_names: of the graph, in order; initializers are not inputs.
        input_types: element type and declared shape by name; extents may be symbols.

    Raises:
        LoadError: the model has no graph, or uses names twice.
    """

    def __init__(self, model: onnx.ModelProto, room: MemoryBudget | None = None) -> None:
        super().__init__()
        graph = model.graph
        self._proto = model
        self._constants: dict[str, Value] = {}
        self._weights: dict[str, str] = {}
        self._functions = {(_plain(f.domain), f.name): f for f in model.functions}
        self._opsets = {_plain(o.domain): o.version for o in model.opset_import}
        self._nodes: list[onnx.NodeProto] = []
        self._take_constants(graph, room)
        initial = {i.name for i in graph.initializer}
        self.input_names = [i.name for i in graph.input if i.name not in initial]
        self.output_names = [o.name for o in graph.output]
        self.input_types = {i.name: _described(i) for i in graph.input if i.name not in initial}
        self._optional = {
            i.name for i in graph.input if i.type.WhichOneof("value") == "optional_type"
        }

    def _take_constants(self, graph: onnx.GraphProto, room: MemoryBudget | None) -> None:
        """Initializers and what nodes make of them alone, as parameters or as arrays."""
        deciding = _deciding(graph, self._opsets)
        self._scales = _scales(graph)
        taken: set[str] = set()
        for tensor in graph.initializer:
            if tensor.name in taken:
                raise LoadError("onnx", f"two initializers are called {tensor.name!r}")
            taken.add(tensor.name)
            self._take(tensor.name, numpy_helper.to_array(tensor), deciding)
        for sparse in graph.sparse_initializer:
            self._take(sparse.values.name, dense(sparse, "onnx"), deciding)
        before = set(self._constants)
        self._nodes = self._runner(room).folded(graph.node, self._constants)
        for name in set(self._constants) - before:
            value = self._constants[name]
            if type(value) is ArrayOperand:
                del self._constants[name]
                self._take(name, value.array, deciding)

    def _take(self, name: str, array: Any, deciding: set[str]) -> None:
        """Keep an array: a parameter if gradients may flow to it, else a constant."""
        trained = supported(array.dtype) and as_dtype(array.dtype).is_float
        taken = array.dtype in (np.int8, np.uint8) and array.ndim > 1
        taken = taken or (trained and name not in self._scales)
        if not taken or array.size < LEAST_PARAMETER or name in deciding:
            self._constants[name] = known(array)
            return
        attribute = self._attribute(name)
        kind = Parameter if trained else Tensor
        setattr(self, attribute, kind(array, dtype=array.dtype))
        self._weights[name] = attribute

    def _runner(self, room: MemoryBudget | None = None) -> OnnxRunner:
        return OnnxRunner(self._opsets, self._functions, room=room)

    def _attribute(self, name: str) -> str:
        """A name for Python that no other attribute has."""
        base = re.sub(r"\W", "_", name, flags=re.ASCII) or "weight"
        base = f"w{base}" if base[0].isdigit() or base[0] == "_" else base
        found, number = base, 1
        while found in self.__dict__ or getattr(type(self), found, None) is not None:
            found, number = f"{base}_{number}", number + 1
        return found

    @property
    def provenance(self) -> dict[str, Any]:
        """The model's origin, as its file says: producer, IR version and opsets."""
        return {
            "framework": "onnx",
            "producer": f"{self._proto.producer_name} {self._proto.producer_version}".strip(),
            "ir_version": self._proto.ir_version,
            "opsets": {domain or "ai.onnx": n for domain, n in sorted(self._opsets.items())},
        }

    @property
    def open_axes(self) -> dict[int, dict[int, str]]:
        """Names of axes whose extents the file leaves open, by number of the input and axis.

        `jit.compile(model)` makes them symbols once one of them changes. Axes without a name have
        one of their own.
        """
        found: dict[int, dict[int, str]] = {}
        for i, name in enumerate(self.input_names):
            for axis, extent in enumerate(self.input_types[name][1]):
                if isinstance(extent, str):
                    own = f"{name}.{axis}" if extent == "?" else extent
                    found.setdefault(i, {})[axis] = own
        return found

    @property
    def metadata(self) -> dict[str, str]:
        """The file's own words beside the graph: names of classes, settings, authors."""
        return {entry.key: entry.value for entry in self._proto.metadata_props}

    def choose_outputs(self, names: Sequence[str]) -> None:
        """Make other values the results.

        Args:
            names: of values, or of nodes, whose first result is meant.

        Raises:
            LoadError: the model has nothing of a name.
        """
        first = {n.name: n.output[0] for n in self._proto.graph.node if n.name and n.output}
        values = {v for n in self._proto.graph.node for v in n.output if v}
        unknown = [n for n in names if n not in values and n not in first]
        if unknown:
            near = get_close_matches(unknown[0], [*values, *first], 3)
            raise LoadError(
                "onnx",
                f"the model has no value and no node {', '.join(unknown)}",
                hint=f"did you mean {' or '.join(near)}?" if near else "",
            )
        self.output_names = [n if n in values else first[n] for n in names]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model.

        Args:
            inputs: tensors or arrays, one per name of `input_names`; the last ones may be left out
                where they are optional.
            named: inputs by name instead.

        Returns:
            The result, or a tuple where there are several; lists for sequences, None for empty
            optionals, arrays for element types that tensors do not have.

        Raises:
            LoadError: an input is missing, or has a name that the model does not have.
            UnsupportedOp: a node has no converter, or decides a shape by data while compiling.
        """
        results = tuple(_exported(v) for v in self.values(self._bound(inputs, named)))
        return results[0] if len(results) == 1 else results

    def values(self, names: dict[str, Value]) -> list[Value]:
        """The outputs from the inputs by name, as values (see `nodes`)."""
        own = {name: getattr(self, attribute) for name, attribute in self._weights.items()}
        found = {**self._constants, **own, **names}
        return self._runner().run(self._nodes, self.output_names, found)

    def _bound(self, inputs: Sequence[Any], named: dict[str, Any]) -> dict[str, Value]:
        unknown = set(named) - set(self.input_names)
        if unknown or len(inputs) > len(self.input_names):
            raise LoadError(
                "onnx",
                f"the model has no input {', '.join(sorted(unknown)) or len(inputs)}",
                saw=f"inputs {', '.join(self.input_names)}",
            )
        given = {**dict(zip(self.input_names, inputs, strict=False)), **named}
        missing = [n for n in self.input_names if n not in given and n not in self._optional]
        if missing:
            raise LoadError("onnx", f"inputs are missing: {', '.join(missing)}")
        return {n: self._declared(n, _imported(given.get(n))) for n in self.input_names}

    def _declared(self, name: str, value: Value) -> Value:
        """An input as the element type that the model declares: tensors are made with others."""
        declared = self.input_types[name][0]
        if value is None or isinstance(value, list) or not supported(declared):
            return value
        given, wanted = value.type.dtype, as_dtype(declared)
        if given is wanted:
            return value
        integers = given.is_integer and wanted.is_integer
        if not integers and not np.can_cast(given.numpy, wanted.numpy, "same_kind"):
            raise LoadError(
                "onnx",
                f"input {name!r} is {wanted.name} in the model",
                saw=f"{given.name}{list(value.type.shape)}",
                hint=f'cast it with astype("{wanted.name}")',
            )
        return value.astype(wanted)


def _described(value: onnx.ValueInfoProto) -> tuple[np.dtype[Any], tuple[int | str, ...]]:
    """Element type and shape of an input; "?" stands for what is not known at all."""
    kind = value.type.tensor_type
    if not kind.elem_type or kind.elem_type == onnx.TensorProto.STRING:
        return np.dtype(object), ("?",)
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except KeyError:
        problem = f"input {value.name!r} has an element type that does not exist"
        raise LoadError("onnx", problem, saw=str(kind.elem_type)) from None
    return dtype, tuple(extent_of(d) for d in kind.shape.dim)


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _imported(value: Any) -> Value:
    if value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)):
        return [_imported(v) for v in value]
    array = np.asarray(value)
    return Tensor(array, dtype=array.dtype) if supported(array.dtype) else known(array)


def _exported(value: Value) -> Any:
    if isinstance(value, list):
        return [_exported(v) for v in value]
    if isinstance(value, Extents):
        return value.computed()
    if type(value) is not ArrayOperand:
        return value
    array = np.asarray(value.array)
    return Tensor(array, dtype=array.dtype) if supported(array.dtype) else array


def _deciding(graph: onnx.GraphProto, opsets: dict[str, int]) -> set[str]:
    """Names of initializers that some node needs to know, in this graph or one inside."""
    found: set[str] = set()
    for proto in graph.node:
        domain = _plain(proto.domain)
        node = OnnxNode(proto.op_type, domain, opsets.get(domain, 1), {}, "", 0, 0)
        entry = find(node)
        for position, name in enumerate(proto.input):
            if entry is not None and (entry.host == (-1,) or position in entry.host):
                found.add(name)
        for attribute in proto.attribute:
            if attribute.HasField("g"):
                found |= _deciding(attribute_value(attribute), opsets)
    return found


def _scales(graph: onnx.GraphProto) -> set[str]:
    """Names of scales and zero points, and of biases that are multiples of scales."""
    found: set[str] = set()
    for proto in graph.node:
        if proto.op_type in ("QuantizeLinear", "DequantizeLinear"):
            found.update(proto.input[1:])
        if proto.op_type == "DequantizeLinear":
            found.update(proto.output)
        if proto.op_type.startswith(QUANTIZED):
            found.update(proto.input)
    return found
