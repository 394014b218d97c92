"""Whole modules in files: the name of the class, and the attributes.

Reading one imports nothing and calls nothing. The class must be one that the program has already
defined or imported, and a `Module`: it is found among the subclasses, made without its
constructor, and given its attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.base.errors import CheckpointError
from treadle.module.module import Module


def from_plain(plain: Any) -> Module:
    """The module that `Module._as_plain` wrote.

    Raises:
        CheckpointError: the program has no such class.
        ValueError: it was not written so. TypeError likewise.
    """
    name, attributes = plain
    if not isinstance(name, str) or not isinstance(attributes, dict):
        raise ValueError("a module is malformed")
    if not all(isinstance(key, str) and not key.startswith("__") for key in attributes):
        raise ValueError(f"a {name} has attributes without a proper name")
    found = [cls for cls in _below(Module) if f"{cls.__module__}:{cls.__qualname__}" == name]
    if not found:
        home, _, cls = name.partition(":")
        raise CheckpointError(
            "load",
            f"the file holds a module of the class {cls}, which this program does not have",
            hint=f"define it or `import {home}` before loading, or save state_dict() in its place",
        )
    made: Module = object.__new__(found[-1])  # The latest one, where a class was defined again.
    vars(made).update(attributes)
    return made


def _below(cls: type[Any]) -> Iterator[type[Any]]:
    """All subclasses that are alive."""
    subclasses: list[type[Any]] = cls.__subclasses__()
    for sub in subclasses:
        yield sub
        yield from _below(sub)
