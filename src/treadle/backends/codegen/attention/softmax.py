"""Rows of scores: masks, maxima, powers. Rows lie in scratch and are dense and padded.

Scores are in units of log 2: weights are 2**(score - largest), which saves the exponential function
its multiplications. That is accurate enough for weights, and 0 below the smallest normal number.

The rows of a tile go through each step side by side: their chains of operations are independent,
and loops are as few as for one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.backends.codegen.attention.operands import LOG2_E, AttentionProblem, Matrix
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, maximum, select
from treadle.backends.codegen.scalars.vector_math_format import format_of, polynomial, two_to_the
from treadle.base import dtype as dt

Turn = Callable[..., Sequence[Value]]

_POWERS = {
    # Least largest relative error on [-1/2, 1/2], found by reweighted least squares: 1.9e-9.
    dt.float32: (
        1.0,
        0.6931471824645996,
        0.24022646248340607,
        0.05550328642129898,
        0.009618489071726799,
        0.0013399930903688073,
        0.00015345810970757157,
    ),
    # Taylor's series; the next term is below 5e-18.
    dt.float64: tuple(math.log(2) ** k / math.factorial(k) for k in range(14)),
}
"""Coefficients of 2**r for |r| <= 1/2, the constant term first."""


@dataclass(frozen=True, slots=True)
class ScoreRows:
    """The scores of some queries.

    Attributes:
        scores: pointer to each row.
        seen: number of keys each query may see, 0 or more, no fewer from row to row.
        end: how far all rows are written, a multiple of the lanes and not below any `seen`; what
            lies between may be anything, and becomes 0.
    """

    scores: tuple[Pointer, ...]
    seen: tuple[Value, ...]
    end: Value

    def visit(
        self, e: Builder, lanes: int, carrying: list[Value]
    ) -> Iterator[tuple[Value, list[Value | None]]]:
        """Blocks for every place of a vector: (place, masks of the lanes that are seen, by row).

        The first block has whole vectors, whose masks are None; the second one the others.
        """
        least = self.seen[0]
        whole = least - least % lanes
        with e.loop(0, whole, lanes, carrying=carrying) as place:
            yield place, [None] * len(self.seen)
        with e.loop(whole, self.end, lanes, carrying=carrying) as place:
            # No fewer than no lanes: a count is not negative.
            left = [maximum(seen - place, 0) for seen in self.seen]
            yield place, [e.first_lanes(n, lanes) for n in left]


@dataclass(frozen=True, slots=True)
class MaskRows:
    """A mask's lines for some queries, whose columns count from `first_key`."""

    mask: Matrix
    lines: tuple[Pointer, ...]
    first_key: Value | int

    def apply(
        self, p: AttentionProblem, row: int, place: Value, score: Value, valid: Value | None
    ) -> Value:
        """A vector of scores, masked."""
        at = place + self.first_key if isinstance(self.first_key, Value) else place
        given = self.mask.load(self.lines[row], at, p.lanes, valid)
        if given.dtype is dt.bool_:
            return select(given, score, -math.inf)
        # The lowest number is a usual mask: a row of it has equal weights, one of -inf has none.
        lowest = -float(np.finfo(p.compute.numpy).max)
        scaled = maximum(lowest, given * LOG2_E)
        return score + select(given == -math.inf, -math.inf, scaled)


def largest_scores(
    e: Builder, p: AttentionProblem, rows: ScoreRows, mask: MaskRows | None
) -> list[Value]:
    """Each row's largest score, -inf where no key is seen; applies the mask to the scores."""
    largest = [e.constant(-math.inf, p.compute, p.lanes)] * len(rows.scores)
    for place, masks in rows.visit(e, p.lanes, largest):
        for i, (line, valid) in enumerate(zip(rows.scores, masks, strict=True)):
            score = line.load(place, p.lanes, aligned=True)
            if mask is not None:
                score = mask.apply(p, i, place, score, valid)
                line.store(place, score, aligned=True)
            if valid is not None:
                score = select(valid, score, -math.inf)
            largest[i] = maximum(score, largest[i])
    return [v.reduce("max") for v in largest]


def shift_of(largest: Value) -> Value:
    """Return the number to subtract from scores: the largest, or 0 where that is infinite."""
    return select(abs(largest) < math.inf, largest, 0.0)


def power_of_two(x: Value) -> Value:
    """2**x for x of at most 0, and 0 where that is subnormal; NaN for NaN and +inf."""
    form = format_of(x)
    bounded = maximum(-float(form.bias), x)
    shifted = bounded + (form.magic + form.bias)
    rest = bounded - (shifted - (form.magic + form.bias))
    return polynomial(rest, _POWERS[x.dtype]) * two_to_the(shifted, form)


def powers(
    e: Builder,
    p: AttentionProblem,
    rows: ScoreRows,
    shifts: Sequence[Value],
    weighted: Sequence[Pointer] | None = None,
) -> tuple[list[Value], list[Value]]:
    """Make scores 2**(score - shift); by row, their sums and those of products with `weighted`.

    For gradients, which weigh others, powers below the square root of the smallest normal number
    are 0. They are too small to change a sum, but their products with small gradients would be
    subnormal, and a processor takes a hundred cycles for each of those.
    """
    count = len(rows.scores)
    zero = e.constant(0.0, p.compute, p.lanes)
    least = -float(format_of(zero).bias // 2)
    many = [s.splat(p.lanes) for s in shifts]
    sums = [zero] * (count if weighted is None else 2 * count)
    for place, masks in rows.visit(e, p.lanes, sums):
        for i, (line, valid) in enumerate(zip(rows.scores, masks, strict=True)):
            score = line.load(place, p.lanes, aligned=True)
            below = score - many[i]
            power = power_of_two(below)
            if weighted is not None:
                power = select(below < least, 0.0, power)
            if valid is not None:
                power = select(valid, power, 0.0)
            line.store(place, power, aligned=True)
            sums[i] = sums[i] + power
            if weighted is not None:
                other = weighted[i].load(place, p.lanes, aligned=True)
                sums[count + i] = fma(power, other, sums[count + i])
    found = [s.reduce("add") for s in sums]
    return found[:count], found[count:]
