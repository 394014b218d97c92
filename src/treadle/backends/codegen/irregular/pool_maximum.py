"""The first maximum of one window, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backends.codegen.irregular.pool_tables import Geometry
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.codegen.scalars.code import load_value

Bounds = Sequence[tuple[Value, Value, Value]]


def find_maximum(
    b: Builder, geometry: Geometry, source: Value, bounds: Bounds
) -> tuple[Value, Value]:
    """The first maximum of a window (NaN before numbers) and its place, -1 if it has no cells."""
    _, height, width = geometry.extents
    firsts = [b.min(w[0], b.sub(n, 1)) for w, n in zip(bounds, geometry.extents, strict=True)]
    begin = b.add(b.mul(b.add(b.mul(firsts[0], height), firsts[1]), width), firsts[2])

    def cell(place: Value, best: Value, at: Value) -> tuple[Value, Value]:
        value = load_value(source, place)
        wins = b.compare("lt", best, value)
        if value.dtype.is_float:
            nan = b.bitwise("and", b.compare("ne", value, value), b.compare("eq", best, best))
            wins = b.bitwise("or", wins, nan)
        return b.select(wins, value, best), b.select(wins, place, at)

    best, at = geometry.over(b, bounds, cell, (load_value(source, begin), begin))
    return best, b.select(_has_cells(b, bounds), at, -1)


def _has_cells(b: Builder, bounds: Bounds) -> Value:
    found = [b.compare("lt", first, stop) for first, stop, _ in bounds]
    return b.bitwise("and", b.bitwise("and", found[0], found[1]), found[2])
