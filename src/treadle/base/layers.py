"""The stack of layers that run on a thread, for those who watch: path and class of each."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any


class _Stack(threading.local):
    """One thread's layers from the outermost to the innermost, and names of all below the first."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.names: dict[int, str] = {}


_STACK = _Stack()


def current_layer() -> str:
    """The layer that runs: its path in the outermost module and its class; "" outside of all.

    Layers are known while an observer runs that calls modules by `within`.
    """
    return _STACK.layers[-1] if _STACK.layers else ""


def depth() -> int:
    """Return how many layers run inside of each other."""
    return len(_STACK.layers)


def within(module: Any, forward: Callable[[], Any]) -> Any:
    """The result of `forward()`, which is one call of a module; it is the current layer."""
    if not _STACK.layers:
        _STACK.names = {id(m): name for name, m in module.named_modules()}
    path, kind = _STACK.names.get(id(module), ""), type(module).__name__
    _STACK.layers.append(f"{path} ({kind})" if path else kind)
    try:
        return forward()
    finally:
        _STACK.layers.pop()


_RAISED_BY: weakref.WeakKeyDictionary[BaseException, Any] = weakref.WeakKeyDictionary()
"""The innermost layer that an error has left."""

_IN = "  in:   "


def note_layer(error: BaseException, module: Any) -> None:
    """Add to an error which layer of `module` it has left: its path, and its class.

    Called by each layer from the innermost to the outermost, whose name for it stays.
    """
    inner = _RAISED_BY.setdefault(error, module)
    path = next((name for name, m in module.named_modules() if m is inner), "")
    if path:
        notes = [n for n in getattr(error, "__notes__", ()) if not n.startswith(_IN)]
        error.__notes__ = [f"{_IN}{path}, of class {type(inner).__name__}", *notes]
