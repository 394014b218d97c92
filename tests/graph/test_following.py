"""Graphs that are built out of earlier ones, beside equal graphs that are built anew."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.guards import deciding
from treadle.base.loc import UNKNOWN
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph, op_key
from treadle.graph.repeated_builder import FollowingBuilder, Recorded
from treadle.graph.value_numbers import Deciding
from treadle.ops.activation import LeakyRelu
from treadle.ops.constant import Constant
from treadle.ops.elementwise import Add, Mul
from treadle.ops.gather import Nonzero, numbering_anew
from treadle.ops.movement import Broadcast
from treadle.ops.op import Op
from treadle.ops.reduce import Max, Sum
from treadle.ops.unary import Exp

Step = tuple[str, int, int]
KINDS = ("input", "constant", "add", "mul", "exp", "sum", "nonzero", "found", "group", "guard")


PLAIN: dict[str, Op] = {"add": Add(), "mul": Mul(), "exp": Exp()}


def chosen(rng: random.Random, count: int) -> list[Step]:
    return [(rng.choice(KINDS), rng.randrange(50), rng.randrange(50)) for _ in range(count)]


def take(builder: GraphBuilder, steps: list[Step]) -> None:
    """Take the steps as a capture does."""
    deciding_ops = Deciding(builder)
    floats = [_input(builder, 0)]
    found: list[GraphOperand] = []
    count = 1
    for kind, i, j in steps:
        x, y = floats[i % len(floats)], floats[j % len(floats)]
        if kind == "input":
            floats.append(_input(builder, i % 2))
            count += 1
        elif kind == "constant":
            floats.append(builder.constant(np.full(4, i % 3, np.float32)))
        elif kind in PLAIN:
            op = PLAIN[kind]
            floats += deciding_ops.apply(op, (x, y)[: len(op.operands)])
        elif kind == "sum":
            (total,) = deciding_ops.apply(Sum((0,), True), (x,))
            floats += builder.apply(Add(), (total, x))
        elif kind == "nonzero":
            found += deciding_ops.apply(Nonzero(), (x,))
        elif kind == "found" and found:
            found += builder.apply(Add(), (found[i % len(found)],) * 2)
        elif kind == "guard" and found:
            deciding_ops.apply(Max((0,)), (found[i % len(found)],))  # Not of no rows.
        elif kind == "group":
            with builder.at(UNKNOWN, f"g{i % 2}"):
                floats += builder.apply(Mul(), (x, y))
    builder.output(floats[-1], *found[-1:], floats[0])
    order = [*range(count)]
    random.Random(count).shuffle(order)
    builder.arrange_inputs(order)


def _input(builder: GraphBuilder, place: int) -> GraphOperand:
    if isinstance(builder, FollowingBuilder):
        builder.comes_from(place)
    return builder.input(TensorType(dt.float32, (4,)))


def finished(builder: GraphBuilder, steps: list[Step]) -> Graph:
    with deciding({}) as decisions:
        take(builder, steps)
        builder.guard(decisions.guards)
        return builder.build()


def text(graph: Graph) -> str:
    """The digest, taken anew."""
    return Graph(graph.name, graph.inputs, graph.nodes, graph.outputs, graph.guards).digest


@pytest.mark.parametrize("seed", range(40))
def test_followed_graphs_equal_graphs_built_anew(seed: int) -> None:
    rng = random.Random(seed)
    steps = chosen(rng, 16)
    ahead = None
    for _ in range(6):
        with numbering_anew():
            want = finished(GraphBuilder("g"), steps)
        with numbering_anew():
            builder = FollowingBuilder("g", ahead)
            got = finished(builder, steps)
        assert got == want and [v.index for v in got.inputs] == [*range(len(got.inputs))]
        if ahead is not None:
            assert text(ahead.graph) == ahead.graph.digest
            assert (ahead.graph is got) == (ahead.graph == got)
        ahead = builder.recorded
        assert ahead is not None and ahead.graph is got
        if rng.random() < 0.7:
            at = rng.randrange(len(steps))
            steps = [*steps[:at], *chosen(rng, rng.randrange(6)), *steps[at + rng.randrange(3) :]]


def test_what_is_followed_is_not_made_again() -> None:
    steps = chosen(random.Random(1), 12)
    with numbering_anew():
        first = FollowingBuilder("g")
        graph = finished(first, steps)
    with numbering_anew():
        assert finished(FollowingBuilder("g", first.recorded), steps) is graph


def test_constants_are_compared_bit_for_bit() -> None:
    def constant(value: float, ahead: Recorded | None) -> FollowingBuilder:
        builder = FollowingBuilder("g", ahead)
        builder.output(builder.constant(np.float32(value)))
        builder.arrange_inputs(())
        builder.build()
        return builder

    zero = constant(0.0, None).recorded
    assert constant(0.0, zero).recorded is zero
    for other in (-0.0, np.nan, 1.0):
        found = constant(other, zero).recorded
        assert found is not None and found is not zero
        op = found.graph.nodes[0].op
        assert isinstance(op, Constant)
        np.testing.assert_array_equal(op.data.array, np.float32(other))


def test_attributes_of_ops_are_told_apart_as_their_keys_tell_them() -> None:
    n = symbol("n", 2)
    ops = [LeakyRelu(0.0), LeakyRelu(-0.0), LeakyRelu(float("nan")), LeakyRelu(0.5)]
    ops += [Sum((0,), True), Sum((0,), False), Sum((-1,), True)]
    ops += [Broadcast((n, 4)), Broadcast((n + 1, 4)), Broadcast((1, 4)), Broadcast((True, 4))]
    for op in ops:
        first = FollowingBuilder("g")
        first.output(*first.apply(op, (_input(first, 0),)))
        first.arrange_inputs((0,))
        first.build()
        for other in map(copy.copy, ops):
            builder = FollowingBuilder("g", first.recorded)
            assert builder.expects(other, (_input(builder, 0),)) == (op_key(op) == op_key(other))
