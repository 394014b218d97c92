"""Means and squared deviations in one pass over memory.

What a normalization takes of its operand are two reductions, the second of which needs the result
of the first: the mean, and the sum of squares about it. A nest that is divided into parts computes
both for each part, while that is in the cache, and the parts are joined as Chan, Golub and LeVeque
do (Algorithms for computing the sample variance, 1983): squares about the means of the parts, plus
those of these means about the mean of all. Nothing cancels, however large the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.graph.cells import AppliedOp, Cell, Total
from treadle.graph.domains import LoopNest
from treadle.ops.elementwise import Mul, Sub
from treadle.ops.reduce import Mean, Sum
from treadle.ops.unary import Square


@dataclass(frozen=True, slots=True)
class Moments:
    """A mean, and a reduction of the squared deviations from it."""

    mean: Total
    squares: Total


def moments_of(nest: LoopNest) -> tuple[Moments, ...]:
    """The reductions of a nest that are computed together, part by part."""
    found = (_moments(t) for t in nest.totals if t.arg.stage)
    return tuple([m for m in found if m is not None])


def are_early(nest: LoopNest, pairs: Sequence[Moments]) -> bool:
    """True if one pass over the domain is enough: no other reduction needs a complete one."""
    second = {m.squares for m in pairs}
    late = any(t.arg.stage and t not in second for t in nest.totals)
    reduced = sum(a.varies for a in nest.axes if a.reduced)
    return not late and not any(o.cell.stage and o.place.varies & reduced for o in nest.outputs)


def _moments(total: Total) -> Moments | None:
    """The pair that the sum of a square closes."""
    deviation = _squared(total.arg) if isinstance(total.op, Mean | Sum) else None
    if not isinstance(deviation, AppliedOp) or not isinstance(deviation.op, Sub):
        return None
    if compute_dtype(deviation.dtype) is not deviation.dtype:
        return None  # Mean and deviations are rounded, each on its own.
    x, mean = deviation.args
    if isinstance(mean, Total) and isinstance(mean.op, Mean) and mean.arg is x and not x.stage:
        return Moments(mean, total)
    return None


def _squared(cell: Cell) -> Cell | None:
    """Return the value whose square a cell is."""
    if not isinstance(cell, AppliedOp):
        return None
    if isinstance(cell.op, Square):
        return cell.args[0]
    if isinstance(cell.op, Mul) and cell.args[0] is cell.args[1]:
        return cell.args[0]
    return None
