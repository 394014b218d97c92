"""Writing ONNX graphs: operands that append a node for every op applied to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import UnsupportedOp
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Value
from treadle.ops.abstract import constant_array
from treadle.ops.composite import Composite, expand
from treadle.ops.constant import Constant
from treadle.ops.fused import Fused
from treadle.ops.op import Op
from treadle.ops.operators import Operators

OPSET = 21
"""The version of the operators that are written: what runtimes of the last years read."""
IR_VERSION = 10


class OnnxOperand(Operators):
    """A value of an ONNX graph under construction."""

    __slots__ = ("_type", "name", "writer")

    def __init__(self, writer: GraphWriter, type_: TensorType, name: str) -> None:
        self.writer = writer
        self._type = type_
        self.name = name

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self._type

    def apply(self, op: Op, inputs: tuple[OnnxOperand, ...], /) -> tuple[OnnxOperand, ...]:
        """Append nodes."""
        return self.writer.apply(op, inputs)

    def constant(self, value: Any, dtype: DType | None = None) -> OnnxOperand:
        """An initializer."""
        return self.writer.constant(constant_array(value, dtype, self._type.dtype))

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape as numbers.

        Raises:
            UnsupportedOp: an extent is symbolic.
        """
        if not self._type.is_static:
            raise UnsupportedOp(
                "onnx",
                "an op with symbolic extents cannot be written",
                saw=str(self._type),
                hint="export with inputs of fixed shapes",
            )
        return tuple(int(d) for d in self._type.shape)


Export: TypeAlias = Callable[..., "OnnxOperand | tuple[OnnxOperand, ...]"]
"""Takes the writer, the op and its operands; writes nodes."""
EXPORTERS: dict[str, Export] = {}
"""By the name of the op; those that declare an ONNX operator of their own need none."""


def exports(*names: str) -> Callable[[Export], Export]:
    """Register how ops are written; open to users for ops of their own."""

    def add(export: Export) -> Export:
        EXPORTERS.update(dict.fromkeys(names, export))
        return export

    return add


class GraphWriter:
    """Nodes and initializers of one graph; those of graphs inside share the names.

    Args:
        outer: the writer of the graph around this one.
    """

    def __init__(self, outer: GraphWriter | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = outer.initializers if outer else []
        self._names: dict[str, int] = outer._names if outer else {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], OnnxOperand] = (
            outer._constants if outer else {}
        )
        self._results: tuple[str, ...] = ()
        self.domains: dict[str, int] = outer.domains if outer else {}
        self._foreign: list[OnnxOperand] = []

    # -- names -----------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """A name that nothing else has: the one wished for, or with a number behind it."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        if not count:
            return name
        return self.fresh(f"{name}_{count}")

    @contextmanager
    def naming(self, names: Sequence[str]) -> Iterator[None]:
        """Give these names to the results of the last op in the block, as far as they are free."""
        before, self._results = self._results, tuple(names)
        try:
            yield
        finally:
            self._results = before

    # -- values ----------------------------------------------------------------------------

    def input(self, type_: TensorType, name: str) -> OnnxOperand:
        """A value that comes from outside."""
        return OnnxOperand(self, type_, self.fresh(name))

    def constant(self, array: Array, name: str = "") -> OnnxOperand:
        """An initializer; small equal ones are one."""
        own = np.ascontiguousarray(array).reshape(array.shape)
        key = own.dtype.name, own.shape, own.tobytes() if own.size <= 16 else b""
        found = self._constants.get(key) if key[2] and not name else None
        if found is None:
            kind = TensorType(as_dtype(own.dtype), own.shape)
            found = OnnxOperand(self, kind, self.fresh(name or "constant"))
            self.initializers.append(numpy_helper.from_array(own, found.name))
            if key[2]:
                self._constants[key] = found
        return found

    def ints(self, *values: int) -> OnnxOperand:
        """A vector of int64."""
        return self.constant(np.array(values, np.int64))

    def node(
        self,
        op_type: str,
        inputs: Sequence[OnnxOperand | None],
        *types: TensorType,
        **attributes: Any,
    ) -> tuple[OnnxOperand, ...]:
        """Append a node; one result per type.

        Where the operator does not take the element type, it runs in a wider one.
        """
        wide = _wider(op_type, inputs)
        if wide is not None:
            return self._in_wider(op_type, inputs, types, attributes, *wide)
        wished = self._results if len(self._results) == len(types) else ()
        outputs = [
            OnnxOperand(self, t, self.fresh((wished[i] if wished else "") or op_type.lower()))
            for i, t in enumerate(types)
        ]
        given = {k: v for k, v in attributes.items() if v is not None}
        names = ["" if x is None else x.name for x in inputs]
        self.nodes.append(
            helper.make_node(op_type, names, [o.name for o in outputs], outputs[0].name, **given)
        )
        return tuple(outputs)

    def foreign(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[OnnxOperand],
        types: Sequence[TensorType],
        attributes: Sequence[onnx.AttributeProto],
    ) -> tuple[OnnxOperand, ...]:
        """Append a node of another domain, of which nobody else knows the types."""
        wished = self._results if len(self._results) == len(types) else ()
        outputs = [
            OnnxOperand(self, t, self.fresh((wished[i] if wished else "") or op_type.lower()))
            for i, t in enumerate(types)
        ]
        names = [x.name for x in inputs], [y.name for y in outputs]
        node = helper.make_node(op_type, *names, outputs[0].name, domain=domain)
        node.attribute.extend(attributes)
        self.nodes.append(node)
        self.domains[domain] = 1
        self._foreign += outputs
        return tuple(outputs)

    def _in_wider(
        self,
        op_type: str,
        inputs: Sequence[OnnxOperand | None],
        types: tuple[TensorType, ...],
        attributes: dict[str, Any],
        variable: str,
        dtype: DType,
    ) -> tuple[OnnxOperand, ...]:
        """A node between casts of whatever is of one type variable of the operator."""
        schema: Any = defs.get_schema(op_type, OPSET)
        casts = [
            self._cast(x, dtype) if x is not None and _formal(schema.inputs, i) == variable else x
            for i, x in enumerate(inputs)
        ]
        inside = [
            TensorType(dtype, t.shape) if _formal(schema.outputs, i) == variable else t
            for i, t in enumerate(types)
        ]
        with self.naming(()):
            made = self.node(op_type, casts, *inside, **attributes)
        pairs = zip(made, types, strict=True)
        return tuple([m if m.type.dtype is t.dtype else self._cast(m, t.dtype) for m, t in pairs])

    def _cast(self, x: OnnxOperand, dtype: DType) -> OnnxOperand:
        return self.one("Cast", [x], TensorType(dtype, x.type.shape), to=element_type(dtype))

    def one(
        self,
        op_type: str,
        inputs: Sequence[OnnxOperand | None],
        type_: TensorType,
        **attributes: Any,
    ) -> OnnxOperand:
        """Append a node with one result."""
        return self.node(op_type, inputs, type_, **attributes)[0]

    # -- ops -------------------------------------------------------------------------------

    def apply(self, op: Op, inputs: tuple[OnnxOperand, ...]) -> tuple[OnnxOperand, ...]:
        """Write an op: by its exporter, as the operator it declares, or by its body.

        Raises:
            UnsupportedOp: there is no way to write it.
        """
        own = EXPORTERS.get(op.name)
        if own is not None:
            made = own(self, op, *inputs)
            return made if isinstance(made, tuple) else (made,)
        if op.onnx is not None:
            attributes = {his: getattr(op, mine) for mine, his in op.onnx.attributes}
            return self.node(op.onnx.op_type, inputs, *_inferred(op, inputs), **attributes)
        if isinstance(op, Composite):
            return expand(op, inputs)
        if isinstance(op, Fused) and isinstance(op.body, Graph):
            return tuple(self.body(op.body, inputs))
        raise UnsupportedOp(
            op.name,
            "it cannot be written as ONNX",
            saw=op.saw(tuple(x.type for x in inputs)),
            hint="register a way with treadle.interop.onnx.exports",
        )

    def body(self, graph: Graph, inputs: Sequence[OnnxOperand]) -> list[OnnxOperand]:
        """Write the nodes of a graph on these inputs; its outputs."""
        values: dict[Value, OnnxOperand] = dict(zip(graph.inputs, inputs, strict=True))
        for node in graph.nodes:
            if isinstance(node.op, Constant):
                name = node.names[0] if node.names else ""
                values[node.output] = self.constant(node.op.data.array, name)
                continue
            names = [v.name for v in node.outputs]
            with self.naming(names if any(names) else [node.group] if node.group else ()):
                made = self.apply(node.op, tuple(values[v] for v in node.inputs))
            values.update(zip(node.outputs, made, strict=True))
        return [values[v] for v in graph.outputs]

    def subgraph(self, graph: Graph, inputs: Sequence[OnnxOperand], name: str) -> onnx.GraphProto:
        """A graph inside of a node that reads its inputs from outside."""
        inner = GraphWriter(self)
        outputs = [inner.copied(o) for o in inner.body(graph, [inner.adopted(x) for x in inputs])]
        return inner.proto(name, (), outputs)

    def adopted(self, value: OnnxOperand) -> OnnxOperand:
        """A value of another writer, for use here."""
        return OnnxOperand(self, value.type, value.name)

    def copied(self, value: OnnxOperand) -> OnnxOperand:
        """A value that this graph makes: graphs inside of nodes return nothing else."""
        return self.one("Identity", [value], value.type)

    def proto(
        self, name: str, inputs: Sequence[OnnxOperand], outputs: Sequence[OnnxOperand]
    ) -> onnx.GraphProto:
        """The graph; initializers belong to the outermost one."""
        ends = ([_described(x) for x in inputs], [_described(x) for x in outputs])
        known = {x.name for x in outputs}
        inside = [_described(x) for x in self._foreign if x.name not in known]
        return helper.make_graph(self.nodes, name, *ends, value_info=inside)


_WIDER = {
    "bool": ("int32", "float32"),
    "uint8": ("int32", "float32"),
    "int8": ("int32", "float32"),
    "uint16": ("int32", "float32"),
    "int16": ("int32", "float32"),
    "uint32": ("int64", "float64"),
    "int32": ("int64", "float64"),
    "uint64": ("float64",),
    "int64": ("float64",),
    "bfloat16": ("float32",),
}
"""Element types that hold all values of another one (64-bit integers up to 2^53), best first."""


def _wider(op_type: str, inputs: Sequence[OnnxOperand | None]) -> tuple[str, DType] | None:
    """The type variable and the element type to widen it to, if an input's type is not taken."""
    schema: Any = defs.get_schema(op_type, OPSET)
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for i, x in enumerate(inputs):
        variable = _formal(schema.inputs, i)
        if x is None or variable not in allowed or _spelled(x.type.dtype) in allowed[variable]:
            continue
        for name in _WIDER.get(x.type.dtype.name, ()):
            if _spelled(as_dtype(name)) in allowed[variable]:
                return variable, as_dtype(name)
    return None


def _formal(formals: Any, i: int) -> str:
    """The type of a formal parameter; the last one may stand for many."""
    return str(formals[min(i, len(formals) - 1)].type_str) if len(formals) else ""


def _spelled(dtype: DType) -> str:
    name = {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)
    return f"tensor({name})"


def _inferred(op: Op, inputs: Sequence[OnnxOperand]) -> tuple[TensorType, ...]:
    return op.infer(*(x.type for x in inputs))


def _described(value: OnnxOperand) -> onnx.ValueInfoProto:
    shape = [d if isinstance(d, int) else str(d) for d in value.type.shape]
    return helper.make_tensor_value_info(value.name, element_type(value.type.dtype), shape)


def element_type(dtype: DType) -> int:
    """The number of an element type in ONNX's list."""
    if dtype.name == "bfloat16":
        return int(TensorProto.BFLOAT16)
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))
