"""Kernels of the gradients of depthwise convolutions to the weight.

Every item adds up its own rows in a table [taps][channels]; then the tables are added in order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Generic, NamedTuple

from treadle.backends.codegen.contraction.depthwise.rows import DepthwiseRows, RowsConfig, Spot
from treadle.backends.codegen.contraction.shared.epilogue import (
    Epilogue,
    OperandPlace,
    RowSteps,
    Sides,
    Term,
    apply_steps,
    declare_pointers,
    declare_steps,
    load_operand,
    store_result,
)
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, fma
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S, required
from treadle.backends.codegen.scalars.code import load_value
from treadle.base.dtype import DType


@lru_cache(maxsize=256)
def weight_kernel(spec: RowsConfig) -> RecordedKernel:
    """Items add up dy times x in tables, `table_step` elements apart.

    The tables are as wide as whole vectors, so only what is multiplied is masked.
    """
    rows, lanes = DepthwiseRows(spec, "sums", Sides((("dy", spec.dtype),)), sums=True), spec.lanes
    e, p, tables = rows.e, rows.p, required(rows.p.tables)
    (dy,), (dy_steps,) = p.memory.extras, p.steps.extras
    steps = [u * dy_steps.row for u in range(spec.width)]
    with e.items() as i:
        chunk = i % p.sizes.chunks
        table = p.taps + chunk * tables.table_step
        with rows.channels(i) as (c, _):
            zero, at = e.constant(0.0, spec.wide, lanes), table + c
            with e.loop(tables.taps) as k:
                at.store(k * p.sizes.tap, zero)
        for spot in rows.tiles(i, table):
            at_dy = rows.offset(dy_steps, spot.row) + spot.position * dy_steps.row
            here = dy + at_dy + spot.channel
            given = [
                load_value(here, step, lanes, spot.mask) for step in steps[: len(spot.pattern)]
            ]
            with rows.lines(spot, []) as (cells, taps):
                _add_line(rows, spot, cells, taps, given)
    return RecordedKernel(e.kernel(f"depthwise_weight_{spec.dtype.name}_{spec.width}"), p)


def _add_line(
    rows: DepthwiseRows, spot: Spot, cells: Pointer, taps: Pointer, given: list[Value]
) -> None:
    """The products of a tile and a row of taps, added to the table."""
    lanes = rows.spec.lanes
    places = {tap: rows.p.sizes.tap * tap for tap in spot.used}
    sums = {tap: taps.load(places[tap], lanes) for tap in spot.used}
    for cell in spot.read:
        x = rows.cell(spot, cells, cell)
        for dy, reads in zip(given, spot.pattern, strict=True):
            for tap in (tap for tap, read in reads if read == cell):
                sums[tap] = fma(x, dy, sums[tap])
    for tap, value in sums.items():
        taps[places[tap]] = value


class AdditionParameters(NamedTuple, Generic[P, S]):
    """Parameters of the kernel that adds tables up."""

    sums: P
    memory: Sides[P]
    chunks: S
    table_step: S
    tap: S
    channels: S
    steps: Sides[RowSteps[S]]


@lru_cache(maxsize=64)
def addition_kernel(wide: DType, lanes: int, epilogue: Epilogue) -> RecordedKernel:
    """Tables [taps][channels] added up, and an epilogue whose rows are taps; items are taps."""
    e = KernelBuilder()
    p = e.record(
        AdditionParameters[Pointer, Value],
        sums=wide,
        memory=lambda: declare_pointers(e, epilogue),
        steps=lambda: declare_steps(e, epilogue, RowSteps[Value]),
    )
    places = epilogue.sides.zip(p.memory, p.steps).map(
        lambda at: OperandPlace(at[0], at[1], *at[2])
    )
    with e.items() as k:
        source = p.sums + k * p.tap
        with e.loop(0, p.channels, lanes) as c:
            at, total = [source], [e.constant(0.0, wide, lanes)]
            with e.loop(p.chunks, carrying=(at, total)):
                total[0] = total[0] + at[0].load(c, lanes)
                at[0] = at[0] + p.table_step
            mask = e.first_lanes(p.channels - c, lanes)
            values = {Term("sum"): total[0]}
            for i, place in enumerate(places.extras):
                values[Term("extra", i)] = load_operand(place, k, c, lanes, mask)
            apply_steps(e, epilogue, values)
            for origin, place in zip(epilogue.sources, places.results, strict=True):
                store_result(place, k, c, values[origin], mask)
    return RecordedKernel(e.kernel(f"depthwise_add_{wide.name}"), p)
