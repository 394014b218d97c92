"""Other layers in the place of a network's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.module import Module

_BOOKKEEPING = frozenset({"_modules", "_forward_hooks", "_forward_pre_hooks"})


class Conversion:
    """Replaces layers of known classes, at any depth; a layer that is shared stays one.

    Args:
        classes: new classes by old ones.
        constructor: the name of the new classes' method that takes an old layer.
        finished: classes that are left alone although they derive from known ones.
    """

    def __init__(
        self, classes: Mapping[type, Any], constructor: str, finished: tuple[type, ...]
    ) -> None:
        self._classes = classes
        self._known = tuple(classes)
        self._constructor = constructor
        self._finished = finished
        self._done: dict[int, tuple[Module, Any]] = {}

    def of(self, held: Any) -> Any:
        """Convert a module, or a container, which is changed in place.

        Raises:
            TypeError: a layer is of a class derived from a known one.
        """
        if isinstance(held, Module):
            return self._of_module(held)
        if isinstance(held, list):
            held[:] = [self.of(v) for v in held]
        elif isinstance(held, dict):
            held.update({k: self.of(v) for k, v in held.items()})
        elif type(held) is tuple:
            new = tuple(self.of(v) for v in held)
            return new if any(a is not b for a, b in zip(new, held, strict=True)) else held
        return held

    def _of_module(self, layer: Module) -> Any:
        if id(layer) not in self._done:
            new = self._new_of(layer)
            self._done[id(layer)] = layer, layer if new is None else new
            if new is None:
                for name, value in list(vars(layer).items()):
                    replaced = value if name in _BOOKKEEPING else self.of(value)
                    if replaced is not value:
                        setattr(layer, name, replaced)
        return self._done[id(layer)][1]

    def _new_of(self, layer: Module) -> Any:
        if layer.quantize_disabled:
            return None
        wanted = self._classes.get(type(layer))
        if wanted is not None:
            return getattr(wanted, self._constructor)(layer)
        if isinstance(layer, self._known) and not isinstance(layer, self._finished):
            name = type(layer).__name__
            raise TypeError(
                f"{name} is derived from a layer that can be quantized, and may compute something "
                f"else; pass mapping={{{name}: a class with {self._constructor}}}, or call its "
                "disable_quantize()"
            )
        return None
