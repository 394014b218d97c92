"""Tensors that a function reaches by itself: through closures, globals it names, and its object.

A capture asks, to tell a tensor that is passed from the same tensor reached from outside: the
program must read the first from its arguments and the second from its handle.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from treadle.tensor import Tensor

MOST = 20_000
"""Objects that are looked at before the search gives up; what is left is not found."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), ModuleType, type, BuiltinFunctionType)


def tensors_reached(function: Any) -> set[int]:
    """Ids of tensors that the function can get at without being passed them."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting and len(seen) < MOST:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _PLAIN):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            found.add(id(thing))
        else:
            waiting += _inside(thing)
    return found


def _inside(thing: Any) -> Iterator[Any]:
    """Yield the contents of an object, as far as a function could come to it."""
    if isinstance(thing, FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from thing
    else:
        yield from getattr(thing, "__dict__", {}).values()


def _of_function(function: FunctionType) -> Iterator[Any]:
    """Closure cells, defaults, and the globals that the code names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # A name that is bound later.
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    """Names that a code object, or one inside it, may look up."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names(part)
