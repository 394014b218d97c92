"""Handles of registered hooks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

Hook = Callable[..., Any]

_KEYS = itertools.count()


class HookHandler:
    """Remembers where a hook was registered; `remove()` takes it out again, once or more often."""

    __slots__ = ("_hooks", "_key")

    def __init__(self, hooks: dict[int, Hook], hook: Hook) -> None:
        self._hooks = hooks
        self._key = next(_KEYS)
        hooks[self._key] = hook

    def remove(self) -> None:
        """Stop calling the hook."""
        self._hooks.pop(self._key, None)
