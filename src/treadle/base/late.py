"""Late doors: values that a layer offers and a higher layer provides. No other import looks up.

Each name here is one such place. The package at the top, which sees all layers, says where it is
made; the module is imported when the thing is first asked for. Imports inside of functions need
none of this: the contracts on layers and circles count them as they count all others.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Late(Generic[T]):
    """A value that is made when it is first asked for, by whoever `provide` names."""

    __slots__ = ("_make", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._make: Callable[[], T] | None = None

    def provide(self, make: Callable[[], T]) -> None:
        """Say how it is made."""
        self._make = make

    def __call__(self) -> T:
        """The value.

        Raises:
            LookupError: nobody has said how it is made.
        """
        if self._make is None:
            raise LookupError(f"nothing provides {self._name}")
        return self._make()


array_api: Late[ModuleType] = Late("treadle.array_api")
"""The array standard's namespace, which tensors name."""
elementwise_by_mode: Late[Callable[..., Any]] = Late("elementwise functions by MegEngine's modes")
"""Functions that MegEngine names by their mode, which `functional.elemwise` has as `_elwise`."""
collectives: Late[ModuleType] = Late("treadle.distributed.functional")
"""Collective functions, which `functional` has as `distributed`."""
traced_module_from_plain: Late[Callable[[Any], Any]] = Late("traced modules")
"""Traced modules out of files."""
objects_of_pickles: Late[Callable[[Any, Any], Any]] = Late("traced modules of MegEngine")
"""Traced modules in MegEngine's pickles, for one file."""
