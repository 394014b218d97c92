"""Graphs as JSON, for tools: every value with its type, every op with attributes and source line.

The text form (`printer`) is the one that reads back; this one takes no parser to be read. An extent
is a number, or, where it is symbolic, an object with its formula and what is known of it:
`{"extent": "2*n", "low": 2, "high": null, "multiple": 2}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from treadle.base.dtype import DType
from treadle.base.symbol import Dim, bounds, divisor
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value, op_key, symbols_of
from treadle.graph.printer import value_names
from treadle.ops.constant import ArrayData
from treadle.ops.op import Op

FORMAT = "treadle graph 1"


def graph_json(graph: Graph, indent: int | None = None) -> str:
    """A graph as JSON.

    Args:
        graph: what to write; types are inferred already, and nothing is run.
        indent: spaces per level; None for one line.

    Example:
        >>> import json
        >>> from treadle.graph.parser import parse
        >>> graph = parse("graph(%x: float32[2]) { %y = neg(%x) : float32[2] return %y }")
        >>> text = graph_json(graph)
        >>> json.loads(text)["nodes"][0]["outputs"]
        [{'name': '%y', 'dtype': 'float32', 'shape': [2], 'device': '', 'nbytes': 8}]
    """
    data = {"format": FORMAT, **_graph(graph)}
    return json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False)


def _graph(graph: Graph) -> dict[str, Any]:
    names = value_names(graph)
    return {
        "name": graph.name,
        "symbols": [
            {"name": s.name, "low": s.low, "high": s.high, "multiple": s.multiple}
            for s in symbols_of(graph)
        ],
        "guards": [str(g) for g in graph.guards],
        "inputs": [_value(v, names) for v in graph.inputs],
        "nodes": [_node(n, names) for n in graph.nodes],
        "outputs": [names[v] for v in graph.outputs],
    }


def _node(node: Node, names: Mapping[Value, str]) -> dict[str, Any]:
    return {
        "op": node.op.name,
        "attributes": {name: _attribute(value) for name, value in node.op.attributes.items()},
        "inputs": [names[v] for v in node.inputs],
        "outputs": [_value(v, names) for v in node.outputs],
        "group": node.group,
        "file": node.loc.file,
        "line": node.loc.line,
    }


def _value(value: Value, names: Mapping[Value, str]) -> dict[str, Any]:
    return {"name": names[value], **_type(value.type)}


def _type(type_: TensorType) -> dict[str, Any]:
    return {
        "dtype": type_.dtype.name,
        "shape": [_extent(d) for d in type_.shape],
        "device": type_.device,
        "nbytes": type_.nbytes if type_.is_static else None,
    }


def _extent(extent: Dim) -> int | dict[str, Any]:
    if isinstance(extent, int):
        return extent
    low, high = bounds(extent)
    return {
        "extent": str(extent),
        "low": _bound(low),
        "high": _bound(high),
        "multiple": divisor(extent),
    }


def _bound(bound: float) -> int | None:
    return int(bound) if math.isfinite(bound) else None


def _attribute(value: Any) -> Any:
    if isinstance(value, Graph):
        return _graph(value)
    if isinstance(value, Op):
        return op_key(value)
    if isinstance(value, tuple):
        return [_attribute(v) for v in value]
    if isinstance(value, ArrayData):
        shape = list(value.shape)
        return {"dtype": value.dtype.name, "shape": shape, "digest": value.digest}
    if isinstance(value, DType):
        return value.name
    if isinstance(value, TensorType):
        return _type(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
