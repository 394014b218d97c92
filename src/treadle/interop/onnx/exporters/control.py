"""Branches and loops."""

from __future__ import annotations

from typing import Any

from treadle.base import dtype as dt
from treadle.base.errors import UnsupportedOp
from treadle.base.types import TensorType
from treadle.graph.ir import Graph
from treadle.interop.onnx.writer import GraphWriter, OnnxOperand, exports

X = OnnxOperand


def _graph(region: Any) -> Graph:
    if not isinstance(region, Graph):
        raise UnsupportedOp("onnx", "a region is not a graph", hint="capture it with treadle.jit")
    return region


@exports("cond", "finding_cond")
def _cond(w: GraphWriter, op: Any, predicate: X, *xs: X) -> tuple[X, ...]:
    types = op.infer(predicate.type, *(x.type for x in xs))
    branches = {
        "then_branch": w.subgraph(_graph(op.then), xs, "then"),
        "else_branch": w.subgraph(_graph(op.otherwise), xs, "otherwise"),
    }
    return w.node("If", [predicate], *types, **branches)


@exports("while", "finding_while")
def _while(w: GraphWriter, op: Any, *state: X) -> tuple[X, ...]:
    types, count = op.infer(*(x.type for x in state)), len(state)
    (first,) = w.body(_graph(op.condition), state)
    inner = GraphWriter(w)
    turn = inner.input(TensorType(dt.int64, ()), "turn")
    test = inner.input(first.type, "goes_on")
    own = [inner.input(t, "state") for t in op.body.input_types]
    following = inner.body(_graph(op.body), own)
    (again,) = inner.body(_graph(op.condition), following[:count])
    ends = [inner.copied(v) for v in (again, *following)]
    body = inner.proto("turn", [turn, test, *own], ends)
    return w.node("Loop", [None, first, *state], *types, body=body)


@exports("scan")
def _scan(w: GraphWriter, op: Any, *inputs: X) -> tuple[X, ...]:
    types = op.infer(*(x.type for x in inputs))
    body_graph = _graph(op.body)
    if not inputs[op.n_carried :]:
        raise UnsupportedOp("scan", "a scan without stacked inputs cannot be written as ONNX")
    inner = GraphWriter(w)
    own = [inner.input(v.type, "entry") for v in body_graph.inputs]
    ends = [inner.copied(v) for v in inner.body(body_graph, own)]
    body = inner.proto("turn", own, ends)
    count = len(inputs) - op.n_carried
    given: dict[str, Any] = {"num_scan_inputs": count}
    if op.backwards:
        given["scan_input_directions"] = [1] * count
        given["scan_output_directions"] = [1] * (len(types) - op.n_carried)
    return w.node("Scan", inputs, *types, body=body, **given)
