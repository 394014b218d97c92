"""A model that grows node by node; every value is known while it does."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
NUMPY: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
}
WEIGHTS = {np.float32: 12, np.int64: 4, np.int32: 3, np.float16: 2, np.float64: 2}
"""How often an element type is taken; 1 for the others."""
RUNTIME = "com.microsoft"
LARGEST = 1 << 14
"""Elements of a value."""
ort.set_default_logger_severity(4)


class Misfit(Exception):
    """What was drawn does not fit together: draw again."""


@dataclass(frozen=True)
class Var:
    """A value of the model: its name, and what it is."""

    name: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype.type


@dataclass
class Growing:
    """A model under construction.

    Attributes:
        rng: decides everything.
        opset: of ONNX's own operators.
    """

    rng: random.Random
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    """Every value, as ONNX Runtime or else the reference evaluator computes it."""
    usable: list[str] = field(default_factory=list)
    """Values that further nodes may read: finite ones of ordinary size."""
    reads: dict[str, list[str]] = field(default_factory=dict)
    """Names of values that a node reads, by the node's."""

    # -- drawing ---------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def shape(self, rank: int, low: int = 1, high: int = 6) -> tuple[int, ...]:
        return tuple(self.rng.randint(low, high) for _ in range(rank))

    def numbers(self, dtype: Any, shape: Sequence[int], low: float = -3, high: float = 3) -> Array:
        """Random numbers; some of them whole, so that ties and equal values occur."""
        seed = np.random.default_rng(self.rng.getrandbits(32))
        if dtype is np.bool_:
            return seed.integers(0, 2, shape).astype(bool)
        if np.issubdtype(dtype, np.integer):
            low = max(low, 0) if np.issubdtype(dtype, np.unsignedinteger) else low
            return seed.integers(int(low), int(high) + 1, shape).astype(dtype)
        made = seed.uniform(low, high, shape)
        whole = np.clip(np.round(made * 2) / 2, low, high)
        return np.asarray(np.where(seed.random(shape) < 0.15, whole, made)).astype(dtype)

    def types(self, op: str, parameter: str, domain: str = "") -> list[Any]:
        """Element types that an operator takes for a type parameter."""
        schema = defs.get_schema(op, self.opset if not domain else 1, domain)
        found = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        return [NUMPY[t] for t in found[parameter] if t in NUMPY]

    def type(self, allowed: Iterable[Any]) -> Any:
        """One of them, the usual ones more often."""
        listed = sorted(set(allowed), key=lambda t: t.__name__)
        return self.rng.choices(listed, [WEIGHTS.get(t, 1) for t in listed])[0]

    # -- values ----------------------------------------------------------------------------

    def new(self, array: Array, *, known: bool | None = None) -> Var:
        """An initializer, or an input of the model."""
        array = np.asarray(array)
        known = self.chance(0.4) if known is None else known
        store = self.weights if known else self.inputs
        name = f"{'w' if known else 'x'}{len(store)}"
        store[name] = array
        self.values[name] = array
        return Var(name, array)

    def known(self, values: Any, dtype: Any = np.int64) -> Var:
        """An initializer."""
        return self.new(np.asarray(values, dtype), known=True)

    def any(
        self,
        types: Iterable[Any],
        fits: Callable[[tuple[int, ...]], bool] = lambda shape: True,
        make: Callable[[], Sequence[int]] | None = None,
        low: float = -3,
        high: float = 3,
    ) -> Var:
        """A value of one of the types, made before or drawn anew."""
        types = list(types)
        found = [n for n in self.usable if self._fits(n, types, fits, low, high)]
        if found and self.chance(0.75):
            name = self.rng.choice(found[-3:])
            return Var(name, self.values[name])
        shape = tuple(make()) if make is not None else self.shape(self.rng.randint(0, 4))
        if not fits(shape):
            raise Misfit
        return self.new(self.numbers(self.type(types), shape, low, high))

    def _fits(self, name: str, types: list[Any], fits: Any, low: float, high: float) -> bool:
        array = self.values[name]
        if array.dtype.type not in types or not fits(array.shape):
            return False
        bounded = (low, high) != (-3, 3) and array.size and array.dtype != bool
        return not bounded or (array.min() >= low and array.max() <= high)

    def like(self, x: Var, low: float = -3, high: float = 3) -> Var:
        """A value that broadcasts with another one, of its type."""
        shape = list(x.shape)
        if self.chance(0.4):
            shape = [1 if self.chance(0.3) else d for d in shape][self.rng.randint(0, len(shape)) :]
        wanted = tuple(shape)
        return self.any([x.dtype], lambda s: s == wanted, lambda: wanted, low, high)

    # -- nodes -----------------------------------------------------------------------------

    def add(
        self,
        op: str,
        inputs: Sequence[Var | None],
        outputs: int = 1,
        domain: str = "",
        outer: Sequence[Var] = (),
        **attrs: Any,
    ) -> None:
        """Append a node, unless nobody can compute it; `outer` is what graphs inside of it read.

        Raises:
            Misfit: neither ONNX Runtime nor the reference evaluator takes it.
        """
        number = len(self.nodes)
        names = [f"v{number}_{i}" for i in range(outputs)]
        node = helper.make_node(
            op,
            ["" if v is None else v.name for v in inputs],
            names,
            name=f"n{number}_{op}",
            domain=domain,
            **{k: v for k, v in attrs.items() if v is not None},
        )
        given = {v.name: v.array for v in (*inputs, *outer) if v is not None}
        arrays = computed(node, given, self.opset)
        if any(a is None or not isinstance(a, np.ndarray) or a.size > LARGEST for a in arrays):
            raise Misfit
        self.nodes.append(node)
        self.reads[node.name] = list(given)
        for name, array in zip(names, arrays, strict=True):
            self.values[name] = array
            if _ordinary(array):
                self.usable.append(name)

    def model(self) -> onnx.ModelProto:
        """The model; what no node reads is a result, and some of the rest."""
        read = {n for names in self.reads.values() for n in names}
        made = [n for node in self.nodes for n in node.output]
        outputs = [n for n in made if n not in read or self.chance(0.2)]
        used = set(outputs).union(read)
        inputs = {n: a for n, a in self.inputs.items() if n in used}
        weights = {n: a for n, a in self.weights.items() if n in used}
        return assembled(self.nodes, inputs, weights, outputs, self.values, self.opset)


def assembled(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Array],
    weights: dict[str, Array],
    outputs: Sequence[str],
    values: dict[str, Array] | None,
    opset: int,
) -> onnx.ModelProto:
    """A model of nodes; without values its results have no declared types."""

    def info(name: str, array: Array | None) -> onnx.ValueInfoProto:
        if array is None:
            return onnx.ValueInfoProto(name=name)
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, code, array.shape)

    graph = helper.make_graph(
        list(nodes),
        "random",
        [info(n, a) for n, a in inputs.items()],
        [info(n, None if values is None else values[n]) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    domains = {node.domain for node in nodes} - {""}
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d, 2 if d == "ai.onnx.ml" else 1) for d in sorted(domains)),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _ordinary(array: Array) -> bool:
    if array.dtype.kind not in "fiub":
        return False
    if array.dtype.kind == "b" or not array.size:
        return bool(array.size)
    wide = array.astype(np.float64)
    return bool(np.isfinite(wide).all() and np.abs(wide).max() < 1e4)


def single(
    node: onnx.NodeProto,
    given: dict[str, Array],
    opset: int,
    made: dict[str, Array] | None = None,
    known: frozenset[str] = frozenset(),
) -> onnx.ModelProto:
    """A model of one node whose inputs are inputs of the model, or initializers if `known`."""
    inputs = {n: a for n, a in given.items() if n not in known}
    weights = {n: a for n, a in given.items() if n in known}
    return assembled([node], inputs, weights, [o for o in node.output if o], made, opset)


def by_runtime(model: onnx.ModelProto, given: dict[str, Array]) -> list[Any]:
    """What ONNX Runtime computes; raises what it raises."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    found: list[Any] = session.run(None, given)
    return found


def by_reference(model: onnx.ModelProto, given: dict[str, Array]) -> list[Any]:
    """What ONNX's reference evaluator computes; raises what it raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found: list[Any] = ReferenceEvaluator(model).run(None, given)
    # It computes in what NumPy makes of small integers; the schema says what comes out.
    types = {o.name: o.type for o in onnx.shape_inference.infer_shapes(model).graph.output}
    return [_typed(v, types[o.name]) for v, o in zip(found, model.graph.output, strict=True)]


def _typed(value: Any, wanted: onnx.TypeProto) -> Any:
    code = wanted.tensor_type.elem_type
    if not code or not isinstance(value, (np.ndarray, np.generic)):
        return value
    return np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(code))


def computed(node: onnx.NodeProto, given: dict[str, Array], opset: int) -> list[Any]:
    """The results of a node.

    Raises:
        Misfit: nobody computes it.
    """
    model = single(node, given, opset)
    for compute in (by_runtime, by_reference):
        try:
            return [np.asarray(v) for v in compute(model, given)]
        except Exception:
            continue
    raise Misfit
