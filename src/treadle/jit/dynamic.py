"""Functions captured once for many extents: named axes are symbols in the graph.

Each combination of extents that comes along gets a program, made from the one captured graph; the
body does not run again, and kernels, which take extents as arguments, are seldom compiled anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from treadle.base.errors import ShapeError
from treadle.base.shape import Shape
from treadle.base.symbol import evaluate, symbol
from treadle.graph.evaluate import specialize
from treadle.jit.captured import Captured, HostValue, Source
from treadle.tensor import Tensor

Axes = Mapping[int, Mapping[int, str]]
"""For arguments by number (flattened, from 0), the names of axes whose extents may change."""
V = TypeVar("V")


def extents_of(leaves: Sequence[Any], axes: Axes) -> dict[str, int]:
    """The extent behind every name.

    Raises:
        ShapeError: an argument has no such axis, or one name stands for two extents.
    """
    found: dict[str, int] = {}
    for number, names in axes.items():
        leaf = leaves[number] if number < len(leaves) else None
        if not isinstance(leaf, Tensor) or max(names, default=-1) >= leaf.ndim:
            raise ShapeError(
                "jit.compile",
                f"argument {number} has no axes {sorted(names)} to be dynamic",
                saw=str(leaf.type) if isinstance(leaf, Tensor) else type(leaf).__name__,
                hint="arguments are counted from 0, in the order in which they are flattened",
            )
        for axis, name in names.items():
            extent = leaf.shape[axis]
            if found.setdefault(name, extent) != extent:
                raise ShapeError(
                    "jit.compile",
                    f"dynamic extent {name!r} is {found[name]} and {extent}",
                    saw=f"axis {axis} of argument {number}",
                    hint="give axes that differ different names",
                )
    return found


def symbolic_shapes(leaves: Sequence[Any], axes: Axes) -> dict[int, Shape]:
    """Shapes of the arguments with symbols in place of named extents.

    Extents of 0 and 1 stay numbers, and symbols begin at 2: what is empty or broadcasts takes
    another course.
    """
    return {
        number: tuple(
            symbol(names[i], 2) if i in names and extent > 1 else extent
            for i, extent in enumerate(leaves[number].shape)
        )
        for number, names in axes.items()
    }


class Family(Generic[V]):
    """Programs made from one symbolic capture.

    Args:
        captured: with symbols in its types.
        make: makes a program of a capture without them.
    """

    def __init__(self, captured: Captured, make: Callable[[Captured], V]) -> None:
        self.captured = captured
        self._make = make

    def serves(self, extents: Mapping[str, int]) -> bool:
        """Whether the capture's course is the one that these extents take."""
        return all(guard.holds(extents) for guard in self.captured.graph.guards)

    def at(self, extents: Mapping[str, int]) -> V:
        """The program for extents that the capture serves."""
        captured = self.captured
        graph = specialize(captured.graph, extents)
        sources = tuple(_numbered(source, extents) for source in captured.sources)
        return self._make(dataclasses.replace(captured, graph=graph, sources=sources))


def _numbered(source: Source, extents: Mapping[str, int]) -> Source:
    """A source with numbers for its extents."""
    if not isinstance(source, HostValue):
        return source
    numbers = tuple(evaluate(e, extents) for e in source.extents)
    return dataclasses.replace(source, extents=numbers)
