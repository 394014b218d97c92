"""Statistics of a block of rows of a result that has just been stored: see `ColumnMoments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from operator import add

from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, fma

_CHAINS = 4
"""Rows that are added independently of one another, since an addition takes some cycles."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows of a panel of the result: where they begin, their distance, and masks of vectors."""

    start: Pointer
    step: Value
    lanes: int
    masks: Sequence[Value | None]

    def load(self, row: Value) -> list[Value]:
        """The vectors of a row."""
        start = row * self.step
        vectors = range(0, len(self.masks) * self.lanes, self.lanes)
        loaded = zip(vectors, self.masks, strict=True)
        return [self.start.load(start + v, self.lanes, mask) for v, mask in loaded]

    def added(self, row: Value, sums: Sequence[Value]) -> list[Value]:
        """Sums with a row."""
        return list(map(add, sums, self.load(row)))

    def squares_added(
        self, mean: Sequence[Value], row: Value, sums: Sequence[Value]
    ) -> list[Value]:
        """Sums with the squared distances of a row from the mean."""
        deviations = [x - m for x, m in zip(self.load(row), mean, strict=True)]
        return [fma(d, d, x) for d, x in zip(deviations, sums, strict=True)]


@lru_cache(maxsize=64)
def moments_function(tile: Tile) -> KernelRoutine:
    """Means and squares of a panel's columns, as a function of what its parameters are named.

    The block is read twice from the first cache: squares are about the mean, and nothing cancels.
    """
    e, lanes = Builder(), tile.lanes
    c, c_step = e.pointer(tile.dtype, "c"), e.size("c_step")
    means, squares = e.pointer(tile.dtype, "means"), e.pointer(tile.dtype, "squares")
    rows, columns = e.sizes("rows", "columns")
    count = rows.cast(tile.dtype).splat(lanes)

    def panel(masks: Sequence[Value | None]) -> None:
        block = _Block(c, c_step, lanes, masks)
        mean = [x / count for x in _summed(e, tile, rows, block.added)]
        made = _summed(e, tile, rows, partial(block.squares_added, mean))
        for target, vectors in ((means, mean), (squares, made)):
            for v, mask in enumerate(masks):
                target.store(v * lanes, vectors[v], mask)

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
