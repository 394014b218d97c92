"""Random quantized graphs: with products on integers they compute what they computed before."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.engine.test_integers import GRIDS, OUT, STEP, graph_of, levels, numbers, rounded

from treadle.base import dtype as dt
from treadle.engine.prepare.integers import on_integers
from treadle.graph.builder import GraphOperand
from treadle.graph.verify import verify
from treadle.ops.conv import Conv
from treadle.ops.movement import Concat
from treadle.ops.pool import MaxPool
from treadle.ops.quant import Dequantize
from treadle.ops.select import Clip
from treadle.ops.slicing import Pad
from treadle.ops.unary import Relu

SEEDS = range(60)
SHAPE = (1, 4, 6, 7)
POOL = MaxPool((2, 2), (2, 1), ((0, 1), (1, 0)), (1, 1), False)


class Program:
    """Ops chosen at random, on values made before."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, x: GraphOperand) -> tuple[GraphOperand, ...]:
        made, results = [x], []
        ways: list[Callable[[GraphOperand], GraphOperand]] = [
            *[self.convolution] * 3,
            *[lambda v: rounded(v, self.step(), self.grid())] * 3,
            *[Relu(), Clip(-0.7, 3.1), Pad(((0, 0), (0, 0), (1, 0), (0, 1)))],
            lambda v: POOL(v) if int(v.type.shape[2]) > 3 else v,
            lambda v: Concat(1)(v, v) if int(v.type.shape[1]) < 32 else v,
            lambda v: v.transpose((0, 1, 3, 2)),
            lambda v: v + self.one_of([p for p in made if p.type == v.type]),
        ]
        for _ in range(self.rng.integers(4, 10)):
            made.append(self.one_of(ways)(self.one_of(made[-3:])))
        for value in made[-2:]:  # Stored integers may be results, too.
            grid, step = self.grid(), self.step()
            results += [q := levels(value, step, *grid), numbers(q, step, grid[1])]
        return tuple(results)

    def one_of(self, choices: list[Any]) -> Any:
        return choices[self.rng.integers(len(choices))]

    def step(self) -> float:
        return float(self.one_of([STEP, OUT]))

    def grid(self) -> tuple[dt.DType, int]:
        found: tuple[dt.DType, int] = self.one_of(list(GRIDS.values()))
        return found

    def convolution(self, x: GraphOperand) -> GraphOperand:
        """Over rounded values most of the time, with a bias or without."""
        groups, outputs = int(self.one_of([1, 4])), int(self.one_of([4, 8]))
        x = rounded(x, STEP, self.grid()) if self.rng.random() < 0.7 else x
        shape = (outputs, int(x.type.shape[1]) // groups, 3, 3)
        q = x.constant(self.rng.integers(-127, 128, shape).astype(np.int8), dt.int8)
        by = x.constant(self.rng.uniform(0.001, 0.01, outputs).astype(np.float32), dt.float32)
        weight = Dequantize(0)(q, by, x.constant(np.zeros(outputs, np.int32), dt.int32))
        y = Conv((1, 1), ((1, 1), (1, 0)), (1, 1), groups)(x, weight)
        if self.rng.random() < 0.6:
            bias = self.rng.standard_normal((1, outputs, 1, 1)).astype(np.float32)
            y = y + y.constant(bias, dt.float32)
        return y


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_computes_the_same(seed: int) -> None:
    graph = graph_of(Program(seed), SHAPE)
    changed, _ = on_integers(graph)
    verify(changed)
    x = np.random.default_rng(seed).normal(0, 2, SHAPE).astype(np.float32)
    for found, wanted in zip(changed.evaluate([x]), graph.evaluate([x]), strict=True):
        assert found.dtype == wanted.dtype
        apart = np.abs(found.astype(np.float32) - wanted) > 1e-6
        assert apart.mean() < 0.03  # numbers next to a tie, and what follows from them


def test_the_random_graphs_have_products_on_integers() -> None:
    fired = sum(sum(on_integers(graph_of(Program(s), SHAPE))[1].values()) for s in SEEDS)
    assert fired > len(SEEDS) / 3
