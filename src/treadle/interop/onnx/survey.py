"""Survey of an ONNX model: its operators, and which of them can be read, without converting
anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import defs

from treadle.interop.onnx import converters  # noqa: F401  (registers them)
from treadle.interop.onnx.nodes import OnnxNode, extent_of
from treadle.interop.onnx.registry import find


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that a model uses.

    Attributes:
        name: with its domain, where that is not ONNX's own.
        nodes: how often.
        supported: whether its nodes can be converted, as far as their kind tells.
    """

    name: str
    nodes: int
    supported: bool


def survey(model: onnx.ModelProto) -> list[Operator]:
    """The operators of a model, those in graphs inside of nodes too, the most frequent first."""
    versions = {_domain(o.domain): o.version for o in model.opset_import}
    own = {(_domain(f.domain), f.name) for f in model.functions}
    bodies = [model.graph.node, *(f.node for f in model.functions)]
    counts = Counter((_domain(n.domain), n.op_type) for body in bodies for n in _inside(body))
    made = []
    for (domain, name), nodes in counts.most_common():
        known = (domain, name) in own or _is_known(domain, name, versions)
        made.append(Operator(f"{domain}.{name}" if domain else name, nodes, known))
    return made


def ends(model: onnx.ModelProto) -> list[tuple[str, str, str]]:
    """Kind ("input" or "output"), name and type of the ends of a model."""
    initial = {i.name for i in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in initial]
    made = [("input", i.name, _spelled(i)) for i in inputs]
    return [*made, *(("output", o.name, _spelled(o)) for o in model.graph.output)]


def _spelled(value: onnx.ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return (kind or "unknown").removesuffix("_type")
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    dims = [str(extent_of(d)) for d in tensor.shape.dim]
    return f"{'float32' if name == 'float' else name}[{','.join(dims)}]"


def _is_known(domain: str, name: str, versions: Mapping[str, int]) -> bool:
    version = versions.get(domain, 1)
    if find(OnnxNode(name, domain, version, {}, "", 0, 0)) is not None:
        return True
    try:
        schema: Any = defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _inside(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs that their attributes hold."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name
