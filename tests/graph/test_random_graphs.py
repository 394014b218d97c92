"""Properties of every graph: its text parses back, passes keep its results, gradients are right."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graph.random_graphs import arrays_for, graphs, same, smooth_graphs

from treadle.base.errors import TreadleError
from treadle.graph.cleanup import Expand
from treadle.graph.evaluate import evaluate
from treadle.graph.gradient import value_and_gradient
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.graph.pass_text import parse_passes
from treadle.graph.passes import run_passes
from treadle.graph.printer import to_text
from treadle.graph.verify import verify
from treadle.ops.constant import ArrayData

PASSES = ("dce", "cse", "simplify", "fold", "drop_markers", "cse,fold,simplify,dce")


@given(graphs(), st.integers(0, 20))
@settings(max_examples=60)
def test_text_parses_back(graph: Graph, inline: int) -> None:
    verify(graph)
    table: dict[str, ArrayData] = {}
    text = to_text(graph, constants=table, inline=inline)
    again = parse(text, table)
    assert to_text(again, inline=inline) == text
    assert again == graph
    assert [v.name for v in again.inputs] == [v.name for v in graph.inputs]
    # Without the table the program is the same, only its data is elsewhere.
    assert parse(text) == graph


@pytest.mark.parametrize("passes", PASSES)
@given(graph=graphs(), seed=st.integers(0, 9), expanded=st.booleans())
@settings(max_examples=20)
def test_passes_keep_results(passes: str, graph: Graph, seed: int, expanded: bool) -> None:
    # Expanding itself may round differently, since composites may have oracles of their own.
    graph = Expand()(graph) if expanded else graph
    arrays = arrays_for(graph, seed)
    try:
        with np.errstate(all="ignore"):
            before = evaluate(graph, arrays)
    except TreadleError:
        return  # The data itself is refused, by an index out of range for example.
    after = run_passes(graph, parse_passes(passes))
    with np.errstate(all="ignore"):
        results = evaluate(after, arrays)
    assert all(same(x, y) for x, y in zip(before, results, strict=True))


@given(smooth_graphs(), st.integers(0, 9))
@settings(max_examples=30)
def test_gradient_is_the_slope(graph: Graph, seed: int) -> None:
    arrays = arrays_for(graph, 2 * seed)
    with_gradient = value_and_gradient(graph)
    verify(with_gradient)
    value, *grads = evaluate(with_gradient, arrays)
    assert same(value, evaluate(graph, arrays)[0])
    rng = np.random.default_rng(seed)
    steps = [rng.standard_normal(a.shape) for a in arrays]
    eps = 1e-5
    up, down = (
        evaluate(graph, [np.asarray(a + s * eps * d) for a, d in zip(arrays, steps, strict=True)])
        for s in (1, -1)
    )
    slope = float(up[0] - down[0]) / (2 * eps)
    found = sum(float(np.sum(g * d)) for g, d in zip(grads, steps, strict=True))
    scale = (
        1 + abs(slope) + sum(float(np.abs(g * d).sum()) for g, d in zip(grads, steps, strict=True))
    )
    assert abs(found - slope) <= 1e-5 * scale
