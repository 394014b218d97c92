"""Native code of a model file, run on the memory of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from treadle.engine.package.offline import OfflineModel
from treadle.lite.config import LiteIO
from treadle.lite.tensor import Array, LiteLayout, Shapes

Room = Callable[[str, LiteLayout], "Array | None"]
"""Destination of an output of a layout, by name; None: anywhere."""


class Native:
    """A file's native code for machines like this one.

    Args:
        offline: the file, which has code that fits.

    Attributes:
        inputs, outputs: names, and layouts in the first gear.
        gears: for the shapes of the inputs, names and layouts of the outputs.
    """

    def __init__(self, offline: OfflineModel) -> None:
        self._offline = offline
        ports = offline.inputs, offline.outputs
        self.inputs, self.outputs = (
            [LiteIO(p.name, layout=LiteLayout(p.shapes[0], p.dtype)) for p in ends]
            for ends in ports
        )
        self.gears: dict[Shapes, list[tuple[str, LiteLayout]]] = {}
        for number, gear in enumerate(zip(*(p.shapes for p in offline.inputs), strict=True)):
            self.gears[gear] = [
                (p.name, LiteLayout(p.shapes[number], p.dtype)) for p in offline.outputs
            ]

    def run(self, arrays: Sequence[Array], room: Room) -> list[Array]:
        """Run on arrays whose shapes are a gear; results are written where `room` says."""
        places = {}
        for name, layout in self.gears[tuple([a.shape for a in arrays])]:
            place = room(name, layout)
            if place is not None:
                places[name] = place
        # A program may write a result before it has read all of an input.
        apart = {
            name: place
            for name, place in places.items()
            if not any(np.may_share_memory(place, a) for a in arrays)
        }
        results = self._offline.run(arrays, apart)
        for name in places.keys() - apart.keys():
            np.copyto(places[name], results[name])
            results[name] = places[name]
        return list(results.values())


__all__ = ["Native", "Room"]
