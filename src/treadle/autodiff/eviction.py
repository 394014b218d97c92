"""Eager recordings under a budget of memory: values are dropped, and computed again when needed.

A recorded op's results are held by its node alone; later nodes find them there. When the results
that are held exceed the threshold, those go whose loss costs least: seconds to compute them again,
over bytes times how long ago they were used. Source: Kirisame et al., Dynamic Tensor
Rematerialization, 2020 (arXiv:2006.09616).
"""

from __future__ import annotations

import math
import random
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

from treadle.base.errors import OutOfMemory
from treadle.base.references import references
from treadle.engine.devices.names import default_device
from treadle.engine.eager.dispatch import EagerType, run
from treadle.ops.op import Op
from treadle.tensor import Tensor, wrap


@dataclass(slots=True)
class EvictionSettings:
    """Settings of `treadle.dtr`.

    Attributes:
        enabled: whether recordings that begin now keep to a budget.
        threshold: bytes of recorded results held at once; 0 takes it from the machine's memory.
        minimum: bytes of the smallest value that is dropped.
        sampling: look at the square root of the candidates' number, chosen at random.
        strict: raise where the threshold cannot be kept.
    """

    enabled: bool = False
    threshold: int = 0
    minimum: int = 1 << 20
    sampling: bool = False
    strict: bool = False


@dataclass(slots=True)
class Counts:
    """Counts since `reset`: values dropped, ops run again, seconds that took, peak bytes."""

    evictions: int = 0
    recomputations: int = 0
    seconds: float = 0.0
    peak: int = 0


SETTINGS = EvictionSettings()
COUNTS = Counts()

_SHARE = 0.7
"""Of the memory that is free, for values of recordings, where no threshold is set."""
_FULL = 0.9
"""Of the threshold that is left full, so that not every new value has to look for room."""
_ALONE = 4
"""References to an array that only its node holds: the node's list, a local name, and two for
counting."""


class Results(Sequence[Any]):
    """The results of one recorded op, each there or to be computed again."""

    __slots__ = ("__weakref__", "_keeper", "cost", "inputs", "op", "payloads", "used")

    def __init__(
        self,
        keeper: Keeper,
        op: Op | None,
        inputs: tuple[tuple[Any, EagerType, Any], ...],
        payloads: list[Any],
        cost: float,
    ) -> None:
        self._keeper = keeper
        self.op = op
        self.inputs = inputs
        self.payloads = payloads
        self.cost = cost
        self.used = keeper.tick()

    def sources(self) -> list[ResultReference]:
        """Operands that are results of other ops."""
        return [held for held, _, _ in self.inputs if type(held) is ResultReference]

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return sum(p.nbytes for p in self.payloads if p is not None)

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, i: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, i: slice) -> Any: ...
    def __getitem__(self, i: Any) -> Any:
        self.used = self._keeper.tick()
        if self.payloads[i] is None:
            self._keeper.restore(self)
        return self.payloads[i]


class ResultReference:
    """In place of an array in a node's inputs: one of another node's results."""

    __slots__ = ("index", "results")

    def __init__(self, results: Results, index: int) -> None:
        self.results = results
        self.index = index


def payload_of(held: Any) -> Any:
    """The array itself, computed again where it was dropped."""
    return held.results[held.index] if type(held) is ResultReference else held


class Values(Sequence[Tensor]):
    """Operands of a gradient rule, each computed again only if the rule asks for it."""

    __slots__ = ("_saved",)

    def __init__(self, saved: Sequence[tuple[Any, EagerType, Any]]) -> None:
        self._saved = saved

    def __len__(self) -> int:
        return len(self._saved)

    @overload
    def __getitem__(self, i: SupportsIndex) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return tuple([self[k] for k in range(*i.indices(len(self)))])
        held, kind, trace = self._saved[i]
        return wrap(payload_of(held), kind, trace)

    def __add__(self, other: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (*self, *other)

    def __radd__(self, other: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (*other, *self)


class Keeper:
    """Watches how much one tape holds, and drops what costs least."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._known: list[weakref.ref[Results]] = []
        self._bytes = 0
        self._clock = 0
        self._random = random.Random(0)

    def tick(self) -> int:
        """The time, in uses of values."""
        self._clock += 1
        return self._clock

    def keep(
        self,
        op: Op | None,
        inputs: tuple[tuple[Any, EagerType, Any], ...],
        payloads: list[Any],
        seconds: float,
    ) -> Results:
        """Take over what an op made; None in place of an op that cannot be run again."""
        made = Results(self, op, inputs, payloads, seconds)
        self._known.append(weakref.ref(made))
        self._bytes += made.nbytes
        del payloads
        self._trim()
        return made

    def _alive(self) -> Iterator[Results]:
        for reference in self._known:
            found = reference()
            if found is not None:
                yield found

    def _trim(self, needed: Sequence[Results] = ()) -> None:
        """Drop values until the threshold is kept, but none of `needed` nor of their operands."""
        if self._bytes <= self._threshold:
            COUNTS.peak = max(COUNTS.peak, self._bytes)
            return
        alive = list(self._alive())
        self._known = [weakref.ref(r) for r in alive]
        self._bytes = sum(r.nbytes for r in alive)
        if self._bytes > self._threshold:
            spared = {id(r) for r in needed}
            spared.update(id(k.results) for r in needed for k in r.sources())
            found = [r for r in alive if id(r) not in spared and self._may_go(r)]
            if SETTINGS.sampling and len(found) > 4:
                found = self._random.sample(found, max(4, math.isqrt(len(found)) * 2))
            for results in sorted(found, key=self._loss):
                if self._bytes <= self._threshold * _FULL:
                    break
                self._drop(results)
        if self._bytes > self._threshold and SETTINGS.strict:
            raise OutOfMemory(
                "dtr",
                f"{self._bytes} bytes of recorded values are held, and none of them can be dropped",
                saw=f"a threshold of {self._threshold} bytes",
                hint="raise dtr.eviction_threshold, or keep fewer results in variables",
            )
        COUNTS.peak = max(COUNTS.peak, self._bytes)

    def _may_go(self, results: Results) -> bool:
        if results.op is None or results.nbytes < SETTINGS.minimum:
            return False
        # What somebody else holds as well would not be freed.
        return all(p is None or references((p,)) <= _ALONE for p in results.payloads)

    def _loss(self, results: Results) -> float:
        stale = self._clock - results.used + 1
        return self._cost(results) / (results.nbytes * stale)

    @staticmethod
    def _cost(results: Results) -> float:
        """Seconds to have the results again, operands that were dropped included."""
        seen: set[int] = set()
        stack, total = [results], 0.0
        while stack and len(seen) < 64:
            at = stack.pop()
            if id(at) in seen:
                continue
            seen.add(id(at))
            total += at.cost
            stack += [k.results for k in at.sources() if k.results.payloads[k.index] is None]
        return total

    def _drop(self, results: Results) -> None:
        self._bytes -= results.nbytes
        results.payloads[:] = [None] * len(results.payloads)
        COUNTS.evictions += 1

    def restore(self, wanted: Results) -> None:
        """Run ops again until these results are there."""
        stack = [wanted]
        while stack:
            at = stack[-1]
            missing = [k.results for k in at.sources() if k.results.payloads[k.index] is None]
            if at.payloads[0] is None and missing:
                stack += missing
                continue
            if at.payloads[0] is None:
                self._again(at)
                self._trim(stack)
            stack.pop()

    def _again(self, results: Results) -> None:
        if results.op is None:
            raise OutOfMemory("dtr", "a value was dropped that no op computes")
        held = tuple(
            [
                k.results.payloads[k.index] if type(k) is ResultReference else k
                for k, _, _ in results.inputs
            ]
        )
        _, made = run(results.op, tuple([kind for _, kind, _ in results.inputs]), held)
        results.payloads[:] = list(made) if type(made) is tuple else [made]
        self._bytes += results.nbytes
        COUNTS.recomputations += 1
        COUNTS.seconds += results.cost


def keeper_of_recording() -> Keeper | None:
    """The budget of a recording that begins now, None where there is none."""
    if not SETTINGS.enabled:
        return None
    if SETTINGS.threshold:
        return Keeper(SETTINGS.threshold)
    free = default_device().open().memory()[1]
    return Keeper(int(free * _SHARE) or sys.maxsize)


__all__ = [
    "COUNTS",
    "SETTINGS",
    "Counts",
    "EvictionSettings",
    "Keeper",
    "ResultReference",
    "Results",
    "Values",
    "keeper_of_recording",
]
