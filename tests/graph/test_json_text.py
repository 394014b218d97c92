"""Graphs as JSON: every value with its type, extents with what is known of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.engine import graph_json
from treadle.graph.json_text import _attribute
from treadle.graph.parser import parse
from treadle.graph.printer import value_names
from treadle.ops.op import REGISTRY

SYMBOLIC = """
graph g[n: 2..64 step 2](%x: float32[n,3]) where n - 4 >= 0 {
  %y, %i = sort{axis=0, descending=False}(%x) : float32[n,3], int32[n,3] in "s"  # at net.py:7 in f
  %z = concat{axis=0}(%y, %x) : float32[2*n,3]
  %c = constant{data=float32[2](1.0, inf), device=''}() : float32[2]
  return %z, %c
}
"""


def test_every_value_has_a_name_and_a_type() -> None:
    graph = parse(SYMBOLIC)
    data = json.loads(graph_json(graph))
    values = [*data["inputs"], *(v for n in data["nodes"] for v in n["outputs"])]
    assert [v["name"] for v in values] == list(value_names(graph).values())
    assert [v["dtype"] for v in values] == ["float32", "float32", "int32", "float32", "float32"]
    assert data["outputs"] == ["%z", "%c"]
    assert data["symbols"] == [{"name": "n", "low": 2, "high": 64, "multiple": 2}]
    assert data["guards"] == [str(g) for g in graph.guards]


def test_extents_have_ranges_and_nodes_have_places() -> None:
    sort, concat, constant = json.loads(graph_json(parse(SYMBOLIC)))["nodes"]
    extent = {"extent": "2*n", "low": 4, "high": 128, "multiple": 4}
    assert concat["outputs"][0]["shape"] == [extent, 3]
    assert concat["outputs"][0]["nbytes"] is None
    assert (sort["file"], sort["line"], sort["group"]) == ("net.py", 7, "s")
    assert sort["attributes"] == {"axis": 0, "descending": False}
    assert constant["attributes"]["data"]["shape"] == [2]
    assert constant["outputs"][0]["nbytes"] == 8


def test_a_function_of_open_extents_is_captured() -> None:
    @mge.jit.compile(dynamic={0: {0: "batch"}})
    def f(x: mge.Tensor) -> Any:
        y = mge.jit.cond(x.sum() > 0, lambda: x * 2, lambda: x)
        return F.concat([y, x]).reshape((-1,))

    data = json.loads(graph_json(f.graph(F.ones((4, 3))), indent=1))
    assert [s["name"] for s in data["symbols"]] == ["batch"]
    (branch,) = [n for n in data["nodes"] if n["op"] == "cond"]
    assert [n["op"] for n in branch["attributes"]["then"]["nodes"]][-1] == "mul"
    extents = data["nodes"][-1]["outputs"][0]["shape"]
    assert extents[0]["extent"] == "6*batch" and extents[0]["low"] == 12


def test_a_graph_is_asked_for_without_a_program() -> None:
    @mge.jit.compile
    def f(x: mge.Tensor) -> Any:
        return mge.jit.cond(x.sum() > 0, lambda: x * 2, lambda: x)

    f.graph(F.ones((4, 3)))
    (variant,) = f.variants
    assert variant.inspected.optimized is None and variant.inspected.executor is None


def test_the_first_wrong_node_is_named() -> None:
    @mge.jit.compile
    def wrong(x: mge.Tensor) -> mge.Tensor:
        return F.matmul(F.exp(x), x)

    with pytest.raises(ShapeError, match="matmul") as error:
        wrong.graph(F.ones((4, 3)))
    assert "test_json_text.py" in str(error.value.at)


def test_attributes_of_every_op_can_be_written() -> None:
    for cls in REGISTRY.values():
        for sample in cls.samples():
            for value in sample.op.attributes.values():
                assert json.dumps(_attribute(value), allow_nan=False), sample.op.name
