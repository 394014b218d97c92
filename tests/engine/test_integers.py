"""Products of numbers that were integers are computed on the integers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.builder import GraphOperand, trace_body
from treadle.graph.ir import Graph, regions_of
from treadle.inspect import Inspected
from treadle.ops.conv import Conv
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Concat
from treadle.ops.pool import MaxPool
from treadle.ops.quant import Dequantize, FakeQuantize, Quantize, limits_of
from treadle.ops.select import Clip
from treadle.ops.unary import Relu

RNG = np.random.default_rng(0)
STEP, OUT = 0.05, 0.11
GRIDS = {
    "uint8": (dt.uint8, 117),
    "uint8 from 0": (dt.uint8, 0),
    "uint8 centered": (dt.uint8, 128),
    "int8": (dt.int8, 0),
    "int8 from its least": (dt.int8, -128),
}
ONE = ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)


def levels(x: GraphOperand, step: float, dtype: dt.DType, zero: int) -> GraphOperand:
    low, high = limits_of(dtype)
    by = x.constant(step, dt.float32)
    return Quantize(dtype, low, high, None, True)(x, by, x.constant(zero, dt.int32))


def numbers(q: GraphOperand, step: float, zero: int) -> GraphOperand:
    return Dequantize()(q, q.constant(step, dt.float32), q.constant(zero, dt.int32))


def rounded(x: GraphOperand, step: float, grid: tuple[dt.DType, int]) -> GraphOperand:
    return numbers(levels(x, step, *grid), step, grid[1])


def weight(like: GraphOperand, shape: tuple[int, ...], axis: int = 0, zero: int = 0) -> Any:
    """A weight with a scale per channel."""
    stored = RNG.integers(-127, 128, shape).astype(np.int8)
    scales = RNG.uniform(0.001, 0.01, shape[axis]).astype(np.float32)
    zeros = np.full(shape[axis], zero, np.int32)
    q, by, at = (like.constant(a, dt.as_dtype(a.dtype)) for a in (stored, scales, zeros))
    return Dequantize(axis)(q, by, at)


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    return trace_body(function, [TensorType(dt.float32, s) for s in shapes], "test")


def ops_of(graph: Graph) -> set[str]:
    found = set()
    for node in graph.nodes:
        found.add(node.op.name)
        for body in regions_of(node.op):
            found |= ops_of(body)
    return found


def check(graph: Graph, step: float = OUT, *, integers: bool = True) -> Inspected:
    """Compare with op after op, and look for products of real numbers in what runs."""
    arrays = [RNG.normal(0, 2, v.type.shape).astype(np.float32) for v in graph.inputs]
    program = Inspected(Stages(graph))
    (found,), (wanted,) = program.compile().run(arrays), graph.evaluate(arrays)
    np.testing.assert_allclose(found, wanted, atol=1.01 * step)
    assert np.mean(found != wanted) < 0.01
    assert np.unique(wanted).size > 20
    left = ops_of(program.lower()) & {"conv", "matmul"}
    assert bool(left) != integers, left
    return program


@pytest.mark.parametrize("grid", GRIDS)
def test_a_convolution_between_roundings(grid: str) -> None:
    def body(x: GraphOperand) -> GraphOperand:
        bias = x.constant(RNG.normal(size=(1, 8, 1, 1)).astype(np.float32), dt.float32)
        x = rounded(x, STEP, GRIDS[grid])
        y = Conv(*ONE)(x, weight(x, (8, 16, 3, 3))) + bias
        y = rounded(Relu()(y), OUT, (dt.int8, -128))
        return rounded(Conv(*ONE)(y, weight(y, (4, 8, 3, 3))), OUT, GRIDS[grid])

    check(graph_of(body, (2, 16, 9, 7)))


@pytest.mark.parametrize("grid", ["uint8", "int8"])
def test_matrix_products_between_roundings(grid: str) -> None:
    def body(x: GraphOperand, y: GraphOperand) -> GraphOperand:
        x = rounded(x, STEP, GRIDS[grid])
        z = Matmul(False, True)(x, weight(x, (24, 40)))
        z = rounded(z + x.constant(RNG.normal(size=24).astype(np.float32)), OUT, GRIDS[grid])
        both = Matmul()(z, weight(z, (24, 12), 1))
        # Of two values that the program computes, with zero points each.
        other = rounded(y, STEP, (dt.uint8, 100))
        return rounded(Matmul(True)(rounded(both, OUT, GRIDS[grid]), other), 10 * OUT, GRIDS[grid])

    check(graph_of(body, (3, 10, 40), (3, 10, 6)), 10 * OUT)


def test_moves_and_maxima_work_on_the_integers() -> None:
    def body(x: GraphOperand) -> GraphOperand:
        x = rounded(x, STEP, (dt.int8, -128))
        pooled = MaxPool((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), False)(x)
        joined = Concat(1)(pooled, pooled)
        turned = joined.transpose((0, 2, 3, 1)).reshape((2 * 4 * 3, 32))
        return rounded(Matmul()(turned, weight(x, (32, 5), 1)), OUT, GRIDS["uint8"])

    program = check(graph_of(body, (2, 16, 8, 6)))
    stored = [v for n in program.lower().nodes if n.inputs for v in n.outputs]
    assert [v.type.dtype for v in stored].count(dt.float32) == 1  # the result


def test_limits_become_those_of_the_rounding_and_biases_join_the_sums() -> None:
    def body(x: GraphOperand) -> GraphOperand:
        x = rounded(x, STEP, GRIDS["uint8 from 0"])
        w = weight(x, (8, 16, 1, 1))
        scale = w.value.producer.inputs[1].producer.op.data.array
        bias = (RNG.integers(-900, 900, 8) * (STEP * scale.astype(np.float64))).astype(np.float32)
        window = ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)
        y = Conv(*window)(x, w) + x.constant(bias.reshape(1, 8, 1, 1))
        return levels(Clip(0.0, 3.0)(y), 0.02, dt.uint8, 0)

    program = check(graph_of(body, (1, 16, 8, 8)), 1)
    prepared = program.prepared
    assert prepared is not None and "clip" not in ops_of(prepared)
    sums = [n for n in prepared.nodes if n.op.name == "add"]
    assert [n.output.type.dtype for n in sums] == [dt.int32]


@pytest.mark.parametrize(
    ("zero", "why"), [(3, "not symmetric"), (0, "output channels")], ids=["zero", "axis"]
)
def test_weights_of_other_kinds_stay_real_numbers(zero: int, why: str) -> None:
    def body(x: GraphOperand) -> GraphOperand:
        x = rounded(x, STEP, GRIDS["uint8"])
        w = weight(x, (8, 16, 3, 3), 0 if zero else 1, zero)
        return rounded(Conv(*ONE)(x, w), OUT, GRIDS["uint8"])

    program = check(graph_of(body, (1, 16, 8, 8)), integers=False)
    assert any(why in d.reason for d in program.report.decisions)


def test_sums_that_may_not_fit_stay_real_numbers() -> None:
    def body(x: GraphOperand) -> GraphOperand:
        x = rounded(x, STEP, GRIDS["uint8"])
        return rounded(Matmul()(x, weight(x, (80_000, 2), 1)), 4.0, GRIDS["uint8"])

    program = check(graph_of(body, (40, 80_000)), 4.0, integers=False)
    assert any("32 bits" in d.reason for d in program.report.decisions)


def test_the_pass_can_be_left_out() -> None:
    def body(x: GraphOperand) -> GraphOperand:
        x = rounded(x, STEP, GRIDS["uint8"])
        return rounded(Conv(*ONE)(x, weight(x, (4, 8, 3, 3))), OUT, GRIDS["uint8"])

    graph = graph_of(body, (1, 8, 6, 6))
    for options in (Options(level=1), Options(disabled=("integers",))):
        assert "int_conv" not in ops_of(Stages(graph, options=options).lowered.graph)


def test_a_residual_is_read_as_bytes() -> None:
    """What levels stand for is made where it is read, not stored as four bytes each."""

    def body(x: GraphOperand) -> GraphOperand:
        x = rounded(x, STEP, GRIDS["uint8 from 0"])
        y = rounded(Relu()(Conv(*ONE)(x, weight(x, (32, 32, 3, 3)))), OUT, (dt.uint8, 0))
        z = rounded(Conv(*ONE)(y, weight(x, (32, 32, 3, 3))), OUT, GRIDS["uint8"])
        return levels(Relu()(z + y), OUT, dt.uint8, 0)

    program = check(graph_of(body, (1, 32, 12, 12)), 1)
    stored = [v.type.dtype for n in program.lower().nodes if n.inputs for v in n.outputs]
    assert stored and dt.float32 not in stored


def agrees(graph: Graph) -> None:
    """Compare with op after op, to last bits: no rounding follows."""
    arrays = [RNG.normal(0, 2, v.type.shape).astype(np.float32) for v in graph.inputs]
    (found,), (wanted,) = Stages(graph).running.run(arrays), graph.evaluate(arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("zero", [300, -300])
def test_numbers_may_be_counted_from_where_no_byte_is(zero: int) -> None:
    """A padded border stands for 0, which is no level then."""

    def body(x: GraphOperand) -> GraphOperand:
        q = levels(x, STEP, dt.int8, -128)
        return Conv(*ONE)(numbers(q, STEP, zero), weight(x, (4, 8, 3, 3)))

    agrees(graph_of(body, (1, 8, 6, 6)))


@pytest.mark.parametrize("limits", [(7.0, 9.0), (-9.0, -7.0)])
def test_limits_with_nothing_in_common(limits: tuple[float, float]) -> None:
    def body(x: GraphOperand) -> GraphOperand:
        y = Conv(*ONE)(rounded(x, STEP, GRIDS["uint8"]), weight(x, (4, 8, 3, 3)))
        return rounded(Clip(*limits)(Clip(0.0, 6.0)(y)), OUT, (dt.int8, 0))

    agrees(graph_of(body, (1, 8, 6, 6)))


def test_biases_join_the_sums_while_these_hold_them() -> None:
    def body(x: GraphOperand) -> GraphOperand:
        scale = x.constant(2.0**-10, dt.float32)
        zero = x.constant(0, dt.int32)
        q = x.constant(RNG.integers(-9, 9, (8, 4)).astype(np.int8), dt.int8)
        y = Matmul()(numbers(levels(x, 0.25, dt.int8, 0), 0.25, 0), Dequantize()(q, scale, zero))
        for _ in range(4):
            y = y + x.constant(0.7 * 2.0**30 / 2.0**12, dt.float32)
        return y

    agrees(graph_of(body, (3, 8)))


@pytest.mark.parametrize("zero", [1e12, math.inf, math.nan])
def test_zero_points_that_are_no_integers(zero: float) -> None:
    def body(x: GraphOperand) -> GraphOperand:
        by, at = (x.constant(number, dt.float32) for number in (STEP, zero))
        return Matmul()(FakeQuantize(0, 255)(x, by, at), weight(x, (8, 4), 1))

    graph = graph_of(body, (3, 8))
    assert "int_matmul" not in ops_of(Stages(graph).lowered.graph)
