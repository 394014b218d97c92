"""Kernels of the gradients of depthwise convolutions to the weight.

Every item adds up its own rows in a table [taps][channels]; then the tables are added in order.
"""

from __future__ import annotations

from functools import lru_cache

from treadle.backends.codegen.contraction.depthwise.rows import Rows, Spec, Spot
from treadle.backends.codegen.contraction.shared.epilogue import (
    Epilogue,
    Place,
    Term,
    apply_steps,
    load_operand,
    store_result,
)
from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.codegen.scalars.code import load_value
from treadle.base.dtype import DType


@lru_cache(maxsize=256)
def weight_kernel(spec: Spec) -> Contraction:
    """Items add up dy times x in tables, `table_step` elements apart.

    The tables are as wide as whole vectors, so only what is multiplied is masked.
    """
    rows = Rows(spec, "sums", (("dy", spec.dtype),), ("taps", "table_step"))
    lanes = spec.lanes

    def write(e: Builder, lo: Value, hi: Value) -> None:
        steps = [e.mul(e.index(u), rows["dy_row"]) for u in range(spec.width)]

        def clear(table: Value, c: Value) -> None:
            zero, at = e.constant(0.0, spec.wide, lanes), e.offset(table, c)
            e.loop(0, rows["taps"], 1, lambda k: e.store(at, e.mul(k, rows["tap"]), zero))

        def tile(spot: Spot) -> None:
            at = e.add(rows.offset(e, "dy", spot.row), e.mul(spot.position, rows["dy_row"]))
            dy = e.offset(e.offset(rows["dy"], at), spot.channel)
            count = len(spot.pattern)
            given = [load_value(dy, step, lanes, spot.mask) for step in steps[:count]]

            def line(cells: Value, taps: Value) -> tuple[Value, ...]:
                _add_line(e, rows, spot, (cells, taps), given)
                return ()

            rows.each_line(e, spot, line)

        def item(i: Value) -> None:
            chunk = e.rem(i, rows["chunks"])
            table = e.offset(rows["sums"], e.mul(chunk, rows["table_step"]))
            rows.channels(e, i, lambda c, _: clear(table, c))
            rows.each_tile(e, i, table, tile)

        e.loop(lo, hi, 1, item)

    name = f"depthwise_weight_{spec.dtype.name}_{spec.width}"
    kernel = builder.kernel(name, tuple(rows.parameters.values()), write)
    return Contraction(kernel, tuple(rows.parameters))


def _add_line(
    e: Builder, rows: Rows, spot: Spot, at: tuple[Value, Value], given: list[Value]
) -> None:
    """The products of a tile and a row of taps, added to the table."""
    cells, taps = at
    lanes = rows.spec.lanes
    used = sorted({tap for reads in spot.pattern for tap, _ in reads})
    places = {tap: e.mul(rows["tap"], tap) for tap in used}
    sums = {tap: e.load(taps, places[tap], lanes) for tap in used}
    for cell in sorted({cell for reads in spot.pattern for _, cell in reads}):
        x = rows.cell(e, spot, cells, cell)
        for dy, reads in zip(given, spot.pattern, strict=True):
            for tap in (tap for tap, read in reads if read == cell):
                sums[tap] = e.fma(x, dy, sums[tap])
    for tap, value in sums.items():
        e.store(taps, places[tap], value)


@lru_cache(maxsize=64)
def addition_kernel(wide: DType, lanes: int, epilogue: Epilogue) -> Contraction:
    """Tables [taps][channels] added up, and an epilogue whose rows are taps; items are taps."""
    accesses = [(f"x{i}", access) for i, access in enumerate(epilogue.extras)]
    accesses += [(f"c{i}", access) for i, access in enumerate(epilogue.results)]
    names = ["chunks", "table_step", "tap", "channels"]
    names += [f"{name}_{step}" for name, _ in accesses for step in ("row", "column")]
    given: dict[str, Value] = {"sums": ir.pointer(wide, "sums")}
    given |= {name: ir.pointer(access.dtype, name) for name, access in accesses}
    given |= {name: ir.size(name) for name in names}

    def write(e: Builder, lo: Value, hi: Value) -> None:
        places = [
            Place(access, given[name], given[f"{name}_row"], given[f"{name}_column"])
            for name, access in accesses
        ]
        extras, results = places[: len(epilogue.extras)], places[len(epilogue.extras) :]

        def tap(k: Value) -> None:
            source = e.offset(given["sums"], e.mul(k, given["tap"]))

            def some(c: Value) -> None:
                def add(_: Value, at: Value, total: Value) -> tuple[Value, Value]:
                    value = e.add(total, e.load(at, c, lanes))
                    return e.offset(at, given["table_step"]), value

                zero = e.constant(0.0, wide, lanes)
                _, total = e.loop(0, given["chunks"], 1, add, (source, zero))
                mask = e.first_lanes(e.sub(given["channels"], c), lanes)
                values = {Term("sum"): total}
                for i, place in enumerate(extras):
                    values[Term("extra", i)] = load_operand(e, place, k, c, lanes, mask)
                apply_steps(e, epilogue, values)
                for origin, place in zip(epilogue.sources, results, strict=True):
                    store_result(e, place, k, c, values[origin], mask)

            e.loop(0, given["channels"], lanes, some)

        e.loop(lo, hi, 1, tap)

    kernel = builder.kernel(f"depthwise_add_{wide.name}", tuple(given.values()), write)
    return Contraction(kernel, tuple(given))
