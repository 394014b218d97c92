"""The kernel of depthwise convolutions and their gradients to the input.

The sums of a tile of positions stand in registers; a cell is loaded once for all of them, a tap
once for a row of taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from treadle.backends.codegen.contraction.depthwise.rows import Rows, Spec, Spot
from treadle.backends.codegen.contraction.shared.epilogue import (
    Access,
    Epilogue,
    Place,
    Term,
    apply_steps,
    load_operand,
    store_result,
)
from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.contraction.shared.tile import multiply_add
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value


@lru_cache(maxsize=256)
def depthwise_kernel(spec: Spec, epilogue: Epilogue) -> Contraction:
    """The kernel and what follows the sums."""
    made = _Kernel(spec, epilogue)
    parameters = made.rows.parameters
    name = f"depthwise_{spec.dtype.name}_{spec.width}"
    kernel = builder.kernel(name, tuple(parameters.values()), made.write)
    return Contraction(kernel, tuple(parameters))


class _Kernel:
    """The body."""

    def __init__(self, spec: Spec, epilogue: Epilogue) -> None:
        self.spec, self.epilogue = spec, epilogue
        self.extras = [(f"x{i}", access) for i, access in enumerate(epilogue.extras)]
        self.results = [(f"c{i}", access) for i, access in enumerate(epilogue.results)]
        operands = [(name, access.dtype) for name, access in (*self.extras, *self.results)]
        self.rows = Rows(spec, "weight", operands, ())

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        for name, _ in (*self.extras, *self.results):
            for u in range(self.spec.width):
                e.mul(e.index(u), self.rows[f"{name}_row"])  # Written here, it is known inside.

        def item(i: Value) -> None:
            self.rows.each_tile(e, i, self.rows["weight"], lambda spot: self._tile(e, spot))

        e.loop(lo, hi, 1, item)

    def _tile(self, e: Builder, spot: Spot) -> None:
        zero = e.constant(0, self.spec.wide, self.spec.lanes)

        def line(cells: Value, taps: Value, *sums: Value) -> tuple[Value, ...]:
            return self._line(e, spot, cells, taps, sums)

        sums = self.rows.each_line(e, spot, line, (zero,) * len(spot.pattern))
        self._finish(e, spot, sums)

    def _line(
        self, e: Builder, spot: Spot, cells: Value, taps: Value, sums: Sequence[Value]
    ) -> tuple[Value, ...]:
        """One row of taps, cell by cell."""
        lanes, made = self.spec.lanes, list(sums)
        used = sorted({tap for reads in spot.pattern for tap, _ in reads})
        weights = {
            tap: e.load(taps, e.mul(self.rows["tap"], tap), lanes, spot.mask) for tap in used
        }
        for cell in sorted({cell for reads in spot.pattern for _, cell in reads}):
            x = self.rows.cell(e, spot, cells, cell)
            for u, reads in enumerate(spot.pattern):
                for tap in (tap for tap, read in reads if read == cell):
                    made[u] = multiply_add(e, x, weights[tap], made[u])
        return tuple(made)

    def _finish(self, e: Builder, spot: Spot, sums: Sequence[Value]) -> None:
        """The epilogue, position by position."""
        lanes, mask, here = self.spec.lanes, spot.mask, e.index(0)
        extras = [self._place(e, spot, name, access) for name, access in self.extras]
        results = [self._place(e, spot, name, access) for name, access in self.results]
        fixed = {
            i: load_operand(e, place, None, here, lanes, mask)
            for i, place in enumerate(extras)
            if not place.access.by_row
        }
        for u, total in enumerate(sums):
            values = {Term("sum"): total}
            for i, place in enumerate(extras):
                known = fixed.get(i)
                if known is None:
                    known = load_operand(e, place, e.index(u), here, lanes, mask)
                values[Term("extra", i)] = known
            apply_steps(e, self.epilogue, values)
            for source, place in zip(self.epilogue.sources, results, strict=True):
                store_result(e, place, e.index(u), here, values[source], mask)

    def _place(self, e: Builder, spot: Spot, name: str, access: Access) -> Place:
        """An operand of the epilogue, or a result, at a tile."""
        row, column = self.rows[f"{name}_row"], self.rows[f"{name}_column"]
        at = self.rows.offset(e, name, spot.row)
        if access.by_row:
            at = e.add(at, e.mul(spot.position, row))
        if access.column == "next":
            at = e.add(at, spot.channel)
        elif access.column == "far":
            at = e.add(at, e.mul(spot.channel, column))
        return Place(access, e.offset(self.rows[name], at), row, column)
