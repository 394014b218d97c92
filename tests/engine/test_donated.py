"""Inputs that may be overwritten: what comes after their last use lies in them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests.engine.random_graphs import close, programs, small_arrays

from treadle.base import dtype as dt
from treadle.base.errors import IndexRangeError
from treadle.base.types import TensorType
from treadle.engine.execute import Executor
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.ops.gather import Take
from treadle.ops.matmul import Matmul
from treadle.ops.unary import Exp

SIDE = 64
CHECKED = Options(check=True)


def compiled(graph: Graph, donated: tuple[int, ...]) -> Executor:
    made = Stages(graph, Interface(donated=donated), CHECKED).compile()
    assert isinstance(made, Executor)
    return made


def products() -> Graph:
    """Three products, one of the next: two values in between, of the inputs' size."""
    builder = GraphBuilder("products")
    x, y = (builder.input(TensorType(dt.float32, (SIDE, SIDE)), name) for name in "xy")
    first = Matmul()(x, y)
    second = Matmul()(first, y)
    builder.output(Matmul()(second, first))
    return builder.build()


def test_the_arena_gives_way_to_inputs() -> None:
    graph = products()
    rng = np.random.default_rng(0)
    plain, frugal = compiled(graph, ()), compiled(graph, (0, 1))
    whole = SIDE * SIDE * 4
    assert plain.peak - frugal.peak == whole
    inputs = [rng.normal(size=(SIDE, SIDE)).astype("float32") for _ in range(2)]
    copies = [x.copy() for x in inputs]
    (expected,) = plain.run([x.copy() for x in inputs])
    (found,) = frugal.run(inputs)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    # x is read once, by the first product, and has the second one's place; y and x[0] are read on.
    assert not np.array_equal(inputs[0], copies[0])
    assert compiled(graph, (0,)).peak == frugal.peak


def test_an_operand_is_written_over() -> None:
    builder = GraphBuilder("over")
    x = builder.input(TensorType(dt.float32, (SIDE, SIDE)), "x")
    made = Exp()(x)
    builder.output(Matmul()(made, made))
    graph = builder.build()
    assert compiled(graph, ()).peak == SIDE * SIDE * 4
    frugal = compiled(graph, (0,))
    assert frugal.peak == 0
    ones = np.ones((SIDE, SIDE), np.float32)
    (found,) = frugal.run([ones])
    np.testing.assert_allclose(np.asarray(found), SIDE * np.e**2, rtol=1e-5)
    np.testing.assert_allclose(ones, np.e, rtol=1e-6)


def test_inputs_that_may_be_read_again_stay_as_they_are() -> None:
    builder = GraphBuilder("checks")
    x = builder.input(TensorType(dt.float32, (SIDE, SIDE)), "x")
    rows = builder.input(TensorType(dt.int64, (SIDE,)), "rows")
    made = Take(0)(Exp()(x), rows)
    builder.output(Matmul()(made, made))
    runner = compiled(builder.build(), (0, 1))
    ones, wrong = np.ones((SIDE, SIDE), np.float32), np.full(SIDE, SIDE)
    with pytest.raises(IndexRangeError):
        runner.run([ones, wrong])
    assert (ones == 1).all() and (wrong == SIDE).all()


@settings(max_examples=25, deadline=None)
@given(programs())
def test_results_are_the_same(graph: Graph) -> None:
    inputs: list[Any] = small_arrays(graph)
    donated = tuple(range(len(graph.inputs)))
    plain, frugal = compiled(graph, ()), compiled(graph, donated)
    assert frugal.peak <= plain.peak
    expected = plain.run([x.copy() for x in inputs])
    found = frugal.run([x.copy() for x in inputs])
    assert all(close(np.asarray(a), np.asarray(b)) for a, b in zip(found, expected, strict=True))
