"""Classes whose objects files may hold whole: the name of a class, and the attributes.

A file cannot choose what is imported or called. A class is looked up among those that the program
has defined or imported already and that derive from one that was allowed, and its objects are made
without calling it: attributes are set as they are in the file, or given to `__setstate__` where
the class has one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from types import FunctionType
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_FUNCTIONS = "treadle.functional"
"""The package whose functions may be attributes."""
_OF_OTHER_ENGINES = "treadle.functional.external"
"""Its functions that run what other engines have made: code."""
_ALLOWED: list[type] = []
_REFUSED: list[type] = []


def allow(*classes: C) -> None:
    """Allow files to hold objects of these classes and of those derived from them.

    Every class derived from `Module` is allowed as it is.

    Raises:
        TypeError: one is not a class.
    """
    for cls in classes:
        if not isinstance(cls, type):
            raise TypeError(f"allow takes classes, got {cls!r}")
        if cls not in _ALLOWED:
            _ALLOWED.append(cls)


def refuse(cls: C) -> C:
    """Keep objects of a class that derives from an allowed one out of files: they hold code."""
    _REFUSED.append(cls)
    return cls


def is_allowed(cls: type) -> bool:
    """Return whether files may hold objects of a class."""
    return issubclass(cls, tuple(_ALLOWED)) and not issubclass(cls, tuple(_REFUSED))


def is_function(x: object) -> bool:
    """Return whether files may hold a function: one of ours that computes."""
    return (
        isinstance(x, FunctionType)
        and x.__module__.startswith(f"{_FUNCTIONS}.")
        and x.__module__ != _OF_OTHER_ENGINES
        and _looked_up(x.__module__, x.__qualname__) is x
    )


def name_of(named: Any) -> str:
    """The name that finds a class or function again."""
    return f"{named.__module__}:{named.__qualname__}"


def named(name: str) -> Any:
    """The class or function of a name; of classes of one name the latest.

    Raises:
        KeyError: files may hold nothing of that name, or the program has not imported it.
    """
    classes = [cls for cls in _alive(_ALLOWED) if name_of(cls) == name and is_allowed(cls)]
    if classes:
        return classes[-1]
    function = _looked_up(*name.partition(":")[::2])
    if not is_function(function):
        raise KeyError(name)
    return function


def _alive(classes: Iterable[type]) -> Iterator[type]:
    """Classes, and all that derive from them."""
    for cls in classes:
        yield cls
        yield from _alive(type.__subclasses__(cls))


def _looked_up(module: str, name: str) -> Any:
    """Return the attribute of a module that has been imported; names that a module computes are not
    asked for.
    """
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


# -- what an object is made of -----------------------------------------------------------------


def state_of(x: Any) -> Any:
    """A member's name of an enumeration, otherwise attributes by name."""
    if isinstance(x, Enum):
        return x.name
    if _is_record(type(x)):
        return {field: getattr(x, field) for field in type(x)._fields}
    if "__getstate__" in _own_methods(type(x)):
        return x.__getstate__()
    return x.__dict__


def made(cls: Any, state: Any) -> Any:
    """An object of a class with a state.

    Raises:
        TypeError, KeyError, ValueError: the state does not fit the class.
    """
    if issubclass(cls, Enum):
        return cls[str(state)]
    if "__setstate__" in _own_methods(cls):
        chosen = object.__new__(cls)
        chosen.__setstate__(state)
        return chosen
    if type(state) is not dict or not all(type(name) is str for name in state):
        raise TypeError("attributes have names")
    if _is_record(cls) and set(state) != set(cls._fields):
        raise ValueError(f"a {cls.__name__} has the fields {', '.join(cls._fields)}")
    if issubclass(cls, tuple):
        return tuple.__new__(cls, [state[field] for field in cls._fields])
    new = object.__new__(cls)
    if _is_record(cls):
        for field, value in state.items():
            object.__setattr__(new, field, value)
    else:
        new.__dict__.update(state)
    return new


def _is_record(cls: Any) -> bool:
    """Return whether objects have named fields in place of attributes of their own."""
    return hasattr(cls, "_fields") and cls.__dictoffset__ == 0


def _own_methods(cls: type) -> set[str]:
    """Names that a class or one of its bases defines, those of `object` left out."""
    return {name for base in cls.__mro__ if base is not object for name in vars(base)}
