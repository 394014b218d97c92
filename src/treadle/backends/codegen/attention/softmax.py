"""Rows of scores: masks, maxima, powers. Rows lie in scratch and are dense and padded.

Scores are in units of log 2: weights are 2**(score - largest), which saves the exponential function
its multiplications. That is accurate enough for weights, and 0 below the smallest normal number.

The rows of a tile go through each step side by side: their chains of operations are independent,
and loops are as few as for one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.backends.codegen.attention.operands import LOG2_E, Matrix, Problem
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
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
class Rows:
    """The scores of some queries.

    Attributes:
        scores: pointer to each row.
        seen: number of keys each query may see, 0 or more, no fewer from row to row.
        end: how far all rows are written, a multiple of the lanes and not below any `seen`; what
            lies between may be anything, and becomes 0.
    """

    scores: tuple[Value, ...]
    seen: tuple[Value, ...]
    end: Value

    def visit(
        self, b: Builder, p: Problem, turn: Turn, initial: Sequence[Value]
    ) -> tuple[Value, ...]:
        """`carried = turn(place, masks, *carried)` for every place of a vector.

        `masks` holds the lanes that are seen, by row, and is None where all are.
        """
        least = self.seen[0]
        whole = b.sub(least, b.rem(least, p.lanes))

        def full(place: Value, *carried: Value) -> tuple[Value, ...]:
            return tuple(turn(place, None, *carried))

        def part(place: Value, *carried: Value) -> tuple[Value, ...]:
            # No fewer than no lanes: a count is not negative.
            left = [b.max(b.sub(seen, place), 0) for seen in self.seen]
            return tuple(turn(place, [b.first_lanes(n, p.lanes) for n in left], *carried))

        carried = b.loop(0, whole, p.lanes, full, initial)
        return b.loop(whole, self.end, p.lanes, part, carried)


@dataclass(frozen=True, slots=True)
class MaskRows:
    """A mask's lines for some queries, whose columns count from `first_key`."""

    mask: Matrix
    lines: tuple[Value, ...]
    first_key: Value | int

    def apply(
        self, b: Builder, p: Problem, row: int, place: Value, score: Value, valid: Value | None
    ) -> Value:
        """A vector of scores, masked."""
        at = b.add(place, self.first_key) if isinstance(self.first_key, Value) else place
        given = self.mask.load(b, self.lines[row], at, p.lanes, valid)
        hidden = b.constant(-math.inf, p.compute, p.lanes)
        if given.dtype is dt.bool_:
            return b.select(given, score, hidden)
        # The lowest number is a usual mask: a row of it has equal weights, one of -inf has none.
        lowest = -float(np.finfo(p.compute.numpy).max)
        scaled = b.max(lowest, b.mul(given, LOG2_E))
        return b.add(score, b.select(b.compare("eq", given, hidden), hidden, scaled))


def largest_scores(b: Builder, p: Problem, rows: Rows, mask: MaskRows | None) -> list[Value]:
    """Each row's largest score, -inf where no key is seen; applies the mask to the scores."""
    lowest = b.constant(-math.inf, p.compute, p.lanes)

    def turn(place: Value, valid: list[Value] | None, *largest: Value) -> list[Value]:
        found: list[Value] = []
        for i, line in enumerate(rows.scores):
            score = b.load(line, place, p.lanes, aligned=True)
            lanes = None if valid is None else valid[i]
            if mask is not None:
                score = mask.apply(b, p, i, place, score, lanes)
                b.store(line, place, score, aligned=True)
            if lanes is not None:
                score = b.select(lanes, score, lowest)
            found.append(b.max(score, largest[i]))
        return found

    return [b.reduce("max", v) for v in rows.visit(b, p, turn, [lowest] * len(rows.scores))]


def shift_of(b: Builder, largest: Value) -> Value:
    """What is subtracted from scores: the largest one, or 0 where that is infinite."""
    return b.select(b.compare("lt", b.abs(largest), math.inf), largest, 0.0)


def power_of_two(b: Builder, x: Value) -> Value:
    """2**x for x of at most 0, and 0 where that is subnormal; NaN for NaN and +inf."""
    form = format_of(x)
    bounded = b.max(-float(form.bias), x)
    shifted = b.add(bounded, form.magic + form.bias)
    rest = b.sub(bounded, b.sub(shifted, form.magic + form.bias))
    return b.mul(polynomial(rest, _POWERS[x.dtype]), two_to_the(shifted, form))


def powers(
    b: Builder,
    p: Problem,
    rows: Rows,
    shifts: Sequence[Value],
    weighted: Sequence[Value] | None = None,
) -> tuple[list[Value], list[Value]]:
    """Make scores 2**(score - shift); by row, their sums and those of products with `weighted`.

    For gradients, which weigh others, powers below the square root of the smallest normal number
    are 0. They are too small to change a sum, but their products with small gradients would be
    subnormal, and a processor takes a hundred cycles for each of those.
    """
    count = len(rows.scores)
    zero = b.constant(0.0, p.compute, p.lanes)
    least = -float(format_of(zero).bias // 2)
    many = [b.splat(s, p.lanes) for s in shifts]

    def turn(place: Value, valid: list[Value] | None, *sums: Value) -> list[Value]:
        found = list(sums)
        for i, line in enumerate(rows.scores):
            score = b.load(line, place, p.lanes, aligned=True)
            below = b.sub(score, many[i])
            power = power_of_two(b, below)
            if weighted is not None:
                power = b.select(b.compare("lt", below, least), zero, power)
            if valid is not None:
                power = b.select(valid[i], power, zero)
            b.store(line, place, power, aligned=True)
            found[i] = b.add(sums[i], power)
            if weighted is not None:
                other = b.load(weighted[i], place, p.lanes, aligned=True)
                found[count + i] = b.fma(power, other, sums[count + i])
        return found

    carried = [zero] * (count if weighted is None else 2 * count)
    sums = [b.reduce("add", s) for s in rows.visit(b, p, turn, carried)]
    return sums[:count], sums[count:]
