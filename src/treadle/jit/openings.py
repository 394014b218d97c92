"""Axes that are found to change, for functions that do not say which ones may.

The first signature of a function is compiled as it is. An axis whose second extent comes along is
open from then on: its extents are a symbol. Axes that had equal extents in all calls share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.base.extent import Symbol
from treadle.base.symbol import Expr, Relation, symbols_of
from treadle.graph.ir import symbols_in
from treadle.jit.captured import CapturedCall
from treadle.jit.dynamic import Axes
from treadle.tensor import Parameter, Tensor

MOST_SYMBOLS = 4
"""Symbols of one function: with each of them the ranges multiply that programs are made for."""

MOST_STRUCTURES = 64
"""Structures of arguments that are remembered; the oldest goes first."""

Place = tuple[int, int]
"""An argument, counted from 0 as they are flattened, and an axis."""


class Openings:
    """Axes of a function's arguments that have changed.

    Args:
        at_once: whether all axes are open from the first call on.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self._found: dict[Any, _Axes] = {}

    def axes(self, structure: Any, leaves: Sequence[Any]) -> Axes:
        """Return the open axes of a call; none where it is the first of its structure.

        Args:
            structure: its signature without extents.
            leaves: the arguments, flattened.
        """
        extents = {
            (i, axis): extent
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and not isinstance(leaf, Parameter)
            for axis, extent in enumerate(leaf._data.shape)
        }
        known = self._found.get(structure)
        if known is None:
            known = self._found[structure] = _Axes(self._at_once)
            while len(self._found) > MOST_STRUCTURES:
                del self._found[next(iter(self._found))]
        return known.met(extents)

    def are_settled(self, structure: Any) -> bool:
        """Return whether calls that differ in open extents alone need not be looked at."""
        return self._found[structure].are_settled()

    def close(self, structure: Any, names: Iterable[str]) -> None:
        """Fix the extents that these symbols stand for as numbers, as long as they are equal."""
        self._found[structure].close(set(names))

    def close_all(self, structure: Any) -> None:
        """Fix all extents as numbers, for good."""
        self._found[structure].close_all()


class _Axes:
    """Axes of one structure of arguments."""

    def __init__(self, at_once: bool) -> None:
        self._at_once = at_once
        self._groups: dict[Place, int] = {}
        self._first: dict[Place, int] = {}
        self._open: dict[Place, None] = {}
        self._closed: dict[Place, int] = {}
        """With how many axes each one shared the symbol that was fixed."""

    def met(self, extents: Mapping[Place, int]) -> Axes:
        """Take the extents of a call into account, and return which axes are open then."""
        numbers: dict[tuple[int, int], int] = {}
        for place, extent in extents.items():
            key = self._groups.get(place, 0), extent
            self._groups[place] = numbers.setdefault(key, len(numbers))
            if extent > 1:  # Empty and single extents have programs of their own in any case.
                first = self._first.setdefault(place, extent)
                if self._at_once or first != extent:
                    self._open[place] = None
        self._reopen()
        return self._named()

    def close(self, names: set[str]) -> None:
        """Close the axes of symbols."""
        named = self._named()
        places = [(i, a) for i, axes in named.items() for a in axes if axes[a] in names]
        self._closed.update({place: self._sharing(place) for place in places})

    def close_all(self) -> None:
        """Close all axes."""
        self._closed.update(dict.fromkeys(self._groups, 0))

    def are_settled(self) -> bool:
        """Return whether no open axis was always equal to one that is not."""
        named = {(i, a) for i, axes in self._named().items() for a in axes}
        groups = {self._groups[place] for place in named}
        return all(place in named or g not in groups for place, g in self._groups.items())

    def _reopen(self) -> None:
        """Open axes again that were closed with others which they no longer equal."""
        apart = [place for place, count in self._closed.items() if self._sharing(place) < count]
        for place in apart:
            del self._closed[place]

    def _sharing(self, place: Place) -> int:
        """The number of open axes whose symbol is that of an axis."""
        return sum(self._groups[other] == self._groups[place] for other in self._open)

    def _named(self) -> dict[int, dict[int, str]]:
        """The open axes with the names of their symbols."""
        first: dict[int, Place] = {}
        for place, group in self._groups.items():
            first.setdefault(group, place)
        made: dict[int, dict[int, str]] = {}
        names: set[str] = set()
        for place in self._open:
            name = "arg{}_{}".format(*first[self._groups[place]])
            if place not in self._closed and (name in names or len(names) < MOST_SYMBOLS):
                names.add(name)
                made.setdefault(place[0], {})[place[1]] = name
        return made


def fixed_symbols(captured: CapturedCall) -> set[str]:
    """Return the symbols of the call that a capture leaves one value only."""
    asked = set().union(*(symbols_of(x) for x in captured.pins))
    found = asked.union(*map(_fixed, captured.graph.guards))
    return found & {s.name for t in captured.graph.input_types for s in symbols_in(t)}


def _fixed(guard: Relation) -> set[str]:
    """The symbol of a guard that says it is a number."""
    expr = guard.expr
    if guard.kind != "==0" or not isinstance(expr, Expr):
        return set()
    atoms = [a for monomial, _ in expr.terms for a in monomial]
    return {atoms[0].name} if len(atoms) == 1 and isinstance(atoms[0], Symbol) else set()
