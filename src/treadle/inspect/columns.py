"""Long drawings in columns, as texts are: a network of two hundred layers fits on a page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log, sqrt

from treadle.graph.layered import Drawing, Point

ASPECT = 1.4
"""Width over height of a page."""
LEAST_HEIGHT, MOST_COLUMNS = 1000.0, 16
"""A drawing that is no higher than that stays as it is."""
MOST_PASSING = 6
"""Edges that a cut may divide; a drawing that is woven closer is left in one piece there."""
GUTTER, LANE, TURN = 44.0, 7.0, 12.0
"""Space between columns, between the edges that go up there, and above and below columns for them
to turn."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A part of a drawing from `top` on, and how far it is moved to the right."""

    top: float
    shift: float
    right: float


def in_columns(drawing: Drawing, sizes: Sequence[Point], aspect: float = ASPECT) -> Drawing:
    """The drawing cut between layers into parts that stand side by side.

    Edges from one part to another leave it at its bottom, go up in front of the column they lead
    to, and enter it from above: their points are those where they turn. Cuts go where few edges
    pass.

    Args:
        drawing: of `arrange`.
        sizes: width and height of the boxes.
        aspect: width over height that is wanted.
    """
    gaps = _gaps(drawing, sizes)
    count = _best_count(drawing, len(gaps) + 1, aspect)
    if count < 2:
        return drawing
    cuts = _cuts(drawing, gaps, count)
    if not cuts:
        return drawing
    columns = _columns(drawing, sizes, cuts)
    return _Folded(drawing, cuts, columns).drawing()


def _gaps(drawing: Drawing, sizes: Sequence[Point]) -> list[float]:
    """The heights between layers."""
    spans: dict[float, float] = {}
    for (_, y), (_, high) in zip(drawing.centers, sizes, strict=True):
        spans[y] = max(spans.get(y, 0.0), high)
    found = sorted(spans.items())
    return [(a + high / 2 + b - other / 2) / 2 for (a, high), (b, other) in pairwise(found)]


def _best_count(drawing: Drawing, most: int, aspect: float) -> int:
    if not drawing.width or drawing.height < LEAST_HEIGHT:
        return 1

    def distance(count: int) -> float:
        wide = count * drawing.width + (count - 1) * GUTTER
        return abs(log(wide / (drawing.height / count) / aspect))

    return min(range(1, min(most, MOST_COLUMNS) + 1), key=distance)


def _cuts(drawing: Drawing, gaps: Sequence[float], count: int) -> list[float]:
    """Heights near equal parts, where the fewest edges pass."""
    passing = _passing(drawing, gaps)
    found: list[float] = []
    part = drawing.height / count
    for number in range(1, count):
        ideal = number * part
        near = [
            i
            for i, gap in enumerate(gaps)
            if abs(gap - ideal) < 0.2 * part and passing[i] <= MOST_PASSING
        ]
        if near:
            best = min(near, key=lambda i: (passing[i], abs(gaps[i] - ideal)))
            found.append(gaps[best])
    return found


def _passing(drawing: Drawing, gaps: Sequence[float]) -> list[int]:
    """Count the edges that pass each gap."""
    change = [0] * (len(gaps) + 1)
    for route in drawing.routes:
        change[bisect_right(gaps, route[0][1])] += 1
        change[bisect_right(gaps, route[-1][1])] -= 1
    found, now = [], 0
    for step in change[: len(gaps)]:
        now += step
        found.append(now)
    return found


def _columns(
    drawing: Drawing, sizes: Sequence[Point], cuts: Sequence[float]
) -> tuple[_Column, ...]:
    """Every part as wide as what is in it, with room for the edges in front of it."""
    left, right = [float("inf")] * (len(cuts) + 1), [0.0] * (len(cuts) + 1)
    entering = [0] * (len(cuts) + 1)
    for (x, y), (wide, _) in zip(drawing.centers, sizes, strict=True):
        part = bisect_right(cuts, y)
        left[part], right[part] = min(left[part], x - wide / 2), max(right[part], x + wide / 2)
    for route in drawing.routes:
        for x, y in route[1:-1]:
            part = bisect_right(cuts, y)
            left[part], right[part] = min(left[part], x), max(right[part], x)
        for (_, y), (_, v) in pairwise(route):
            part = bisect_right(cuts, v)
            entering[part] += part != bisect_right(cuts, y)
    found: list[_Column] = []
    at = 0.0
    for top, low, high, lanes in zip((0.0, *cuts), left, right, entering, strict=True):
        at += (GUTTER + 2 * LANE * lanes) if found else 0.0
        found.append(_Column(top, at - low, at + high - low))
        at += high - low
    return tuple(found)


def in_order(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Boxes one below the other, in columns of equal width; edges are straight ways."""
    wide = max((w for w, _ in sizes), default=0.0) + GUTTER
    high = max((h for _, h in sizes), default=0.0) + GUTTER / 3
    # As many rows as make the page ASPECT times as wide as it is high.
    rows = max(ceil(sqrt(len(sizes) * wide / (ASPECT * high))), 1)
    centers = [((i // rows + 0.5) * wide, (i % rows + 0.5) * high) for i in range(len(sizes))]
    routes = []
    for a, b in edges:
        (x, y), (u, v) = centers[a], centers[b]
        routes.append([(x, y + sizes[a][1] / 2), (u, v - sizes[b][1] / 2)])
    return Drawing(centers, routes, wide * ceil(len(sizes) / rows), high * min(rows, len(sizes)))


class _Folded:
    """Points of a drawing at their places in columns."""

    def __init__(self, drawing: Drawing, cuts: Sequence[float], columns: Sequence[_Column]) -> None:
        self.old = drawing
        self.cuts = cuts
        self.columns = columns
        ends = (*cuts, drawing.height)
        high = max(end - column.top for column, end in zip(columns, ends, strict=True))
        self.high = high + 2 * TURN
        self.lanes = [0] * len(columns)

    def drawing(self) -> Drawing:
        centers = [self._moved(point) for point in self.old.centers]
        routes = [self._route(route) for route in self.old.routes]
        return Drawing(centers, routes, self.columns[-1].right, self.high)

    def _part(self, y: float) -> int:
        return bisect_right(self.cuts, y)

    def _moved(self, point: Point) -> Point:
        column = self.columns[self._part(point[1])]
        return point[0] + column.shift, point[1] - column.top + TURN

    def _route(self, route: Sequence[Point]) -> list[Point]:
        found = [self._moved(route[0])]
        for before, after in pairwise(route):
            part = self._part(after[1])
            if part != self._part(before[1]):
                x = self._lane(part)
                found += [(x, self.high - TURN), (x + LANE, self.high - TURN)]
                found += [(x + LANE, TURN / 2), (x + 2 * LANE, TURN / 2)]
            found.append(self._moved(after))
        return found

    def _lane(self, part: int) -> float:
        """Return the place in front of a column where one more edge may go up."""
        self.lanes[part] += 1
        before = self.columns[part - 1].right
        return before + GUTTER / 2 + 2 * LANE * (self.lanes[part] - 1)
