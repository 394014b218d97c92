"""Layers one after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from treadle.module.module import Module

Layer: TypeAlias = "Module | Callable[[Any], Any]"


class Sequential(Module):
    """Feeds each layer's output to the next.

    Args:
        args: layers, which become the attributes "0", "1", ...; or one ordered mapping of names
            to layers. A layer is a module, or a function of one argument (`F.relu6`).
        name: a name for messages and graphs.

    Layers are indexed by position, from either end; a slice makes a new `Sequential` around the
    same layers.
    """

    def __init__(self, *args: Layer | Mapping[str, Layer], name: str | None = None) -> None:
        super().__init__(name)
        self.layer_keys: list[str] = []
        first = args[0] if args else None
        if len(args) == 1 and isinstance(first, Mapping):
            layers = dict(first)
        else:
            layers = {str(i): _layer(layer) for i, layer in enumerate(args)}
        for key, layer in layers.items():
            self._put(key, layer)

    def _put(self, key: str, layer: Layer) -> None:
        if key not in self.layer_keys and key in dir(self):
            raise ValueError(f"Sequential: a layer cannot be called {key!r}, the name is taken")
        setattr(self, key, _layer(layer))
        if key not in self.layer_keys:
            self.layer_keys.append(key)

    @property
    def layer_values(self) -> list[Layer]:
        """The layers, in order."""
        return [getattr(self, key) for key in self.layer_keys]

    def __len__(self) -> int:
        return len(self.layer_keys)

    def __getitem__(self, index: int | slice) -> Any:
        keys = self.layer_keys[index]
        if isinstance(keys, str):
            return getattr(self, keys)
        # A subclass whose constructor takes something else cannot hold the slice.
        made = type(self) if type(self).__init__ is Sequential.__init__ else Sequential
        return made(OrderedDict((key, getattr(self, key)) for key in keys))

    def __setitem__(self, index: int | slice, value: Any) -> None:
        keys = self.layer_keys[index]
        if isinstance(keys, str):
            self._put(keys, value)
            return
        layers = list(value)
        if len(layers) != len(keys):
            raise ValueError(f"Sequential: {len(layers)} layers for {len(keys)} positions")
        for key, layer in zip(keys, layers, strict=True):
            self._put(key, layer)

    def __delitem__(self, index: int | slice) -> None:
        keys = self.layer_keys[index]
        for key in [keys] if isinstance(keys, str) else keys:
            delattr(self, key)
            self.layer_keys.remove(key)

    def append(self, layer: Layer) -> Sequential:
        """Add a layer at the end and return the container."""
        taken = [int(key) for key in self.layer_keys if key.isdecimal()]
        self._put(str(max([len(self.layer_keys) - 1, *taken]) + 1), layer)
        return self

    def forward(self, inp: Any) -> Any:
        for key in self.layer_keys:
            inp = getattr(self, key)(inp)
        return inp


def _layer(layer: object) -> Layer:
    if isinstance(layer, type):
        given = f"the class {layer.__name__}; construct it: {layer.__name__}(...)"
        raise TypeError(f"Sequential takes modules and functions, got {given}")
    if isinstance(layer, Module) or callable(layer):
        return layer
    given = f"{type(layer).__name__}"
    if isinstance(layer, list | tuple):
        given += "; pass them one by one: Sequential(*layers)"
    raise TypeError(f"Sequential takes modules and functions, got {given}")
