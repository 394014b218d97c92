"""Random programs for whole stages: primitive ops, composites, moves, reductions, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from treadle.base import dtype as dt
from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph
from treadle.ops.activation import Gelu, Silu
from treadle.ops.elementwise import Cast
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Broadcast, Concat, Flip, Reshape, Transpose
from treadle.ops.norm import LayerNorm, Standardize
from treadle.ops.reduce import Max, Mean, Sum
from treadle.ops.select import Clip, Where
from treadle.ops.slicing import Pad, along
from treadle.ops.softmax import LogSoftmax, Softmax
from treadle.ops.unary import Abs, Exp, Relu, Sigmoid, Square, Tanh

SHAPES = ((2, 3), (3,), (2, 3, 4), (4, 3), (3, 3), ())
Make = Callable[..., Any]


def _axis(draw: Any, x: Any) -> int:
    return int(draw(st.integers(0, x.type.ndim - 1)))


def _reduced(draw: Any, x: Any) -> Any:
    op = draw(st.sampled_from((Sum, Mean, Max)))
    return op((_axis(draw, x),), draw(st.booleans()))(x)


def _moved(draw: Any, x: Any) -> Any:
    order = draw(st.permutations(range(x.type.ndim)))
    shape = x.type.shape
    flat = int(np.prod(shape))
    choices = (
        lambda: Transpose(tuple(order))(x),
        lambda: Reshape((flat,))(x),
        lambda: Reshape((*shape, 1))(x),
        lambda: Broadcast((2, *shape))(x),
        lambda: Flip((_axis(draw, x),))(x),
        lambda: Concat(0)(x, x),
        lambda: along(x, 0, 0, max(1, shape[0] - 1)),
        lambda: Pad(((1, 0), *((0, 0),) * (len(shape) - 1)))(x),
    )
    return draw(st.sampled_from(choices))()


def _normalized(draw: Any, x: Any) -> Any:
    axis = _axis(draw, x)
    ops = (Softmax(axis), LogSoftmax(axis), Standardize((axis,)), LayerNorm(1))
    return draw(st.sampled_from(ops))(x)


def _unary(draw: Any, x: Any) -> Any:
    ops = (
        Relu(), Tanh(), Sigmoid(), Square(), Abs(), Exp(), Gelu("tanh"), Silu(), Clip(-1.0, 1.0),
    )  # fmt: skip
    return draw(st.sampled_from(ops))(x)


def _product(draw: Any, x: Any, y: Any) -> Any:
    return Matmul(draw(st.booleans()), draw(st.booleans()))(x, y)


def _binary(draw: Any, x: Any, y: Any) -> Any:
    how = draw(st.sampled_from(("add", "sub", "mul", "max", "where")))
    if how == "where":
        return Where()(x < y, x, y)
    return {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y}.get(
        how, lambda: Where()(x > 0.0, x, y)
    )()


def _with_number(draw: Any, x: Any) -> Any:
    number = draw(st.sampled_from((0.0, 1.0, -1.0, 2.0, 0.5)))
    return draw(st.sampled_from((lambda: x + number, lambda: x * number, lambda: number - x)))()


def _narrowed(draw: Any, x: Any) -> Any:
    kind = draw(st.sampled_from((dt.float64, dt.int32, dt.bool_)))
    # Sums that are 0 but for rounding are common; such a number should not be where a cast jumps.
    return Cast(dt.float32)(Cast(kind)(Clip(-9.0, 9.0)(x) + 0.377))


ONE: tuple[Make, ...] = (_reduced, _moved, _normalized, _unary, _with_number, _narrowed)
TWO: tuple[Make, ...] = (_binary, _binary, _product)


@st.composite
def programs(draw: Callable[..., Any], most: int = 16) -> Graph:
    """A float32 program of up to `most` steps; values stay small, so results stay finite."""
    builder = GraphBuilder("random")
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4))
    values: list[GraphOperand] = [builder.input(TensorType(dt.float32, s)) for s in shapes]
    for _ in range(draw(st.integers(3, most))):
        made = _step(draw, values)
        if made is not None and int(np.prod(made.type.shape)) <= 400:
            values.append(made)
    builder.output(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)), values[-1])
    return builder.build()


def _step(draw: Any, values: list[GraphOperand]) -> GraphOperand | None:
    recent = values[-6:]
    x, y = draw(st.sampled_from(recent)), draw(st.sampled_from(values))
    make = draw(st.sampled_from(ONE + TWO))
    if make in (_reduced, _moved, _normalized) and not x.type.ndim:
        return None
    try:
        return make(draw, x, y) if make in TWO else make(draw, Clip(-8.0, 8.0)(x))
    except TreadleError:
        return None  # The shapes do not fit this op.


def small_arrays(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Inputs in [-2, 2]."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray(rng.uniform(-2, 2, t.shape)).astype(t.dtype.numpy) for t in graph.input_types
    ]


def close(x: np.ndarray, y: np.ndarray, tolerance: float = 2e-4) -> bool:
    """Equal up to another order of rounding; NaN and infinity where both have it."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind != "f":
        return bool((x == y).all())
    return bool(np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True))
