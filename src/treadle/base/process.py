"""Tables and caches of the process that something may make stale, owned by one object.

The answers of backends follow from the backends that there are; constants on a device live as long
as it is open; launches that are kept for repeated calls follow from both, and from who watches;
some values follow from the environment and the machine; a warning is given once. Who keeps such a
table takes it from `RUNTIME` and names its cause. Whoever changes a cause calls `invalidate` and
needs to know no table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar, get_args

P = ParamSpec("P")
R = TypeVar("R")
Cause = Literal["backends", "devices", "environment", "launches", "messages"]

_FOLLOWS: dict[Cause, tuple[Cause, ...]] = {
    "environment": ("backends", "devices", "launches"),
    "backends": ("devices", "launches"),
    "devices": ("launches",),
}
"""For a cause, those that change with it."""


class Runtime:
    """The owner of tables and caches that follow from a cause.

    Attributes:
        tables: the tables by name, for those who look.
    """

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, Any]] = {}
        self._after: dict[Cause, list[Callable[[], object]]] = {c: [] for c in get_args(Cause)}

    def table(self, name: str, cause: Cause) -> dict[Any, Any]:
        """Return a new table, which is emptied whenever its cause changes.

        Raises:
            ValueError: there is a table of this name.
        """
        if name in self.tables:
            raise ValueError(f"two tables are called {name!r}")
        made = self.tables[name] = {}
        self.after(cause, made.clear)
        return made

    def cached(
        self, cause: Cause, most: int | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator that keeps results, by arguments, until the cause changes.

        Args:
            cause: what makes them stale.
            most: results that are kept; None keeps all.
        """

        def keep(function: Callable[P, R]) -> Callable[P, R]:
            made = functools.lru_cache(most)(function)
            self.after(cause, made.cache_clear)
            return made  # type: ignore[return-value]  # It takes the same arguments.

        return keep

    def after(self, cause: Cause, forget: Callable[[], object]) -> None:
        """Call `forget` whenever the cause changes, in the order of registration."""
        self._after[cause].append(forget)

    def invalidate(self, *causes: Cause) -> None:
        """Forget what follows from some causes; from all of them where none is given."""
        named: tuple[Cause, ...] = causes or get_args(Cause)
        for cause in dict.fromkeys(c for n in named for c in (n, *_FOLLOWS.get(n, ()))):
            for forget in self._after[cause]:
                forget()

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Run a block as in a process that has just begun, and leave nothing of it behind."""
        self.invalidate()
        try:
            yield
        finally:
            self.invalidate()


RUNTIME = Runtime()
"""The process's own."""
