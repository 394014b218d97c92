"""The kernel that ends Winograd's gradients in the weight: sums of products to three by three taps.

The sums of a point are a matrix of output by input channels; vectors run over input channels,
while in the weight the nine taps of a pair of channels are neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple

from treadle.backends.codegen.contraction.shared.epilogue import (
    Epilogue,
    OperandPlace,
    RowSteps,
    Sides,
    SumsBlock,
    declare_pointers,
    declare_steps,
    finish,
)
from treadle.backends.codegen.contraction.shared.items import moved
from treadle.backends.codegen.contraction.shared.pack import pack_function
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.contraction.winograd.transforms import of_taps, twice
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S

TAPS = 9
_EIGHT = 8
"""Taps that are transposed in registers; the last one is copied number by number."""


@dataclass(frozen=True, slots=True)
class TapsSpec:
    """The kernel's constants: m, a register tile that tells its vectors, and its epilogue."""

    m: int
    tile: Tile
    epilogue: Epilogue


class TapsParameters(NamedTuple, Generic[P, S]):
    """Parameters of the kernel; `first` is the output channel of the first item."""

    sums: P
    memory: Sides[P]
    first: S
    channels: S
    sums_pitch: S
    sums_point: S
    steps: Sides[RowSteps[S]]


@lru_cache(maxsize=64)
def taps_kernel(spec: TapsSpec) -> RecordedKernel:
    """The kernel of a specification; its items are output channels."""
    writer = _TapWriter(spec)
    writer.write()
    name = f"winograd_taps_{spec.m}{spec.epilogue.label}"
    return RecordedKernel(writer.e.kernel(name, [writer.pack]), writer.p)


class _TapWriter:
    """Writes one kernel."""

    def __init__(self, spec: TapsSpec) -> None:
        self.e, self.spec, tile = KernelBuilder(), spec, spec.tile
        self.p = self._parameters()
        self.pack = pack_function(tile, tile.dtype, "transposed", panel=False)
        self.made = self.e.stack(tile.dtype, TAPS * tile.width)
        # Whole vectors are written: the last one goes beyond the last tap.
        self.flat = self.e.stack(tile.dtype, TAPS * tile.width + tile.lanes)

    def _parameters(self) -> TapsParameters[Pointer, Value]:
        e, epilogue = self.e, self.spec.epilogue
        return e.record(
            TapsParameters[Pointer, Value],
            sums=self.spec.tile.dtype,
            memory=lambda: declare_pointers(e, epilogue),
            steps=lambda: declare_steps(e, epilogue, RowSteps[Value]),
        )

    def write(self) -> None:
        """The entry."""
        with self.e.items() as r:
            sums = self.p.sums + r * self.p.sums_pitch
            o = self.p.first + r
            with self.e.loop(0, self.p.channels, self.spec.tile.width) as c:
                self._transform(sums + c)
                self._flatten()
                self._store(o, c)

    def _transform(self, sums: Pointer) -> None:
        """The taps of a panel of input channels, tap by tap."""
        tile, n = self.spec.tile, self.spec.m + 2
        points = [self.p.sums_point * i for i in range(n * n)]
        with self.e.loop(0, tile.width, tile.lanes) as v:
            here = sums + v
            given = [here.load(point, tile.lanes) for point in points]
            square = [given[n * y : n * y + n] for y in range(n)]
            taps = [value for line in twice(of_taps(self.spec.m), square) for value in line]
            there = self.made + v
            for tap, value in enumerate(taps):
                there[tap * tile.width] = value

    def _flatten(self) -> None:
        """The same, channel by channel."""
        e, width = self.e, self.spec.tile.width
        e.call(self.pack, self.made, 1, width, self.flat, TAPS, width, _EIGHT)
        for channel in range(width):
            self.flat[channel * TAPS + _EIGHT] = self.made[_EIGHT * width + channel]

    def _store(self, o: Value, c: Value) -> None:
        """Apply the epilogue to the taps of a panel and store them."""
        e, tile, epilogue = self.e, self.spec.tile, self.spec.epilogue
        count = minimum(self.p.channels - c, tile.width) * TAPS
        given = epilogue.sides.zip(self.p.memory, self.p.steps)
        places = given.map(lambda at: moved(OperandPlace(at[0], at[1], *at[2]), o, c * TAPS))
        if epilogue.stores_sums(tile.dtype):
            places.results[0].pointer.copy_from(self.flat, count)
            return
        with e.loop(0, count, tile.width) as j:
            block = SumsBlock(self.flat + j, 0, e.index(1), count - j)
            finish(e, tile, epilogue, block, places.map(lambda place: moved(place, 0, j)))
