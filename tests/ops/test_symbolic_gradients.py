"""Gradient rules with symbolic extents give, at run time, what they give with fixed ones."""

import numpy as np
import pytest
from tests.ops import harness
from tests.ops.harness import TapeOperand

from treadle.base.array import Array
from treadle.base.dtype import float64
from treadle.base.guards import recording_guards
from treadle.base.symbol import symbol
from treadle.graph.builder import GraphBuilder
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.ops import REGISTRY
from treadle.ops.op import Op, Pullback, Sample


def differentiable(cls: type[Op]) -> list[Sample]:
    return [s for s in cls.samples() if harness.is_differentiable(s)]


NAMES = [n for n in harness.OPS if differentiable(REGISTRY[n])]


def symbolic_pullback(sample: Sample, arrays: tuple[Array, ...]) -> Graph:
    """The op and its gradient rule as a graph in which every extent above 1 is a symbol."""
    types = harness.types_of(arrays)
    symbols = {d: symbol(f"n{d}", low=0) for t in types for d in t.shape if d > 1}
    builder = GraphBuilder()
    with recording_guards():
        xs = tuple(
            builder.input(t.with_shape(tuple(symbols.get(d, d) for d in t.shape))) for t in types
        )
        ys = sample.op.outputs(*xs)
        dys = (builder.input(ys[0].type), *(None for _ in ys[1:]))
        needs = tuple(t.dtype is float64 for t in types)
        grads = sample.op.vjp(Pullback(dys, xs, ys, needs))
        builder.output(*(g for g in grads if g is not None))
        return builder.build()


def fixed_pullback(sample: Sample, arrays: tuple[Array, ...], dy: Array) -> list[Array]:
    xs = tuple(TapeOperand(a, []) for a in arrays)
    ys = sample.op.outputs(*xs)
    needs = tuple(a.dtype == np.float64 for a in arrays)
    dys = (ys[0].constant(dy), *(None for _ in ys[1:]))
    return [g.array for g in sample.op.vjp(Pullback(dys, xs, ys, needs)) if g is not None]


@pytest.mark.parametrize("name", NAMES)
def test_symbolic_and_fixed_extents_agree(name: str) -> None:
    for sample in differentiable(REGISTRY[name]):
        arrays = sample.arrays(float64)
        graph = symbolic_pullback(sample, arrays)
        first = harness.run(sample.op, arrays)[0]
        dy = np.asarray(np.random.default_rng(5).normal(size=first.shape))
        with np.errstate(all="ignore"):
            found = evaluate(graph, [*arrays, dy])
        for got, expected in zip(found, fixed_pullback(sample, arrays, dy), strict=True):
            np.testing.assert_allclose(got, expected, 1e-12, 1e-12, err_msg=str(sample))
