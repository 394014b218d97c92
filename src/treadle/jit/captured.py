"""Result of a capture: a graph, the sources of its inputs, and the owners of its outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from treadle.base.loc import Loc
from treadle.base.symbol import Dim, Expr, evaluate
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode
from treadle.engine.eager.dispatch import EagerType
from treadle.engine.spread import ValuePlaces
from treadle.graph.ir import Graph
from treadle.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Argument:
    """An input that is passed: leaf number `index` of the arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class State:
    """An input that is the value of a handle the function reached; equal by its handle."""

    tensor: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


Holder = Tensor | Argument
"""A handle, by itself or as the argument it is passed as."""


def held(holder: Holder, leaves: Sequence[Any]) -> Tensor:
    """The handle, given the flattened arguments."""
    if isinstance(holder, Argument):
        found: Tensor = leaves[holder.index]
        return found
    return holder


@dataclass(frozen=True, slots=True)
class GradOf:
    """An input that is what a handle's `grad` holds."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class HostValue:
    """An input that `read(*extents)` gives at each call: a number, or a small array."""

    read: Callable[..., Any]
    dtype: Any
    shape: tuple[int, ...]
    extents: tuple[Dim, ...] = ()

    def value(self) -> Any:
        """Return the present value; its extents must be numbers."""
        return np.asarray(self.read(*self.extents), self.dtype).reshape(self.shape)


Source = Argument | State | GradOf | HostValue


def source_at(source: Source, extents: Mapping[str, int]) -> Source:
    """Return a source with numbers for its extents."""
    if not isinstance(source, HostValue):
        return source
    return replace(source, extents=tuple(numbers_at(source.extents, extents)))


def numbers_at(values: Iterable[Any], extents: Mapping[str, int]) -> list[Any]:
    """Return values with numbers for those that are expressions."""
    return [evaluate(x, extents) if isinstance(x, Expr) else x for x in values]


@dataclass(frozen=True, slots=True)
class Guard:
    """A fact about the world outside: `read()` gave `value`."""

    read: Callable[[], Any]
    value: Any

    def holds(self) -> bool:
        """Return whether it still does."""
        return bool(self.read() == self.value)


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """Result of a capture.

    Attributes:
        graph: the program.
        sources: where each input comes from.
        kinds: element type and device of each output.
        results: what the function returned, with `Output(number)` in place of tensors.
        updates: (output, input) pairs: handles that were rebound, by the inputs they are.
        gradients: handles whose `grad` is an output at the end, by output number.
        cleared: handles whose `grad` is None at the end and was not at the beginning.
        escaped: other tensors that outlived the function, by output number.
        streams: what takes the states of generators at the end, by output number; only of those
            which the program itself moves on.
        guards: when the graph holds.
        slots: handles whose `grad` the function looks at, and whether it was None.
        home: the device that the program lives on.
        at: the device of every input; None for what Python gives, which can be anywhere.
        places: where there are several devices, that of each node of the graph.
        named: what the program called the tensors that the function returned, by output number.
        pins: symbolic extents of which the function asked the number, and where.
    """

    graph: Graph
    sources: tuple[Source, ...]
    kinds: tuple[EagerType, ...]
    results: Any
    updates: tuple[tuple[int, int], ...]
    gradients: tuple[tuple[int, Holder], ...]
    cleared: tuple[Holder, ...]
    escaped: tuple[tuple[int, weakref.ref[Tensor]], ...]
    streams: tuple[tuple[int, Callable[[Any], None]], ...]
    guards: tuple[Guard, ...]
    slots: tuple[tuple[Holder, bool], ...]
    home: CompNode
    at: tuple[CompNode | None, ...]
    places: tuple[CompNode | None, ...] = ()
    named: Mapping[int, str] = field(default_factory=dict)
    pins: Mapping[Expr, Loc] = field(default_factory=dict)

    @property
    def on_host(self) -> bool:
        """True if all of the program is on the host."""
        return self.home.on_host and not self.places

    @property
    def spread(self) -> ValuePlaces | None:
        """Places of nodes, inputs and outputs, if there are several devices."""
        if not self.places:
            return None
        return ValuePlaces(self.at, self.places, tuple([k.device for k in self.kinds]))

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Return whether the world is as it was; shapes and types of state are looked at
        by `fits`.
        """
        if not self.guards and not self.slots:
            return True
        return all([g.read() == g.value for g in self.guards]) and all(
            [(held(holder, leaves).grad is None) == empty for holder, empty in self.slots]
        )

    @property
    def repeats(self) -> bool:
        """True if one run leaves gradients such that the next run may follow at once."""
        empty = {id(holder) for holder, none in self.slots if none}
        return not (
            self.cleared
            or any(isinstance(s, GradOf) for s in self.sources)
            or any(isinstance(h, Argument) or id(h) in empty for _, h in self.gradients)
        )

    def fits(self, leaves: Sequence[Any], extents: Mapping[str, int] | None = None) -> bool:
        """Return whether state, and gradients that are read, have the shapes and types they had.

        `extents` are those of symbols in the types.
        """
        types = self.graph.input_types
        for source, type_, place in zip(self.sources, types, self.at, strict=True):
            tensor: Any = None
            if isinstance(source, State):
                tensor = source.tensor
            elif isinstance(source, GradOf):
                tensor = held(source.holder, leaves).grad
            else:
                continue
            if extents and not type_.is_static:
                type_ = type_.with_shape(tuple([evaluate(d, extents) for d in type_.shape]))
            if not isinstance(tensor, Tensor) or not fits(tensor, type_, place):
                return False
        return True


def fits(tensor: Tensor, type_: TensorType, place: CompNode | None) -> bool:
    """Return whether a tensor has this element type and shape, and is on this device
    (None: any).
    """
    kind = tensor._kind
    return (
        kind.dtype is type_.dtype
        and tensor._data.shape == type_.shape
        and (place is None or place is kind.device or place.memory == kind.device.memory)
    )


@dataclass(frozen=True, slots=True)
class Output:
    """Stands in a result for output number `index` of the graph."""

    index: int
