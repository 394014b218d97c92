"""Random bodies: whatever a loop nest agrees to compute is what the oracle computes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular

from treadle.backends.api import Support
from treadle.backends.codegen.loops import division
from treadle.backends.codegen.loops import lower_loops as loops
from treadle.backends.codegen.lower import lower
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph
from treadle.ops.elementwise import Maximum
from treadle.ops.fused import Fused
from treadle.ops.movement import Concat, Flip, Roll
from treadle.ops.norm import Standardize
from treadle.ops.reduce import Max, Mean, Min, Sum
from treadle.ops.select import Clip, Where
from treadle.ops.slicing import Pad, Slice
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Abs, Exp

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 17, 33)
MOST_ELEMENTS = 20_000


class Draw:
    """Appends random ops to a graph."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = GraphBuilder("random")
        axes = self.upto(3)
        self.shape = tuple(int(self.rng.choice(EXTENTS)) for _ in range(axes))
        # Most reductions share their axes, or hardly any body would be one nest.
        self.axes = tuple(sorted({self.below(axes) for _ in range(self.upto(axes))}))
        self.inputs = [self._input() for _ in range(self.upto(3))]
        self.values: list[GraphOperand] = list(self.inputs)

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def upto(self, n: int) -> int:
        return 1 + self.below(n)

    def _input(self) -> GraphOperand:
        shape = tuple(d if self.rng.random() < 0.7 else 1 for d in self.shape)
        cut = self.below(len(shape) + 1) if self.rng.random() < 0.3 else 0
        return self.builder.input(TensorType(dt.float64, shape[cut:]))

    def graph(self) -> Graph:
        for _ in range(2 + self.below(9)):
            made = self._step(self._pick())
            if made is not None and np.prod(made.type.shape, dtype=int) <= MOST_ELEMENTS:
                self.values.append(made)
        made_here = self.values[len(self.inputs) :] or [self.inputs[0] * 2.0]
        more = [made_here[self.below(len(made_here))] for _ in range(self.below(3))]
        self.builder.output(made_here[-1], *more)
        return self.builder.build()

    def _pick(self) -> GraphOperand:
        return self.values[-self.upto(min(len(self.values), 5))]

    def _step(self, x: GraphOperand) -> GraphOperand | None:
        kinds = [
            self._pointwise,
            self._pointwise,
            self._reduced,
            self._moved,
            self._cut,
            self._rows,
        ]
        return kinds[self.below(len(kinds))](x) if x.type.ndim else self._pointwise(x)

    def _pointwise(self, x: GraphOperand) -> GraphOperand | None:
        y = self._pick()
        if not _fit(x, y):
            return Exp()(Clip(-3.0, 2.0)(x)) if self.below(2) else Abs()(x)
        return [x + y, x * y, x - y, Maximum()(x, y), Where()(x > 0, x, y)][self.below(5)]

    def _reduced(self, x: GraphOperand) -> GraphOperand:
        op = (Sum, Mean, Max, Min)[self.below(4)]
        axes = self.axes if x.type.ndim == len(self.shape) else (self.below(x.type.ndim),)
        return op(axes, bool(self.below(2)))(x)

    def _moved(self, x: GraphOperand) -> GraphOperand:
        ndim, size = x.type.ndim, int(np.prod(x.type.shape))
        divisor = int(self.rng.choice([d for d in range(1, size + 1) if size % d == 0]))
        axis = self.below(ndim)
        return [
            lambda: x.transpose(tuple(int(a) for a in self.rng.permutation(ndim))),
            lambda: x.reshape((divisor, size // divisor)),
            lambda: Flip((axis,))(x),
            lambda: Roll((self.below(7) - 3,), (axis,))(x),
            lambda: Concat(axis)(x, x),
        ][self.below(5)]()

    def _cut(self, x: GraphOperand) -> GraphOperand:
        shape = [int(d) for d in x.type.shape]
        if self.below(2):
            mode: Any = ("constant", "edge", "reflect")[self.below(3)]
            widths = tuple((self.below(min(3, d)), self.below(min(3, d))) for d in shape)
            return Pad(widths, mode, 1.5)(x)
        starts = [self.below(d) for d in shape]
        stops = [s + self.upto(d - s) for s, d in zip(starts, shape, strict=True)]
        return Slice(tuple(starts), tuple(stops), tuple(self.upto(2) for _ in shape))(x)

    def _rows(self, x: GraphOperand) -> GraphOperand:
        last = x.type.ndim - 1
        return Softmax(last)(x) if self.below(2) else Standardize((last,))(x)


def _fit(x: GraphOperand, y: GraphOperand) -> bool:
    pairs = zip(reversed(x.type.shape), reversed(y.type.shape), strict=False)
    return all(1 in (a, b) or a == b for a, b in pairs)


def check(seed: int, target: Any) -> bool:
    """Compare, in the interpreter; False where the body is refused."""
    graph = Draw(seed).graph()
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(tuple(map(int, v.type.shape))) for v in graph.inputs]
    op = Fused("loop", graph)
    if isinstance(lower(op, graph.input_types, (), target), Support):
        return False
    results = irregular.run(op, arrays, irregular.interpreted, target=target)
    for got, wanted in zip(results, graph.evaluate(arrays), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-9, 1e-9, err_msg=f"seed {seed}")
    return True


SEEDS = range(60)


def test_bodies_as_they_are() -> None:
    assert sum(check(seed, irregular.HOST) for seed in SEEDS) > len(SEEDS) // 2


@pytest.mark.parametrize("rows", [2, 1 << 40], ids=["by rows", "in parts"])
def test_bodies_whose_reductions_are_divided(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds are lowered, so that small shapes take the ways of large ones."""
    lowered = {"PART": 0.01, "STARVED": 0.0, "ENOUGH_UNITS": 1 << 30, "BLOCK": 8}
    strips = {"STRIP": 3, "STRIPS": 0.0, "MOST_STRIPS": 2}
    for name, value in {**lowered, **strips, "LEAST_ROWS": rows, "LEAST_COLUMNS": 2}.items():
        monkeypatch.setattr(division, name, value)
    loops.lower_body.cache_clear()
    try:
        target = dataclasses.replace(irregular.HOST, l2=1)
        assert sum(check(seed, target) for seed in SEEDS) > len(SEEDS) // 2
    finally:
        loops.lower_body.cache_clear()
