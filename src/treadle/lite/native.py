"""Native code of a model file, run on the memory of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from treadle.base.array import Array
from treadle.engine.package.offline import OfflineModel
from treadle.lite.config import LiteIO
from treadle.lite.tensor import LiteLayout, Shapes

Room = Callable[[str, LiteLayout], "Array | None"]
"""Destination of an output of a layout, by name; None: anywhere."""


class Native:
    """A file's native code for machines like this one.

    Args:
        offline: the file, which has code that fits.

    Attributes:
        inputs, outputs: names, and layouts in the first gear.
        gears: shapes of the inputs, gear by gear; of a file for ranges of extents, some of those
            that it takes.
        ranges: least and largest extents by name, of such a file.
    """

    def __init__(self, offline: OfflineModel) -> None:
        self._offline = offline
        ports = offline.inputs, offline.outputs
        self.inputs, self.outputs = (
            [LiteIO(p.name, layout=LiteLayout(p.shapes[0], p.dtype)) for p in ends]
            for ends in ports
        )
        self.gears: list[Shapes] = list(zip(*(p.shapes for p in offline.inputs), strict=True))
        self.ranges = offline.ranges

    def at(self, shapes: Shapes) -> list[tuple[str, LiteLayout]] | None:
        """Names and layouts of the outputs for inputs of these shapes; None: there is no code.

        Extents that data decide are -1.
        """
        found = self._offline.results(shapes)
        if found is None:
            return None
        ends = zip(self._offline.outputs, found, strict=True)
        return [(port.name, LiteLayout(shape, port.dtype)) for port, shape in ends]

    def run(self, arrays: Sequence[Array], room: Room) -> list[Array]:
        """Run on arrays of shapes that there is code for; results go where `room` says."""
        places, later = {}, []
        for name, layout in self.at(tuple([a.shape for a in arrays])) or ():
            if -1 in layout.shapes:  # Data decide it.
                later.append(name)
                continue
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
        for name in later:
            place = room(name, LiteLayout(results[name].shape, results[name].dtype))
            if place is not None:
                places[name] = place
        for name in places.keys() - apart.keys():
            np.copyto(places[name], results[name])
            results[name] = places[name]
        return list(results.values())


__all__ = ["Native", "Room"]
