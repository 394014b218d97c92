"""Positions: integer expressions over loop counters that say which element is meant.

A position is a constant plus multiples of atoms. Atoms are the counters of a loop nest and what
movement makes of them where it is not affine: quotients, remainders, clamped and mirrored
positions, and numbers that are loaded at run time. Extents are known, so that most quotients and
remainders resolve; where a counter stands in the way, `Split` asks for two in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from treadle.base.estimates import estimate
from treadle.base.symbol import Dim, always, is_identical, less_equal

AtomKind = Literal["counter", "quotient", "remainder", "clamp", "mirror", "fetch"]


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """A number in [0, extent), compared by identity: `Positions` makes equal ones once.

    Attributes:
        number: order of invention; counters come first.
        varies: bitset of the counters it depends on.
        of: what a quotient, remainder, clamped or mirrored position is taken of.
        divisor: of quotients and remainders.
        cell: of fetched numbers, the `Cell` that holds the index.
        stage: reductions that have to be complete before it is known.
    """

    kind: AtomKind
    number: int
    extent: Dim
    varies: int
    of: Position | None = None
    divisor: Dim = 1
    cell: Any = None
    stage: int = 0


class Position(NamedTuple):
    """constant + the sum of factor * atom; atoms by number, factors are not 0."""

    constant: Dim
    terms: tuple[tuple[Atom, Dim], ...] = ()

    @property
    def varies(self) -> int:
        """Bitset of the counters it depends on."""
        found = 0
        for atom, _ in self.terms:
            found |= atom.varies
        return found

    @property
    def stage(self) -> int:
        """Reductions that have to be complete before it is known."""
        return max((a.stage for a, _ in self.terms), default=0)

    @property
    def bounds(self) -> tuple[Dim, Dim]:
        """Least and greatest value it may have."""
        low = high = self.constant
        for atom, factor in self.terms:
            reach = factor * (atom.extent - 1)
            low, high = (low, high + reach) if reach >= 0 else (low + reach, high)
        return low, high

    def factor(self, atom: Atom) -> Dim:
        """The multiple of an atom, 0 where it does not appear."""
        for a, factor in self.terms:
            if a is atom:
                return factor
        return 0


ZERO = Position(0)


class Split(Exception):
    """A position resolves if `counter` is replaced by two, the inner one of extent `inner`."""

    def __init__(self, counter: Atom, inner: Dim) -> None:
        super().__init__()
        self.counter = counter
        self.inner = inner


def plus(x: Position, y: Position) -> Position:
    """x + y."""
    if not y.terms:
        return x if is_identical(y.constant, 0) else Position(x.constant + y.constant, x.terms)
    if not x.terms:
        return Position(x.constant + y.constant, y.terms)
    factors = dict(x.terms)
    for atom, factor in y.terms:
        factors[atom] = factors.get(atom, 0) + factor
    kept = sorted(((a, f) for a, f in factors.items() if not is_identical(f, 0)), key=_by_number)
    return Position(x.constant + y.constant, tuple(kept))


def _by_number(term: tuple[Atom, Dim]) -> int:
    return term[0].number


def times(x: Position, factor: Dim) -> Position:
    """x * factor."""
    if is_identical(factor, 1):
        return x
    if is_identical(factor, 0):
        return ZERO
    return Position(x.constant * factor, tuple((a, f * factor) for a, f in x.terms))


def shifted(x: Position, offset: Dim) -> Position:
    """x + offset."""
    return x if is_identical(offset, 0) else Position(x.constant + offset, x.terms)


def linear(index: Sequence[Position], shape: Sequence[Dim]) -> Position:
    """The row-major place of an element in a dense array of this shape."""
    place = ZERO
    for position, extent in zip(index, shape, strict=True):
        place = plus(times(place, extent), position)
    return place


class Positions:
    """The counters of one loop nest, and the atoms made of them."""

    def __init__(self, extents: Iterable[Dim]) -> None:
        self.counters: list[Atom] = []
        self._made: dict[Any, Atom] = {}
        for extent in extents:
            number = len(self.counters)
            self.counters.append(Atom("counter", number, extent, 1 << number))

    def counter(self, number: int) -> Position:
        """A counter as a position; one that has a single value is 0."""
        atom = self.counters[number]
        return ZERO if is_identical(atom.extent, 1) else Position(0, ((atom, 1),))

    def _atom(
        self, kind: AtomKind, extent: Dim, of: Position, divisor: Dim = 1, cell: Any = None
    ) -> Position:
        """The one atom of this description, as a position."""
        key = (kind, extent, of, divisor, id(cell))
        atom = self._made.get(key)
        if atom is None:
            varies = cell.varies if cell is not None else of.varies
            stage = cell.stage if cell is not None else of.stage
            number = len(self.counters) + len(self._made)
            atom = Atom(kind, number, extent, varies, of, divisor, cell, stage)
            self._made[key] = atom
        return Position(0, ((atom, 1),))

    def divide(self, x: Position, divisor: Dim) -> tuple[Position, Position]:
        """Quotient (rounded down) and remainder."""
        if is_identical(divisor, 1):
            return x, ZERO
        whole = tuple((a, f // divisor) for a, f in x.terms if is_identical(f % divisor, 0))
        left = tuple(t for t in x.terms if not is_identical(t[1] % divisor, 0))
        rest = Position(x.constant % divisor, left)
        quotient = Position(x.constant // divisor, whole)
        low, _ = rest.bounds
        # Kernels truncate, so what they divide must not be negative.
        rest, quotient = (
            shifted(rest, -(low // divisor) * divisor),
            shifted(quotient, low // divisor),
        )
        _, high = rest.bounds
        if always(less_equal(high + 1, divisor)):
            return quotient, rest
        self._ask_split(rest, divisor)
        over = self._atom("quotient", high // divisor + 1, rest, divisor)
        return plus(quotient, over), self._atom("remainder", divisor, rest, divisor)

    def _ask_split(self, rest: Position, divisor: Dim) -> None:
        """Raise `Split` if two counters instead of one would resolve a division."""
        for atom, factor in rest.terms:
            if atom.kind != "counter" or not always(less_equal(1, factor)):
                continue
            inner = divisor // factor
            fits = always(less_equal(2, inner)) and always(less_equal(inner + 1, atom.extent))
            if fits and is_identical(divisor % factor, 0) and is_identical(atom.extent % inner, 0):
                raise Split(atom, inner)

    def clamp(self, x: Position, extent: Dim) -> Position:
        """x held inside [0, extent)."""
        return x if _inside(x, extent) else self._atom("clamp", extent, x)

    def mirror(self, x: Position, extent: Dim) -> Position:
        """x inside [0, extent), mirrored at the first and the last element."""
        return x if _inside(x, extent) else self._atom("mirror", extent, x)

    def fetch(self, cell: Any, extent: Dim) -> Position:
        """An index that a cell holds: negative ones count from the end."""
        return self._atom("fetch", extent, ZERO, cell=cell)

    def unravel(self, place: Position, shape: Sequence[Dim]) -> tuple[Position, ...]:
        """The index of an element from its row-major place: the inverse of `linear`."""
        index: list[Position] = []
        for extent in reversed(shape):
            if is_identical(extent, 1):
                index.append(ZERO)
                continue
            place, inner = self.divide(place, extent)
            index.append(inner)
        return tuple(reversed(index))

    def reshape(
        self, index: Sequence[Position], source: Sequence[Dim], target: Sequence[Dim]
    ) -> tuple[Position, ...]:
        """Index into `target` of what stands at `index` of `source`, both row-major."""
        made: list[Position] = []
        i = j = 0
        while i < len(source) or j < len(target):
            first, second = i, j
            have: Dim = 1
            want: Dim = 1
            # The shortest runs of axes with equally many elements are reshaped on their own.
            while not is_identical(have, want) or (first == i and second == j):
                if i >= len(source) and j >= len(target):
                    break  # Both have as many, which a guard says.
                fewer = estimate(have) <= estimate(want)
                if j >= len(target) or (i < len(source) and fewer):
                    have *= source[i]
                    i += 1
                else:
                    want *= target[j]
                    j += 1
            made += self._run(index[first:i], source[first:i], target[second:j])
        return tuple(made)

    def _run(
        self, index: Sequence[Position], source: Sequence[Dim], target: Sequence[Dim]
    ) -> tuple[Position, ...]:
        if len(source) == len(target) and all(map(is_identical, source, target)):
            return tuple(index)
        return self.unravel(linear(index, source), target)


def _inside(x: Position, extent: Dim) -> bool:
    low, high = x.bounds
    return always(less_equal(0, low)) and always(less_equal(high + 1, extent))
