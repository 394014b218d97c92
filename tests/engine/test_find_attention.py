"""Attention that was written out is found, with its gradient, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.engine.random_graphs import close, small_arrays
from tests.engine.workloads import f32

from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine.prepare.attention import FindAttention
from treadle.graph.builder import trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.gradient import value_and_gradient
from treadle.graph.ir import Graph
from treadle.graph.pass_text import parse_passes
from treadle.graph.passes import run_passes
from treadle.graph.verify import verify
from treadle.ops.matmul import Matmul
from treadle.ops.select import Where
from treadle.ops.softmax import Softmax

HEADS = (2, 3, 5, 4)
QKV = [f32(*HEADS)] * 3


def scores(q: Any, k: Any) -> Any:
    return Matmul(False, True)(q, k)


def mixed(x: Any, v: Any) -> Any:
    return Matmul()(Softmax(x.type.ndim - 1)(x), v)


WAYS: dict[str, tuple[Callable[..., Any], list[TensorType]]] = {
    "plain": (lambda q, k, v: mixed(scores(q, k), v), QKV),
    "scaled": (lambda q, k, v: mixed(scores(q, k) * 0.5, v), QKV),
    "divided": (lambda q, k, v: mixed(scores(q, k) / 3.0, v), QKV),
    "masked": (lambda q, k, v, m: mixed(scores(q, k) * 0.5 + m, v), [*QKV, f32(5, 5)]),
    "hidden": (
        lambda q, k, v, m: mixed(Where()(m, 0.5 * scores(q, k), scores(q, k).constant(-np.inf)), v),
        [*QKV, TensorType(dt.bool_, (5, 5))],
    ),
}


def found(graph: Graph) -> tuple[Graph, list[str]]:
    before = run_passes(graph, parse_passes("cse,simplify,dce"))
    after = FindAttention()(before)
    verify(after)
    given = small_arrays(before, 3)
    if len(given) == 4 and given[3].dtype == np.bool_:
        given[3] = np.tri(5, dtype=np.bool_)
    for x, y in zip(evaluate(before, given), evaluate(after, given), strict=True):
        assert close(x, y)
    return after, [n.op.name for n in after.nodes]


@pytest.mark.parametrize("way", WAYS)
def test_forward(way: str) -> None:
    _, names = found(trace_body(WAYS[way][0], WAYS[way][1], way))
    assert "attention" in names
    assert not {"softmax", "matmul"} & set(names)


@pytest.mark.parametrize("way", WAYS)
def test_forward_and_gradient(way: str) -> None:
    function, types = WAYS[way]

    def loss(*xs: Any) -> Any:
        y = function(*xs)
        return (y * y).sum()

    _, names = found(value_and_gradient(trace_body(loss, types, way), [0, 1, 2]))
    assert names.count("attention") == names.count("attention_grad") == 1
    assert not {"softmax", "matmul"} & set(names)


def test_two_layers() -> None:
    def loss(q: Any, k: Any, v: Any) -> Any:
        y = mixed(scores(q, k) * 0.5, v)
        return mixed(scores(y, k) * 0.5, y + v).sum()

    _, names = found(value_and_gradient(trace_body(loss, QKV, "two"), [0, 1, 2]))
    assert names.count("attention") == names.count("attention_grad") == 2


def _causal(q: Any, k: Any, v: Any) -> Any:
    mask = q.constant(np.triu(np.full((5, 5), -1e9, np.float32), 1))
    return mixed(scores(q, k) * 0.5 + mask, v).sum()


def test_a_constant_triangle_is_causal() -> None:
    after, names = found(value_and_gradient(trace_body(_causal, QKV, "causal"), [0, 1, 2]))
    ops = [n.op for n in after.nodes if n.op.name.startswith("attention")]
    assert len(ops) == 2 and all(op.attributes["causal"] for op in ops)
    assert "matmul" not in names


def _weights_too(q: Any, k: Any, v: Any) -> Any:
    weights = Softmax(3)(scores(q, k))
    return Matmul()(weights, v), weights


OTHERS: dict[str, tuple[Callable[..., Any], list[TensorType]]] = {
    "weights are a result": (_weights_too, QKV),
    "softmax of columns": (lambda q, k, v: Matmul()(Softmax(2)(scores(q, k)), v), QKV),
    "broadcast keys": (lambda q, k, v: mixed(scores(q, k), v), [QKV[0], f32(5, 4), f32(5, 4)]),
    "no product": (lambda q, k, v: mixed(q, v), [f32(*HEADS[:3], 5), *QKV[1:]]),
    "a variable factor": (lambda q, k, v, c: mixed(scores(q, k) * c, v), [*QKV, f32()]),
}


@pytest.mark.parametrize("way", OTHERS)
def test_what_is_something_else_stays(way: str) -> None:
    _, names = found(trace_body(OTHERS[way][0], OTHERS[way][1], "other"))
    assert "attention" not in names


def test_a_mask_that_is_learned_stays_written_out() -> None:
    def loss(q: Any, k: Any, v: Any, m: Any) -> Any:
        return mixed(scores(q, k) * 0.5 + m, v).sum()

    graph = trace_body(loss, [*QKV, f32(*HEADS[:3], 5)], "learned")
    _, names = found(value_and_gradient(graph))
    assert "attention" not in names and "softmax" in names
