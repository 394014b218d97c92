"""Guards: conditions on symbolic extents that a graph needs, and decisions that a capture makes by
them.

Relations that ranges leave open become guards. Type rules only state what they need; the program
that is captured may ask, and is answered at the extents of the call (see `symbol.Decisions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast

from treadle.base.errors import TreadleError
from treadle.base.symbol import (
    DECISIONS,
    Decisions,
    Dim,
    Expr,
    Relation,
    evaluate,
    is_identical,
    minimum,
)

P = ParamSpec("P")
R = TypeVar("R")

_GUARDS: ContextVar[dict[Relation, None] | None] = ContextVar("guards", default=None)
_CALL: ContextVar[Decisions | None] = ContextVar("call", default=None)


@contextmanager
def recording_guards() -> Iterator[dict[Relation, None]]:
    """Collect the relations that `require` could not decide inside the block, in order.

    Type rules run in it. They give the same types at every extent, so nothing else is decided.
    """
    guards: dict[Relation, None] = {}
    before, asked = _GUARDS.set(guards), DECISIONS.set(None)
    try:
        yield guards
    finally:
        _GUARDS.reset(before)
        DECISIONS.reset(asked)


@contextmanager
def asking_nothing() -> Iterator[None]:
    """Compare extents by identity alone in the block, as type rules do, without asking the call."""
    asked = DECISIONS.set(None)
    try:
        yield
    finally:
        DECISIONS.reset(asked)


@contextmanager
def deciding(
    values: Mapping[str, int], hints: Mapping[str, int] | None = None, every: bool = False
) -> Iterator[Decisions]:
    """Answer what ranges leave open at the extents of a call; each answer becomes a guard.

    If `every`, so does each answer that ranges give.
    """
    made = Decisions(values, hints or {}, every=every)
    before, outer, asked = _GUARDS.set(made.guards), _CALL.set(made), DECISIONS.set(made)
    try:
        yield made
    finally:
        _GUARDS.reset(before)
        _CALL.reset(outer)
        DECISIONS.reset(asked)


def is_open() -> bool:
    """Return whether a program for many extents is being compiled, whose sizes are not numbers."""
    asked = DECISIONS.get()
    return asked is not None and bool(asked.hints)


def is_one_now(x: Dim) -> bool:
    """Return whether an expression is 1 in the call that is captured, which is not asked."""
    asked = DECISIONS.get()
    if isinstance(x, int) or asked is None or asked.hints or not asked.knows(x):
        return False
    return evaluate(x, asked.values) == 1


def data_decide(x: Dim) -> bool:
    """Return whether an extent of the program that is captured is one that only a run knows."""
    asked = DECISIONS.get()
    return isinstance(x, Expr) and asked is not None and not asked.knows(x)


def is_equal(x: Dim, y: Dim) -> bool:
    """Return whether two extents are equal, as far as the call tells.

    One that data decide equals itself alone: a 1 or a 0 does not stretch or vanish.
    """
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    return x is y or (not data_decide(x - y) and bool(x == y))


def is_stretched(x: Dim, y: Dim) -> bool:
    """Return whether an axis of extent x was broadcast to another extent y."""
    return not is_identical(x, y) and is_equal(x, 1) and not is_equal(y, 1)


def at_most(x: Dim, most: Dim) -> Dim:
    """The smaller of two extents; the call is asked which one it is, where it knows them."""
    if data_decide(most):
        return minimum(x, most)
    return x if x <= most else most


class Remembered(Generic[P, R]):
    """A function that may ask about extents, with what it returned last.

    What a call decided is kept with its result: another one that decides the same gets the result
    with its guards and pins, one that would decide otherwise computes anew.

    Args:
        function: its arguments are hashable.
        most: results that are kept.
    """

    def __init__(self, function: Callable[P, R], most: int) -> None:
        update_wrapper(self, function)
        self._function = function
        self._most = most
        self._plain = lru_cache(most)(function)
        self._made: dict[Any, list[tuple[Decisions, R]]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what the function returns, and decide about extents as it did."""
        asked = DECISIONS.get()
        if asked is None:
            return self._plain(*args, **cast(Any, kwargs))
        with asking_nothing():
            known = self._made.setdefault((args, tuple(kwargs.items())), [])
        found = next((k for k in known if _answers(k[0], asked)), None)
        if found is None:
            with deciding(asked.values, asked.hints, asked.every) as decisions:
                found = decisions, self._function(*args, **kwargs)
            known.append(found)
            del known[: -self._most]
            if len(self._made) > self._most:
                self._made.pop(next(iter(self._made)), None)
        asked.guards.update(found[0].guards)
        asked.pins.update(found[0].pins)
        return found[1]

    def cache_clear(self) -> None:
        """Forget all results."""
        self._plain.cache_clear()
        self._made.clear()


def _answers(known: Decisions, asked: Decisions) -> bool:
    """Return whether what was decided holds where something is asked now."""
    return (known.hints, known.every) == (asked.hints, asked.every) and all(
        asked.knows(g.expr) and g.holds(asked.values) for g in known.guards
    )


def remembered(most: int) -> Callable[[Callable[P, R]], Remembered[P, R]]:
    """`functools.lru_cache` for functions that may ask about extents."""
    return lambda function: Remembered(function, most)


def stated_guards() -> dict[Relation, None]:
    """The guards of the capture or type rule that goes on; they may be added to."""
    found = _GUARDS.get()
    return {} if found is None else found


def require(relation: Relation, otherwise: Callable[[], Exception]) -> None:
    """State what must hold: raises `otherwise()` if it cannot, guards the capture if it may.

    Without a capture that records guards an undecided relation raises as well.
    """
    truth = relation.truth()
    if truth:
        return
    guards = _GUARDS.get()
    if truth is None and guards is not None and _may_hold(relation):
        guards[relation] = None
        return
    error = otherwise()
    if truth is None and guards is None and isinstance(error, TreadleError):
        error.doubt(f"whether {relation} is known only at run time")
    raise error


def granted(relation: Relation) -> bool:
    """Return whether a program for many extents may rely on what its graph does not guard.

    Passes write ops that need more than those they replace (a softmax of no elements is one, the
    maximum in it is an error). What holds in the call that is compiled for becomes a guard of its
    program; other extents get another one.
    """
    call = _CALL.get()
    if call is None or not call.hints or not call.knows(relation.expr):
        return False
    if not relation.holds(call.values):
        return False
    call.guards[relation] = None
    return True


def _may_hold(relation: Relation) -> bool:
    """Return whether the relation holds at the extents of the call, where those are known."""
    call = _CALL.get()
    return call is None or not call.knows(relation.expr) or relation.holds(call.values)
