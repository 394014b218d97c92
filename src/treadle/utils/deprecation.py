"""Decorators that say what is to be used instead."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(version: str = "", reason: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for functions and classes that will go: each call warns once per place.

    Args:
        version: since when.
        reason: why, and what to use instead.
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        since = f" since {version}" if version else ""
        text = f"{function.__name__} is deprecated{since}. {reason}".strip()

        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return warned

    return mark


def deprecated_func(version: str, origin: str, name: str, tbd: bool) -> Callable[..., Any]:
    """A function under an old name, which warns and calls `origin.name`.

    Args:
        version: since when the old name is deprecated.
        origin: the module that has the function now.
        name: of the function.
        tbd: whether the old name will be removed.
    """
    going = ", and will be removed" if tbd else ""
    text = f"this is deprecated since {version}{going}; use {origin}.{name}"

    def moved(*args: Any, **kwargs: Any) -> Any:
        """The function under its old name."""
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(origin), name)(*args, **kwargs)

    moved.__name__ = name
    return moved


def deprecated_kwargs_default(
    version: str, kwarg_name: str, kwarg_pos: int
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for functions whose default of an argument will change.

    Args:
        version: from when on.
        kwarg_name: of the argument; a call that leaves it out warns.
        kwarg_pos: its position, counted from 1.
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        text = f"the default of {kwarg_name!r} of {function.__name__} changes in {version}; pass it"

        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) < kwarg_pos and kwarg_name not in kwargs:
                warnings.warn(text, PendingDeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return warned

    return mark


__all__ = ["deprecated", "deprecated_func", "deprecated_kwargs_default"]
