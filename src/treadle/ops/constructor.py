"""Constructors of ops, from the annotations of their classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def attribute_names(cls: type[Any]) -> tuple[str, ...]:
    """Names of the attributes, in the order the constructor takes them."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            if "ClassVar" not in str(annotation):
                names[name] = None
    return tuple(names)


def constructor_of(cls: type[Any]) -> Callable[..., None]:
    """`__init__` from the attributes' names and defaults.

    `dataclass` would do, at four times the cost: with some 120 ops it was a third of the time
    `import treadle` took.
    """
    defaults = {f"_{n}": getattr(cls, n) for n in cls._fields if n in _defaulted(cls)}
    parameters = [f"{n}=_{n}" if f"_{n}" in defaults else n for n in cls._fields]
    body = "\n".join(f"    d[{n!r}] = {n}" for n in cls._fields)
    if "__post_init__" in dir(cls):
        body += "\n    self.__post_init__()"
    source = f"def __init__(self, {', '.join(parameters)}):\n    d = self.__dict__\n{body}\n"
    # The name tells errors that this frame is no line of the user's.
    outside = {"__name__": __name__, **defaults}
    scope: dict[str, Any] = {}
    exec(source, outside, scope)  # the text is made of attribute names of our own classes
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _defaulted(cls: type[Any]) -> set[str]:
    """Attributes that some class in the hierarchy gives a default."""
    return {n for n in cls._fields if any(n in base.__dict__ for base in cls.__mro__)}


def constant_of(value: _T) -> Callable[..., _T]:
    """A constructor that always returns `value`."""

    def new(cls: type[_T]) -> _T:
        return value

    new.__qualname__ = type(value).__qualname__
    return new
