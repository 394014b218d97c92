"""The first maximum of one window, cell by cell."""

from __future__ import annotations

from treadle.backends.codegen.irregular.pool_tables import Bounds, Geometry
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, select
from treadle.backends.codegen.scalars.code import load_value


def find_maximum(
    e: Builder, geometry: Geometry, source: Pointer, bounds: Bounds
) -> tuple[Value, Value]:
    """The first maximum of a window (NaN before numbers) and its place, -1 if it has no cells."""
    _, height, width = geometry.extents
    firsts = [minimum(w[0], n - 1) for w, n in zip(bounds, geometry.extents, strict=True)]
    begin = (firsts[0] * height + firsts[1]) * width + firsts[2]
    found = [load_value(source, begin), begin]
    with geometry.over(bounds, carrying=found) as place:
        best, at = found
        value = load_value(source, place)
        wins = best < value
        if value.dtype.is_float:
            nan = (value != value) & (best == best)
            wins = wins | nan
        found[:] = select(wins, value, best), select(wins, place, at)
    best, at = found
    return best, select(_has_cells(bounds), at, -1)


def _has_cells(bounds: Bounds) -> Value:
    found = [first < stop for first, stop, _ in bounds]
    return found[0] & found[1] & found[2]
