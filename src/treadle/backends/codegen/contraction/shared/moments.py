"""Statistics of a block of rows of a result that has just been stored: see `ColumnMoments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce

from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value

_CHAINS = 4
"""Rows that are added independently of one another, since an addition takes some cycles."""


@lru_cache(maxsize=64)
def moments_function(tile: Tile) -> Function:
    """Means and squares of a panel's columns, as a function of what its parameters are named.

    The block is read twice from the first cache: squares are about the mean, and nothing cancels.
    """
    c, means, squares = (ir.pointer(tile.dtype, name) for name in ("c", "means", "squares"))
    c_step, rows, columns = (ir.size(name) for name in ("c_step", "rows", "columns"))

    def write(e: Builder) -> None:
        count = e.splat(e.cast(rows, tile.dtype), tile.lanes)

        def panel(masks: Sequence[Value | None]) -> None:
            def load(row: Value) -> list[Value]:
                start = e.mul(row, c_step)
                return [
                    e.load(c, e.add(start, v * tile.lanes), tile.lanes, mask)
                    for v, mask in enumerate(masks)
                ]

            sums = _summed(e, tile, rows, lambda r, old: _added(e, load(r), old))
            mean = [e.div(x, count) for x in sums]

            def squared(r: Value, old: Sequence[Value]) -> list[Value]:
                deviations = [e.sub(x, m) for x, m in zip(load(r), mean, strict=True)]
                return [e.fma(d, d, x) for d, x in zip(deviations, old, strict=True)]

            for target, made in ((means, mean), (squares, _summed(e, tile, rows, squared))):
                for v, mask in enumerate(masks):
                    e.store(target, v * tile.lanes, made[v], mask)

        def part() -> None:
            counts = [e.sub(columns, v * tile.lanes) for v in range(tile.vectors)]
            panel([e.first_lanes(n, tile.lanes) for n in counts])

        full = e.compare("le", tile.width, columns)
        e.branch(full, lambda: panel([None] * tile.vectors), part)

    parameters = [c, c_step, means, squares, rows, columns]
    return builder.function(f"moments_{tile.width}_{tile.dtype.name}", parameters, write)


def _added(e: Builder, values: Sequence[Value], old: Sequence[Value]) -> list[Value]:
    return [e.add(x, y) for x, y in zip(old, values, strict=True)]


def _summed(
    e: Builder,
    tile: Tile,
    rows: Value,
    more: Callable[[Value, Sequence[Value]], list[Value]],
) -> list[Value]:
    """Sums over rows, one per vector of a panel; `more` adds a row to sums."""
    vectors = tile.vectors
    zero = e.constant(0, tile.dtype, tile.lanes)
    whole = e.mul(e.div(rows, _CHAINS), _CHAINS)

    def several(r: Value, *old: Value) -> tuple[Value, ...]:
        made: list[Value] = []
        for i in range(_CHAINS):
            made += more(e.add(r, i), old[i * vectors : (i + 1) * vectors])
        return tuple(made)

    found = e.loop(0, whole, _CHAINS, several, [zero] * (_CHAINS * vectors))
    chains = [list(found[i * vectors : (i + 1) * vectors]) for i in range(_CHAINS)]
    total = reduce(lambda x, y: _added(e, y, x), chains)
    return list(e.loop(whole, rows, 1, lambda r, *old: tuple(more(r, old)), total))
