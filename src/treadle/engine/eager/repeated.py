"""Calls that are found again by what they were called with.

`x.sum(0)` checks its arguments, makes an op, and asks `dispatch` for its launch. For small tensors
that takes longer than the launch itself, and the next call with an operand of this type and shape
would find the same. So the ops of a first call are noted. Where the first takes the tensor that was
passed, and each other one the result of the one before, later calls launch them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from operator import is_
from typing import Any, NamedTuple, TypeVar

from treadle.base.errors import DeviceError
from treadle.base.modes import ACTIVE, LOCAL, Hook, install
from treadle.base.observer import OBSERVER
from treadle.base.process import RUNTIME
from treadle.engine.eager.dispatch import EagerType, Launch, known
from treadle.ops.op import Op

F = TypeVar("F", bound=Callable[..., Any])


class ChainLink(NamedTuple):
    """One op of a chain: it has one result, and one operand unless it is the first."""

    op: Op
    launch: Launch
    result: EagerType


class Chain:
    """A call's ops in order, the first of all its operands, and the class of its result."""

    __slots__ = ("first", "kind", "links", "made", "rest")

    def __init__(self, links: tuple[ChainLink, ...], made: type) -> None:
        self.links = links
        self.made = made
        self.kind = links[-1].result
        self.first, *rest = [link.launch for link in links]
        self.rest = tuple(rest)


_MOST = 4096
_LISTS = frozenset({list, tuple})
_PLAIN = frozenset({int, bool, str, type(None), type(...)})
_TABLES: list[dict[Any, Chain | None]] = []
_new: Callable[[type], Any] = object.__new__


def repeated(function: F) -> F:
    """Make calls of a function of a tensor and plain arguments cheap when they are repeated.

    The function must do the same whenever operands of the same types and shapes come with equal
    arguments, and must not tell 1 from True or 1.0. Only calls whose arguments are integers,
    strings, None, `...` and tuples of these are remembered; others, and what anybody captures,
    casts or watches, run the function.
    """
    table: dict[Any, Chain | None] = {}
    _TABLES.append(table)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            x = args[0]
            key: Any = x._kind, x._data.shape, args[1:]
            if kwargs:
                key = key, *kwargs.items()
            chain = table[key]
        except (AttributeError, IndexError, TypeError):
            return function(*args, **kwargs)
        except KeyError:
            return _first(function, table, key, x, args, kwargs)
        if chain is None:
            return function(*args, **kwargs)
        if ACTIVE.count:
            return _seen(function, chain, x, args, kwargs)
        # Written out: every such call comes through here.
        try:
            data = chain.first(x._data)
            for launch in chain.rest:
                data = launch(data)
        except DeviceError:
            raise  # A device that failed is not to be asked twice.
        except Exception:  # The function says what is wrong.
            return function(*args, **kwargs)
        made = _new(chain.made)
        made._data = data
        made._kind = chain.kind
        made._trace = None
        return made

    return _signed(call, function)


def _signed(call: Any, function: F) -> F:
    """Say what arguments a wrapper takes, for those who ask `inspect.getfullargspec`."""
    call.__signature__ = signature(function)
    wrapped: F = call
    return wrapped


def repeated_of_several(function: F) -> F:
    """Make calls of a function of a list or tuple of tensors cheap when they are repeated.

    As `repeated`; the ops must begin with one of all tensors of the list, in their order.
    """
    table: dict[Any, Chain | None] = {}
    _TABLES.append(table)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = args[0]
            if ACTIVE.count or type(given) not in _LISTS:
                return function(*args, **kwargs)
            key: Any = tuple([(x._kind, x._data.shape) for x in given]), args[1:]
            if kwargs:
                key = key, *kwargs.items()
            chain = table[key]
        except (AttributeError, IndexError, TypeError):
            return function(*args, **kwargs)
        except KeyError:
            return _first(function, table, key, given, args, kwargs)
        if chain is None:
            return function(*args, **kwargs)
        try:
            data = chain.first(*[x._data for x in given])
            for launch in chain.rest:
                data = launch(data)
        except DeviceError:
            raise
        except Exception:
            return function(*args, **kwargs)
        made = _new(chain.made)
        made._data = data
        made._kind = chain.kind
        made._trace = None
        return made

    return _signed(call, function)


def _seen(function: Any, chain: Chain, x: Any, args: Any, kwargs: Any) -> Any:
    """Run a chain while somebody sees the thread's ops, or the function where they must."""
    if LOCAL.casting is None and LOCAL.capture is None:
        unary = getattr(LOCAL.hook, "unary", None)
        if unary is not None:
            for op, launch, kind in chain.links:
                x = unary(op, launch, kind, x)
            return x
    return function(*args, **kwargs)


def _first(function: Any, table: Any, key: Any, given: Any, args: Any, kwargs: Any) -> Any:
    """Run the function, and remember its ops where they are a chain from the given tensors."""
    watched = LOCAL.casting is not None or LOCAL.capture is not None or OBSERVER.now is not None
    if watched or not all(map(_is_plain, (*args[1:], *kwargs.values()))):
        return function(*args, **kwargs)
    notes = _Notes(LOCAL.hook)
    install(notes)
    try:
        result = function(*args, **kwargs)
    finally:
        install(notes.below)
    if len(table) >= _MOST:
        table.clear()
    table[key] = notes.chain(given, result)
    return result


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


class _Notes:
    """A hook that notes the ops that pass it on their way to the hook below."""

    def __init__(self, below: Hook | None) -> None:
        self.below = below
        self._ops: list[tuple[Op, tuple[Any, ...], tuple[Any, ...]]] = []

    def apply(self, op: Op, inputs: tuple[Any, ...], /) -> tuple[Any, ...]:
        """Run an op as without notes."""
        install(self.below)
        try:
            results: tuple[Any, ...] = inputs[0].apply(op, inputs)
        finally:
            install(self)
        self._ops.append((op, inputs, results))
        return results

    def binary(self, op: Op, launch: Launch, kind: EagerType, x: Any, y: Any, /) -> Any:
        """Run an arithmetic operator as without notes."""
        return self.apply(op, (x, y))[0]

    def chain(self, given: Any, result: Any) -> Chain | None:
        """Return the ops that lead from tensors to the result, None where they are not a chain."""
        links = []
        operands = tuple(given) if type(given) in _LISTS else (given,)
        for op, inputs, results in self._ops:
            alike = len(inputs) == len(operands) and all(map(is_, inputs, operands))
            if not alike or len(results) != 1:
                return None
            entry = known(op, tuple(x._kind for x in inputs), tuple(x._data for x in inputs))
            if entry is None or entry.results[0] is not results[0]._kind:
                return None
            links.append(ChainLink(op, entry.launch, entry.results[0]))
            operands = results
        return Chain(tuple(links), type(result)) if links and result is operands[0] else None


def _forget() -> None:
    for table in _TABLES:
        table.clear()


RUNTIME.after("launches", _forget)

__all__ = ["Chain", "ChainLink", "repeated", "repeated_of_several"]
