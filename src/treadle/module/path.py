"""Dotted paths below a module: `blocks.0.conv.weight` goes through lists, tuples and dicts too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.module.module import Module


def get_at(root: Any, path: str) -> Any:
    """The object at a dotted path; an empty path is the root itself.

    Raises:
        AttributeError: a part of the path does not exist, or lies in neither a module nor a list,
            tuple or dict.
    """
    found = root
    for part in split(path):
        found = _step(found, part, path)
    return found


def set_at(root: Any, path: str, value: Any) -> None:
    """Replace or add the object at a dotted path; a tuple on the way becomes another tuple.

    Raises:
        AttributeError: a part of the path before the last does not exist.
        ValueError: the path is empty.
    """
    *before, last = [*split(path)] or [""]
    if not last:
        raise ValueError("the path is empty")
    holder = get_at(root, ".".join(before))
    if isinstance(holder, tuple):
        items = list(holder)
        items[_index(holder, last, path)] = value
        set_at(root, ".".join(before), tuple(items))
    elif isinstance(holder, list):
        holder[_index(holder, last, path)] = value
    elif isinstance(holder, dict):
        holder[_key(holder, last)] = value
    else:
        setattr(holder, last, value)


def split(path: str) -> Iterator[str]:
    """The parts of a dotted path."""
    return (part for part in path.split(".") if part)


def _step(holder: Any, part: str, path: str) -> Any:
    if isinstance(holder, (list, tuple)):
        return holder[_index(holder, part, path)]
    if isinstance(holder, dict):
        key = _key(holder, part)
        if key in holder:
            return holder[key]
    elif isinstance(holder, Module):
        # Own attributes first: users' names may shadow those of the class.
        return vars(holder)[part] if part in vars(holder) else getattr(holder, part)
    # Paths come from files, too: other objects are not looked into.
    raise AttributeError(f"no {part!r} on the way to {path!r}")


def _index(holder: list[Any] | tuple[Any, ...], part: str, path: str) -> int:
    if not part.isdecimal() or int(part) >= len(holder):
        raise AttributeError(f"no item {part!r} on the way to {path!r}")
    return int(part)


def _key(holder: dict[Any, Any], part: str) -> Any:
    """The key whose text is `part`; the text itself where there is none."""
    return next((key for key in holder if str(key) == part), part)
