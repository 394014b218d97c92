"""Regions whose values are computed again in backward, so that forward need not keep them.

A region runs once and is watched: the ops it ran, and what they read from outside, are all that is
kept. Backward runs these ops once more, with the same random numbers, and Python side effects
happen once. Source: Chen et al., Training Deep Nets with Sublinear Memory
Cost, 2016 (arXiv:1604.06174).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from treadle.autodiff.tape import Saved, Tape, TapeNode
from treadle.base import tree
from treadle.base.modes import LOCAL
from treadle.engine.eager.dispatch import EagerType
from treadle.ops.op import Op, Pullback
from treadle.ops.reverse import TapeEntry, backpropagate
from treadle.ops.transfer import After
from treadle.tensor import Tensor, wrap

P = ParamSpec("P")
R = TypeVar("R")


def recompute(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that backward computes its inner values again instead of keeping them.

    Memory between forward and backward shrinks to what the function reads and returns; the
    function's ops run twice. In eager code, results and gradients are the same bits as without it;
    in compiled functions ops may be fused otherwise, which shows in last bits. Nothing changes
    where no `GradManager` records.

    Args:
        function: of tensors, a module's `forward` for instance. It may read parameters and other
            tensors from outside, and returns tensors in any nesting.

    Example:
        >>> import treadle as mge
        >>> block = mge.autodiff.recompute(lambda x: mge.functional.exp(x * 2) + 1)
        >>> x = mge.tensor([0.0])
        >>> gm = mge.autodiff.GradManager().attach(x)
        >>> with gm:
        ...     gm.backward(block(x))
        >>> print(x.grad)
        Tensor([2.], device=xpux:0)
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        tape = LOCAL.hook
        # Whoever watches already looks at every op: an outer region covers this one.
        if not isinstance(tape, Tape) or tape.watch is not None:
            return function(*args, **kwargs)
        region = _Region(tape.now())
        tape.watch = region
        try:
            returned = function(*args, **kwargs)
        finally:
            tape.watch = None
        results, shape = tree.flatten(returned)
        made: R = tree.unflatten(shape, region.close(tape, results))
        return made

    return run


@dataclass(frozen=True, slots=True)
class _Call:
    """One op that ran: numbers of the values that it read, and of those that it made."""

    op: Op
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class _Region:
    """Watches a tape: which ops run, and what they read from outside."""

    def __init__(self, since: int) -> None:
        self._since = since
        self._calls: list[_Call] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._held: list[Any] = []
        self._outside: dict[int, Saved] = {}
        self._count = 0
        self._kinds: dict[int, EagerType] = {}

    def __call__(self, op: Op, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Take note of one op; the tape calls this."""
        reads = tuple([self._read(x) for x in inputs])
        self._calls.append(_Call(op, reads, tuple([self._new(r) for r in results])))

    def gradient(self, node: TapeNode, grads: Sequence[Tensor | None]) -> None:
        """Ignore a manager inside the region that is at its backward: it concerns nobody here."""

    @staticmethod
    def _key(x: Tensor) -> tuple[int, int]:
        # The trace counts: a detached handle of an array is another value than the traced one.
        return id(x._data), id(x._trace)

    def _new(self, x: Tensor) -> int:
        number = self._count
        self._count += 1
        self._numbers[self._key(x)] = number
        self._held += [x._data, x._trace]  # Ids stay theirs while the region runs.
        self._kinds[number] = x._kind
        return number

    def _read(self, x: Tensor) -> int:
        number = self._numbers.get(self._key(x))
        if number is None:
            number = self._new(x)
            self._outside[number] = (x._data, x._kind, x._trace)
        return number

    def close(self, tape: Tape, results: list[Any]) -> list[Any]:
        """Record the region as one op; the results, traced to it."""
        tensors = [r for r in results if isinstance(r, Tensor)]
        made = {n for call in self._calls for n in call.makes}
        numbers = [self._numbers.get(self._key(t), -1) for t in tensors]
        inner = [t for t, n in zip(tensors, numbers, strict=True) if n in made]
        kept = self._kept([n for n in numbers if n in made])
        outside = {n: s for n, s in self._outside.items() if any(n in c.reads for c in kept)}
        traced = any(s[2] is not None for s in outside.values())
        if not inner or not traced or any(self._is_hidden(s) for s in outside.values()):
            return results
        rule = _Again(kept, tuple(outside), tuple(n for n in numbers if n in made))
        given = [wrap(*saved) for saved in outside.values()]
        fresh = [wrap(t._data, t._kind) for t in inner]
        tape.record(rule, given, fresh)
        again = dict(zip(map(id, inner), fresh, strict=True))
        return [again.get(id(r), r) for r in results]

    def _kept(self, wanted: Sequence[int]) -> tuple[_Call, ...]:
        """The calls that the results depend on."""
        needed = set(wanted)
        found = []
        for call in reversed(self._calls):
            if needed.intersection(call.makes):
                found.append(call)
                needed.update(call.reads)
        return tuple(reversed(found))

    def _is_hidden(self, saved: Saved) -> bool:
        """Return whether a value was made inside by something that is not an op, so it cannot be
        repeated.
        """
        trace = saved[2]
        return trace is not None and trace[0].seq > self._since and trace[0].rule is not None


class _Again:
    """Presents a region to backward as if it were an op."""

    name = "recompute"

    def __init__(
        self, calls: tuple[_Call, ...], reads: tuple[int, ...], makes: tuple[int, ...]
    ) -> None:
        self._calls = calls
        self._reads = reads
        self._makes = makes

    def vjp(self, at: Pullback[Tensor], /) -> tuple[Tensor | None, ...]:
        """Run the ops again, then backwards."""
        values = dict(zip(self._reads, self._late(at), strict=True))
        for call in self._calls:
            made = _applied(call.op, tuple([values[n] for n in call.reads]))
            values.update(zip(call.makes, made, strict=True))
        needed = {n for n, need in zip(self._reads, at.needs, strict=True) if need}
        for call in self._calls:
            if needed.intersection(call.reads):
                needed.update(n for n in call.makes if values[n]._kind.dtype.is_inexact)
        steps = [self._step(call, values, needed) for call in self._calls]
        seeds: dict[Any, Tensor] = {}
        for number, dy in zip(self._makes, at.dys, strict=True):
            if dy is not None:
                seeds[number] = seeds[number] + dy if number in seeds else dy
        wanted = [n for n, need in zip(self._reads, at.needs, strict=True) if need]
        found = backpropagate(steps, seeds, wanted)
        return tuple([found.get(n) if n in needed else None for n in self._reads])

    def _late(self, at: Pullback[Tensor]) -> list[Tensor]:
        """The operands; in a program, values of their own that come after the cotangent."""
        token = next((dy for dy in at.dys if dy is not None), None)
        if LOCAL.capture is None or token is None:
            return list(at.inputs)
        late = []
        for x in at.inputs:
            trace = x._trace
            is_parameter = trace is not None and trace[0].rule is None
            late.append(x if is_parameter else _applied(After(), (x, token))[0])
        return late

    @staticmethod
    def _step(call: _Call, values: dict[int, Tensor], needed: set[int]) -> TapeEntry[Tensor]:
        def made() -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            return (
                tuple([values[n] for n in call.reads]),
                tuple([values[n] for n in call.makes]),
            )

        keys = tuple([n if n in needed else None for n in call.reads])
        return TapeEntry(call.op, keys, call.makes, made)


def _applied(op: Op, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Run an op, for managers that still record, and for a capture, to see."""
    return inputs[0].apply(op, inputs)


__all__ = ["recompute"]
