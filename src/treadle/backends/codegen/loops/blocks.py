"""Sums in blocks: no accumulator takes in more than some dozens of terms one after the other.

The error of a sum grows with the number of terms that one accumulator takes in. A loop of many
turns is cut into blocks with accumulators of their own, blocks of blocks where there are many of
those, and what they give is joined: the error grows with the logarithm of the number of terms, as
that of NumPy's pairwise sums does (Higham, The accuracy of floating point summation, 1993).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Value, minimum
from treadle.backends.codegen.loops.index_map import Parameters
from treadle.backends.codegen.loops.plan import LoopSchedule
from treadle.backends.codegen.loops.reduce import Running
from treadle.base.estimates import at_most
from treadle.base.symbol import Dim, Expr
from treadle.graph.domains import CounterAxis

MOST_TERMS = 32
"""Terms that an accumulator takes in at most: more cost accuracy, fewer cost additions."""


def lengths(turns: Dim, terms: int) -> tuple[tuple[int, ...], int]:
    """Turns of the blocks of a loop, the largest ones first, and terms that its sums take in then.

    Each of `turns` turns adds `terms` terms.
    """
    if isinstance(turns, Expr):  # As many blocks as the most turns need: sums of none are 0.
        turns = at_most(turns) or int(turns)
    if turns * terms <= MOST_TERMS:
        return (), turns * terms
    found = [max(MOST_TERMS // terms, 1)]
    while found[-1] * MOST_TERMS < turns:
        found.append(found[-1] * MOST_TERMS)
    return tuple(reversed(found)), -(-turns // found[-1])


class ReductionBlocks:
    """The loops over the reduced axes of a nest, as far as they are cut into blocks."""

    def __init__(self, e: Builder, parameters: Parameters) -> None:
        self.e = e
        self.parameters = parameters
        self._lengths: dict[CounterAxis, tuple[int, ...]] = {}

    def plan(self, plan: LoopSchedule, extent: Callable[[CounterAxis], Dim]) -> None:
        """Cut the loops of a nest whose axes have these extents, or parts that are as long."""
        terms = 1
        inner = plan.lane_axis if plan.rows_reduced else None
        axes = [*plan.loops, inner] if inner is not None else list(plan.loops)
        for axis in reversed(axes):
            step = plan.lanes if axis is inner else 1
            self._lengths[axis], terms = lengths(-(-extent(axis) // step), terms)

    @contextmanager
    def loop(
        self,
        axis: CounterAxis,
        sums: Sequence[Running],
        start: Value | int,
        stop: Value | int,
        step: int,
        *,
        carrying: list[Value],
    ) -> Iterator[Value]:
        """`e.loop` over an axis, which carries these sums."""
        cut = self._lengths[axis] if any(s.is_rounded for s in sums) else ()
        with self._cut(cut, sums, (start, stop, step), carrying) as index:
            yield index

    @contextmanager
    def _cut(
        self,
        cut: Sequence[int],
        sums: Sequence[Running],
        reach: tuple[Value | int, Value | int, int],
        totals: list[Value],
    ) -> Iterator[Value]:
        e, (start, stop, step) = self.e, reach
        if not cut:
            with e.loop(start, stop, step, carrying=totals) as index:
                yield index
            return
        length: Value | int = step if cut[0] == 1 else self.parameters.size(cut[0] * step)
        with e.loop(start, stop, length, carrying=totals) as first:
            before = [*totals]
            totals[:] = [s.start(e, v.lanes) for s, v in zip(sums, before, strict=True)]
            if cut[0] == 1:
                yield first
            else:
                end = minimum(first + length, stop)
                with self._cut(cut[1:], sums, (first, end, step), totals) as index:
                    yield index
            joined = zip(sums, before, totals, strict=True)
            totals[:] = [s.reducer.join(total, x) for s, total, x in joined]
