"""Buckets: gradients that are reduced together.

A reduction of b bytes takes α + β b seconds. Gradients become ready one after the other; one bucket
for all saves start-up times but begins when the last one is there, one for each begins at once but
pays α every time, in the network and, as no other thread starts it, in the backward pass. With
T(j, k) the time at which the first j gradients are reduced in k buckets,

    T(j, k) = min over i < j of max(T(i, k - 1), ready(j) + (k - 1) α) + α + β bytes(i + 1 to j),

and the best plan is the one of the k with the least T(n, k). Buckets are runs of the order in which
gradients become ready, and are reduced one after the other.
"""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from treadle.base.array import Array
from treadle.runtime.comm.api import Communicator

Buckets = tuple[tuple[int, ...], ...]
"""Gradients that are reduced together, by number."""
Reductions = Literal["auto", "off"] | int | tuple[int, ...] | tuple[float, ...]
"""Ways in which gradients share messages; see `ends`."""
Empty = Callable[[tuple[int, ...], np.dtype[Any]], Array]
_SMALL, _LARGE = 1 << 10, 1 << 20
"""Elements of float32 that a link is measured with."""
_TURNS = 5, 50
"""Number of times the large and the small message are sent; the quickest counts."""
_MOST_UNITS, _MOST_BUCKETS = 400, 32


@dataclass(frozen=True, slots=True)
class ReductionCost:
    """Cost of reductions in a group: seconds to start one, and seconds per byte."""

    alpha: float
    beta: float

    def seconds(self, nbytes: float) -> float:
        """The modelled time of one."""
        return self.alpha + self.beta * nbytes


def measured(comm: Communicator, empty: Empty | None = None) -> ReductionCost:
    """The link of a group, as its first rank sees it; all ranks call this together."""
    small, large = _fastest(comm, _SMALL, empty), _fastest(comm, _LARGE, empty)
    beta = max(large - small, 0.0) / (4 * (_LARGE - _SMALL))
    told = (max(small - 4 * _SMALL * beta, 0.0), beta)
    return ReductionCost(*comm.broadcast_value(told, 0))


@dataclass(slots=True)
class _Known:
    """Knowledge of a group: its link, plans, and the plans of programs."""

    links: dict[bool, ReductionCost] = field(default_factory=dict)
    plans: dict[str, Buckets] = field(default_factory=dict)
    programs: dict[str, tuple[tuple[str, Buckets], ...]] = field(default_factory=dict)


_KNOWN: weakref.WeakKeyDictionary[Communicator, _Known] = weakref.WeakKeyDictionary()
_MOST_PLANS = 64


def link_of(comm: Communicator, empty: Empty | None = None) -> ReductionCost:
    """The link of a group, measured when its ranks first ask for it, which they do together.

    `empty` makes the memory that arrays are packed into; None where they are reduced in place.
    """
    links, packs = _KNOWN.setdefault(comm, _Known()).links, empty is not None
    if packs not in links:
        links[packs] = measured(comm, empty)
    return links[packs]


def is_agreed(comm: Communicator, what: str) -> bool:
    """Return whether the ranks of a group know already how they cut this: all or none of them."""
    return what in _KNOWN.setdefault(comm, _Known()).plans


def remember(comm: Communicator, what: str, cut: Buckets) -> None:
    """Cut in this way from now on; all ranks of the group call this, with the same cut."""
    plans = _KNOWN.setdefault(comm, _Known()).plans
    if len(plans) >= _MOST_PLANS:
        plans.clear()
    plans[what] = cut


def programs_of(comm: Communicator) -> dict[str, tuple[tuple[str, Buckets], ...]]:
    """Return the buckets of a group's programs by what they reduce, for those who keep them."""
    found = _KNOWN.setdefault(comm, _Known()).programs
    if len(found) >= _MOST_PLANS:
        found.clear()
    return found


def agreed(comm: Communicator, what: str, make: Callable[[], Sequence[Sequence[int]]]) -> Buckets:
    """Return the buckets that all ranks use, by number: the first rank decides when a group asks
    first.

    Args:
        comm: of the group, all ranks of which call this.
        what: is reduced; the same on all ranks.
        make: makes the first rank's proposal.
    """
    if not is_agreed(comm, what):
        told = comm.broadcast_value([list(b) for b in make()], 0)
        remember(comm, what, tuple(map(tuple, told)))
    return _KNOWN[comm].plans[what]


def _fastest(comm: Communicator, elements: int, empty: Empty | None) -> float:
    whole = np.zeros(elements, np.float32)
    parts = np.array_split(whole, 4)
    best = float("inf")
    for _ in range(_TURNS[elements == _SMALL]):
        comm.agree("measuring a link")
        began = time.perf_counter()
        if empty is not None:
            whole = np.concatenate(parts, out=empty(whole.shape, whole.dtype))
        comm.start_all_reduce(whole, "sum").wait()
        best = min(best, time.perf_counter() - began)
    return best


def plan(
    ready: Sequence[float], nbytes: Sequence[int], kinds: Sequence[object], link: ReductionCost
) -> tuple[int, ...]:
    """Return the number of gradients in each bucket, in order.

    Args:
        ready: when each is there, in seconds from any moment, never before the one before it.
        nbytes: of each.
        kinds: of each; a bucket has gradients of one kind.
        link: of the group.
    """
    if not ready:
        return ()
    ends = _units(kinds)
    total = np.concatenate([[0.0], np.cumsum(nbytes)])[[0, *ends]]
    when = np.asarray(ready)[np.asarray(ends) - 1]
    own = [kinds[e - 1] for e in ends]
    runs = np.cumsum([False] + [a != b for a, b in itertools.pairwise(own)])
    reduced = link.alpha + link.beta * (total[1:, None] - total[None, :-1])
    # Row j, column i: units i to j, all of one kind, as the last bucket.
    number = np.arange(len(ends))
    reduced[(number[:, None] < number) | (runs[:, None] != runs)] = np.inf
    before = np.full(len(ends), np.inf)
    before[0] = -np.inf  # T(i, k - 1) by i: nothing is reduced by no bucket, at any time
    choices: list[Array] = []
    best, finished = 0, np.inf
    for k in range(1, min(_MOST_BUCKETS, len(ends)) + 1):
        candidates = np.maximum(before, when[:, None] + (k - 1) * link.alpha) + reduced
        choices.append(candidates.argmin(axis=1))
        after = candidates.min(axis=1)
        if after[-1] < finished:
            best, finished = k, after[-1]
        before = np.concatenate([[np.inf], after[:-1]])
    return _traced(choices[:best], ends)


def problem_of(how: Reductions) -> str:
    """Return why gradients cannot be cut in this way; empty where they can."""
    if isinstance(how, str):
        return "" if how in ("auto", "off") else 'a word is "auto" or "off"'
    if isinstance(how, int):
        return "" if how > 0 else "a bucket has bytes"
    if all(type(part) is int for part in how):
        return "" if list(how) == sorted(set(how)) else "numbers of gradients increase"
    shares = [float(part) for part in how]
    fine = min(shares) > 0 and math.isclose(sum(shares), 1.0, abs_tol=1e-3)
    return "" if fine else "shares are above 0, and add up to 1"


def ends(
    how: Reductions,
    ready: Sequence[float],
    nbytes: Sequence[int],
    kinds: Sequence[object],
    link: ReductionCost,
) -> tuple[int, ...]:
    """Return after how many gradients buckets end, in the order in which gradients become ready.

    Args:
        how: "auto", as planned; a number fills each up to so many bytes; a tuple of whole numbers
            is the answer itself; one of fractions, which add up to 1, has the shares that buckets
            have of all bytes, as nearly as whole gradients allow; "off", each alone.
        ready, nbytes, kinds, link: as in `plan`.
    """
    if how == "auto":
        return tuple(itertools.accumulate(plan(ready, nbytes, kinds, link)))
    if how == "off":
        return tuple(range(1, len(nbytes) + 1))
    if isinstance(how, int):
        return _filled(nbytes, how)
    if all(isinstance(part, int) for part in how):
        return tuple(int(end) for end in how if end <= len(nbytes))
    total = np.cumsum(nbytes)
    wanted = np.cumsum(np.asarray(how, np.float64)) * total[-1]
    nearest = np.abs(total[None] - wanted[:, None]).argmin(axis=1) + 1
    return tuple(np.unique([*nearest.tolist(), len(nbytes)]).tolist())


def _filled(nbytes: Sequence[int], most: int) -> tuple[int, ...]:
    found, filled = [], 0
    for i, size in enumerate(nbytes):
        if filled and filled + size > most:
            found.append(i)
            filled = 0
        filled += size
    return (*found, len(nbytes))


def _units(kinds: Sequence[object]) -> list[int]:
    """Return the ends of runs of gradients that are planned as one, so that there are not
    too many.
    """
    step = -(-len(kinds) // _MOST_UNITS)
    last = len(kinds)
    return [i for i in range(1, last + 1) if i == last or i % step == 0 or kinds[i] != kinds[i - 1]]


def _traced(choices: Sequence[Array], ends: Sequence[int]) -> tuple[int, ...]:
    """The sizes of buckets, from where each began."""
    sizes = []
    unit = len(ends) - 1
    for choice in reversed(choices):
        first = int(choice[unit])
        sizes.append(ends[unit] - (ends[first - 1] if first else 0))
        unit = first - 1
    return tuple(reversed(sizes))


def finish(
    sizes: Sequence[int], ready: Sequence[float], nbytes: Sequence[int], link: ReductionCost
) -> float:
    """Return the modelled time at which the last bucket is reduced."""
    end, at = float("-inf"), 0
    for k, size in enumerate(sizes):
        begin = max(end, ready[at + size - 1] + k * link.alpha)
        end = begin + link.seconds(sum(nbytes[at : at + size]))
        at += size
    return end
