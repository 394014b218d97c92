"""What a graph needs to be true of its symbolic extents, and what a capture decides by them.

Relations that ranges leave open become guards. Type rules only state what they need; the program
that is captured may ask, and is answered at the extents of the call (see `symbol.Decisions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from treadle.base.errors import TreadleError
from treadle.base.symbol import DECISIONS, Decisions, Relation

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
def deciding(values: Mapping[str, int]) -> Iterator[Decisions]:
    """Answer what ranges leave open at the extents of a call; each answer becomes a guard."""
    made = Decisions(values)
    before, outer, asked = _GUARDS.set(made.guards), _CALL.set(made), DECISIONS.set(made)
    try:
        yield made
    finally:
        _GUARDS.reset(before)
        _CALL.reset(outer)
        DECISIONS.reset(asked)


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


def _may_hold(relation: Relation) -> bool:
    """Whether the relation holds at the extents of the call, where those are known."""
    call = _CALL.get()
    return call is None or not call.knows(relation.expr) or relation.holds(call.values)
