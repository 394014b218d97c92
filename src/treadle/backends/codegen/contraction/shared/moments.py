"""Statistics of a block of rows of a result that has just been stored: see `ColumnMoments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import add

from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function
from treadle.backends.codegen.kernel.language import Value, fma

_CHAINS = 4
"""Rows that are added independently of one another, since an addition takes some cycles."""


@lru_cache(maxsize=64)
def moments_function(tile: Tile) -> Function:
    """Means and squares of a panel's columns, as a function of what its parameters are named.

    The block is read twice from the first cache: squares are about the mean, and nothing cancels.
    """
    e, lanes = Builder(), tile.lanes
    c, c_step = e.pointer(tile.dtype, "c"), e.size("c_step")
    means, squares = e.pointer(tile.dtype, "means"), e.pointer(tile.dtype, "squares")
    rows, columns = e.sizes("rows", "columns")
    count = rows.cast(tile.dtype).splat(lanes)

    def panel(masks: Sequence[Value | None]) -> None:
        def load(row: Value) -> list[Value]:
            start = row * c_step
            return [c.load(start + v * lanes, lanes, mask) for v, mask in enumerate(masks)]

        def squared(row: Value, old: Sequence[Value]) -> list[Value]:
            deviations = [x - m for x, m in zip(load(row), mean, strict=True)]
            return [fma(d, d, x) for d, x in zip(deviations, old, strict=True)]

        sums = _summed(e, tile, rows, lambda row, old: list(map(add, old, load(row))))
        mean = [x / count for x in sums]
        for target, made in ((means, mean), (squares, _summed(e, tile, rows, squared))):
            for v, mask in enumerate(masks):
                target.store(v * lanes, made[v], mask)

    with e.when(tile.width <= columns):
        panel([None] * tile.vectors)
    with e.otherwise():
        counts = [columns - v * lanes for v in range(tile.vectors)]
        panel([e.first_lanes(n, lanes) for n in counts])
    return e.function(f"moments_{tile.width}_{tile.dtype.name}")


def _summed(
    e: Builder,
    tile: Tile,
    rows: Value,
    more: Callable[[Value, Sequence[Value]], list[Value]],
) -> list[Value]:
    """Sums over rows, one per vector of a panel; `more` adds a row to sums."""
    zero = e.constant(0, tile.dtype, tile.lanes)
    chains = [[zero] * tile.vectors for _ in range(_CHAINS)]
    whole = (rows // _CHAINS) * _CHAINS
    with e.loop(0, whole, _CHAINS, carrying=(*chains,)) as row:
        for i, chain in enumerate(chains):
            chain[:] = more(row + i, chain)
    total = reduce(lambda x, y: list(map(add, x, y)), chains)
    with e.loop(whole, rows, carrying=total) as row:
        total[:] = more(row, total)
    return total
