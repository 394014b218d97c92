"""The kernel of depthwise convolutions and their gradients to the input.

The sums of a tile of positions stand in registers; a cell is loaded once for all of them, a tap
once for a row of taps.
"""

from __future__ import annotations

from functools import lru_cache

from treadle.backends.codegen.contraction.depthwise.rows import (
    DepthwiseRows,
    PositionSteps,
    RowsConfig,
    Spot,
)
from treadle.backends.codegen.contraction.shared.epilogue import (
    Access,
    Epilogue,
    OperandPlace,
    Term,
    apply_steps,
    load_operand,
    store_result,
)
from treadle.backends.codegen.contraction.shared.tile import multiply_add
from treadle.backends.codegen.kernel.language import Pointer, Value
from treadle.backends.codegen.kernel.records import RecordedKernel


@lru_cache(maxsize=256)
def depthwise_kernel(spec: RowsConfig, epilogue: Epilogue) -> RecordedKernel:
    """The kernel and what follows the sums."""
    writer = _DepthwiseWriter(spec, epilogue)
    writer.write()
    kernel = writer.rows.e.kernel(f"depthwise_{spec.dtype.name}_{spec.width}")
    return RecordedKernel(kernel, writer.rows.p)


class _DepthwiseWriter:
    """Writes one kernel."""

    def __init__(self, spec: RowsConfig, epilogue: Epilogue) -> None:
        self.spec, self.epilogue = spec, epilogue
        operands = epilogue.sides.named(lambda name, access: (name, access.dtype))
        self.rows = DepthwiseRows(spec, "weight", operands)

    def write(self) -> None:
        """The entry."""
        p = self.rows.p
        for steps in (*p.steps.extras, *p.steps.results):
            for u in range(self.spec.width):
                u * steps.row  # Written here, it is known inside.
        with self.rows.e.items() as i:
            for spot in self.rows.tiles(i, p.taps):
                zero = self.rows.e.constant(0, self.spec.wide, self.spec.lanes)
                sums = [zero] * len(spot.pattern)
                with self.rows.lines(spot, sums) as (cells, taps):
                    self._add_line(spot, cells, taps, sums)
                self._finish(spot, sums)

    def _add_line(self, spot: Spot, cells: Pointer, taps: Pointer, sums: list[Value]) -> None:
        """The products with a row of taps, cell by cell."""
        lanes, tap_step = self.spec.lanes, self.rows.p.sizes.tap
        weights = {tap: taps.load(tap_step * tap, lanes, spot.mask) for tap in spot.used}
        for cell in spot.read:
            x = self.rows.cell(spot, cells, cell)
            for u, reads in enumerate(spot.pattern):
                for tap in (tap for tap, read in reads if read == cell):
                    sums[u] = multiply_add(x, weights[tap], sums[u])

    def _finish(self, spot: Spot, sums: list[Value]) -> None:
        """The epilogue, position by position."""
        lanes, mask, p = self.spec.lanes, spot.mask, self.rows.p
        given = self.epilogue.sides.zip(p.memory, p.steps)
        places = given.map(lambda at: self._place(spot, *at))
        fixed = {
            i: load_operand(place, None, 0, lanes, mask)
            for i, place in enumerate(places.extras)
            if not place.access.by_row
        }
        for u, total in enumerate(sums):
            values = {Term("sum"): total}
            for i, place in enumerate(places.extras):
                known = fixed.get(i)
                if known is None:
                    known = load_operand(place, u, 0, lanes, mask)
                values[Term("extra", i)] = known
            apply_steps(self.rows.e, self.epilogue, values)
            for source, place in zip(self.epilogue.sources, places.results, strict=True):
                store_result(place, u, 0, values[source], mask)

    def _place(
        self, spot: Spot, access: Access, memory: Pointer, steps: PositionSteps[Value]
    ) -> OperandPlace:
        """An operand of the epilogue, or a result, at a tile."""
        at = self.rows.offset(steps, spot.row)
        if access.by_row:
            at = at + spot.position * steps.row
        if access.column == "next":
            at = at + spot.channel
        elif access.column == "far":
            at = at + spot.channel * steps.column
        return OperandPlace(access, memory + at, steps.row, steps.column)
