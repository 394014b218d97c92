"""The kernel that ends Winograd's gradients in the weight: sums of products to three by three taps.

The sums of a point are a matrix of output by input channels; vectors run over input channels,
while in the weight the nine taps of a pair of channels are neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from treadle.backends.codegen.contraction.shared.epilogue import (
    Access,
    Block,
    Epilogue,
    Place,
    finish,
)
from treadle.backends.codegen.contraction.shared.items import Contraction, moved
from treadle.backends.codegen.contraction.shared.pack import pack_function
from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.contraction.winograd.transforms import of_taps, twice
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value

TAPS = 9
_EIGHT = 8
"""Taps that are transposed in registers; the last one is copied number by number."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The kernel's constants: m, a register tile that tells its vectors, and its epilogue."""

    m: int
    tile: Tile
    epilogue: Epilogue


@lru_cache(maxsize=64)
def taps_kernel(spec: Spec) -> Contraction:
    """The kernel of a specification; its items are output channels."""
    writer = _Writer(spec)
    steps = "".join(f"_{s.op.name}" for s in spec.epilogue.steps[:3])
    values = list(writer.values.values())
    kernel = builder.kernel(f"winograd_taps_{spec.m}{steps}", values, writer.write, [writer.pack])
    return Contraction(kernel, tuple(writer.values))


@dataclass(slots=True)
class _Writer:
    """Writes one kernel."""

    spec: Spec
    values: dict[str, Value] = field(default_factory=dict)
    pack: Function = field(init=False)
    made: Value = field(init=False)
    flat: Value = field(init=False)

    def __post_init__(self) -> None:
        tile, accesses = self.spec.tile, self._accesses()
        self.values["sums"] = ir.pointer(tile.dtype, "sums")
        self.values |= {name: ir.pointer(a.dtype, name) for name, a in accesses.items()}
        sizes = ["first", "channels", "sums_pitch", "sums_point"]
        sizes += [f"{name}_{step}" for name in accesses for step in ("row", "column")]
        self.values |= {name: ir.size(name) for name in sizes}
        self.pack = pack_function(tile, tile.dtype, "transposed", panel=False)

    def _accesses(self) -> dict[str, Access]:
        epilogue = self.spec.epilogue
        found = {f"x{i}": x for i, x in enumerate(epilogue.extras)}
        return found | {f"c{i}": c for i, c in enumerate(epilogue.results)}

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        tile = self.spec.tile
        self.made = e.stack(tile.dtype, TAPS * tile.width)
        # Whole vectors are written: the last one goes beyond the last tap.
        self.flat = e.stack(tile.dtype, TAPS * tile.width + tile.lanes)

        def row(r: Value) -> None:
            sums = e.offset(self["sums"], e.mul(r, self["sums_pitch"]))
            o = e.add(self["first"], r)

            def panel(c: Value) -> None:
                self._transform(e, e.offset(sums, c))
                self._flatten(e)
                self._store(e, o, c)

            e.loop(0, self["channels"], tile.width, panel)

        e.loop(lo, hi, 1, row)

    def _transform(self, e: Builder, sums: Value) -> None:
        """The taps of a panel of input channels, tap by tap."""
        tile, m = self.spec.tile, self.spec.m
        n = m + 2
        points = [e.mul(self["sums_point"], p) for p in range(n * n)]

        def vector(v: Value) -> None:
            here = e.offset(sums, v)
            given = [e.load(here, point, tile.lanes) for point in points]
            square = [given[n * y : n * y + n] for y in range(n)]
            taps = [value for line in twice(e, of_taps(m), square) for value in line]
            for tap, value in enumerate(taps):
                e.store(e.offset(self.made, v), tap * tile.width, value)

        e.loop(0, tile.width, tile.lanes, vector)

    def _flatten(self, e: Builder) -> None:
        """The same, channel by channel."""
        width = self.spec.tile.width
        e.call(self.pack, self.made, 1, width, self.flat, TAPS, width, _EIGHT)
        for channel in range(width):
            last = e.load(self.made, _EIGHT * width + channel)
            e.store(self.flat, channel * TAPS + _EIGHT, last)

    def _store(self, e: Builder, o: Value, c: Value) -> None:
        """Apply the epilogue to the taps of a panel and store them."""
        tile, epilogue = self.spec.tile, self.spec.epilogue
        count = e.mul(e.min(e.sub(self["channels"], c), tile.width), TAPS)
        places = [
            moved(e, self._place(name, access), o, e.mul(c, TAPS))
            for name, access in self._accesses().items()
        ]
        extras, results = places[: len(epilogue.extras)], places[len(epilogue.extras) :]
        if epilogue.stores_sums(tile.dtype):
            e.copy(results[0].pointer, self.flat, count)
            return

        def part(j: Value) -> None:
            block = Block(e.offset(self.flat, j), 0, e.index(1), e.sub(count, j))
            there = ([moved(e, x, e.index(0), j) for x in side] for side in (extras, results))
            finish(e, tile, epilogue, block, *there)

        e.loop(0, count, tile.width, part)

    def _place(self, name: str, access: Access) -> Place:
        return Place(access, self[name], self[f"{name}_row"], self[f"{name}_column"])
