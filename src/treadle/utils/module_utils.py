"""Attributes of modules by dotted names, and modes that are put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from treadle.module.module import Module
from treadle.module.path import get_at, set_at

__all__ = ["get_expand_structure", "set_expand_structure", "set_module_mode_safe"]


def get_expand_structure(obj: Module, key: str) -> Any:
    """The attribute of a module at a dotted name, through lists, tuples and dicts.

    Args:
        obj: the module.
        key: a name such as `"blocks.0.conv.weight"`, as `named_modules` and `named_tensors` give
            them; an empty one is the module itself.

    Raises:
        AttributeError: a part of the name does not exist.
    """
    return get_at(obj, key)


def set_expand_structure(obj: Module, key: str, value: Any) -> None:
    """Replace the attribute of a module at a dotted name, through lists, tuples and dicts.

    A tuple on the way is replaced by another tuple.

    Raises:
        AttributeError: a part of the name before the last does not exist.
        ValueError: the name is empty.
    """
    set_at(obj, key, value)


@contextmanager
def set_module_mode_safe(module: Module, training: bool = False) -> Iterator[Module]:
    """Switch a module and all below it to a mode, and each back to its own at the end.

    Args:
        module: the module; the context gives it.
        training: the mode for the time being.
    """
    before = [(each, each.training) for each in module.modules()]
    module.train(training)
    try:
        yield module
    finally:
        for each, mode in before:
            each.training = mode
