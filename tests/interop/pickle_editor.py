"""Pickles of classes that are not installed, as objects to change, and back."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from typing import Any

KEPT = ("builtins", "collections", "inspect", "abc")


class Thing:
    """An object of a class that only has a name: what it was made with, and its state."""

    def __new__(cls, *arguments: Any) -> Any:
        made = object.__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg.__newobj__, (type(self), *self.arguments), self.state  # type: ignore[attr-defined]


class _Reader(pickle._Unpickler):  # type: ignore[name-defined]
    def __init__(self, file: Any, classes: dict[tuple[str, str], type]) -> None:
        super().__init__(file)
        self._classes = classes

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in (*KEPT, "numpy"):
            return super().find_class(module, name)
        return named(module, name, self._classes)


class _Writer(pickle._Pickler):  # type: ignore[name-defined]
    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_type(self, cls: type) -> None:
        if not issubclass(cls, Thing):
            return pickle._Pickler.save_type(self, cls)  # type: ignore[attr-defined, no-any-return]
        self.save(cls.__module__)
        self.save(cls.__qualname__)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(cls)
        return None

    dispatch[type] = save_type


def named(module: str, name: str, classes: dict[tuple[str, str], type]) -> type:
    """The class that stands for a name."""
    if (module, name) not in classes:
        body = {"__module__": module, "__qualname__": name}
        classes[module, name] = type(name, (Thing,), body)
    return classes[module, name]


def opened(data: bytes) -> tuple[Any, dict[tuple[str, str], type]]:
    """The object of a pickle, and the classes that stand for its names."""
    classes: dict[tuple[str, str], type] = {}
    return _Reader(io.BytesIO(data), classes).load(), classes


def closed(found: Any) -> bytes:
    """The pickle of an object."""
    file = io.BytesIO()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        _Writer(file, 4).dump(found)
    finally:
        sys.setrecursionlimit(before)
    return file.getvalue()
