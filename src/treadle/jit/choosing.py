"""Choice of the capture that serves a call: one of its own, or one with symbols for extents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.base import tree
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.base.loc import Loc
from treadle.base.log import get_logger
from treadle.base.symbol import Expr
from treadle.engine.options import Options
from treadle.jit.capture import ManagerInside, capture
from treadle.jit.captured import CapturedCall
from treadle.jit.dynamic import (
    Axes,
    Dynamic,
    Extent,
    declared_axes,
    extents_of,
    named_axes,
    symbolic_shapes,
)
from treadle.jit.family import Family
from treadle.jit.openings import Openings, fixed_symbols
from treadle.jit.recaptures import tell_of_pins
from treadle.jit.variants import Single, Variant, interface_of

MOST_FAMILIES = 64
"""Captures with symbols that are kept; the oldest go first."""
CAST, RECORDED = "cast", "recorded"
"""Heads of signatures under `autocast`, and under a tape."""

Given = tuple[Any, Any]
"""Arguments, by place and by name."""


class Captures:
    """The captures of one function.

    Args:
        function: the function.
        options: of its programs' compilation.
        dynamic: which extents may change.

    Attributes:
        families: captures with symbols, by what they have in common.
        count: how many captures there were.
        pins: extents that were found to change but stay numbers, since the function asks for
            them, and where it does.
    """

    def __init__(self, function: Callable[..., Any], options: Options, dynamic: Dynamic) -> None:
        self._function = function
        self._options = options
        self._dynamic: Axes | bool | None = None
        self._bounds: Mapping[str, Extent] = {}
        if dynamic is None or isinstance(dynamic, bool):
            self._dynamic = dynamic
        else:
            self._dynamic, self._bounds = named_axes(dynamic)
        self._openings = Openings(at_once=dynamic is True)
        self._told = False
        self._latest: tuple[Any, list[Family]] | None = None
        """The part of the latest signature that is fixed, and captures that serve such ones."""
        self.families: dict[Any, list[Family]] = {}
        self.count = 0
        self.pins: dict[Expr, Loc] = {}

    def variant(
        self, key: Any, leaves: list[Any], args: Any, kwargs: Any, *, runs: bool = False
    ) -> Variant:
        """Return a program for a signature that has none.

        Args:
            key: the signature.
            leaves: the arguments, flattened.
            args, kwargs: the arguments.
            runs: whether a run follows, which sees by itself that state has changed.
        """
        same = self._at_other_extents(key, leaves, runs)
        if same is not None:
            return same
        given = args, kwargs
        if self._dynamic is None or self._dynamic is True:
            found = self._by_what_changed(key, leaves, given, runs)
        elif self._dynamic:
            found = self._with_symbols(key, leaves, given, self._dynamic, runs)
        else:
            found = None
        return found or self._alone(leaves, given)

    def _at_other_extents(self, key: Any, leaves: list[Any], runs: bool) -> Variant | None:
        """A program of the captures that served last, where nothing but their extents differs."""
        if self._latest is None:
            return None
        fixed, families = self._latest
        extents = extents_in(fixed, key)
        if extents is None:
            return None
        self._check(extents)
        return _serving(families, leaves, extents, runs)

    def _check(self, extents: Mapping[str, int]) -> None:
        """Raise ShapeError for extents that are not as declared."""
        for name, declared in self._bounds.items():
            if name in extents:
                declared.check(extents[name])

    def _by_what_changed(
        self, key: Any, leaves: list[Any], given: Given, runs: bool
    ) -> Variant | None:
        """A program with symbols for extents that were seen to change, if there are some."""
        structure = structure_of(key)
        while axes := self._openings.axes(structure, leaves):
            declared = declared_axes(self._function, *given)
            if declared:  # The model knows better which extents are equal.
                return self._with_symbols(key, leaves, given, declared, runs)
            extents = extents_of(leaves, axes)
            known = self._known(key, leaves, axes, extents, runs)
            if known is not None and self._openings.are_settled(structure):
                self._remember(key, axes, extents)
            if known is not None:
                return known
            try:
                captured = self._captured(leaves, given, axes)
            except ManagerInside:
                raise
            except Exception:
                found = self._alone(leaves, given)  # Raises what is the function's own.
                get_logger("jit").debug("%s: without symbols", self.name, exc_info=True)
                self._openings.close_all(structure)
                return found
            fixed = fixed_symbols(captured)
            if not fixed:
                return self._family(key, leaves, axes, captured)
            self._openings.close(structure, fixed)
            self.pins.update(captured.pins)
        return None

    def _alone(self, leaves: list[Any], given: Given) -> Variant:
        """A program of a capture at the extents of a call."""
        return Single(self._captured(leaves, given), self._options)

    def _with_symbols(
        self, key: Any, leaves: list[Any], given: Given, axes: Axes, runs: bool
    ) -> Variant:
        """A program with symbols for these extents."""
        extents = extents_of(leaves, axes)
        self._check(extents)
        known = self._known(key, leaves, axes, extents, runs)
        if known is not None:
            if axes is self._dynamic:  # What a model declares may be dropped at another call.
                self._remember(key, axes, extents)
            return known
        captured = self._captured(leaves, given, axes)
        if captured.pins and self.families.get(_fixed_part(key, axes)) and not self._told:
            self._told = True
            tell_of_pins(self.name, captured.pins)
        return self._family(key, leaves, axes, captured)

    def _known(
        self, key: Any, leaves: list[Any], axes: Axes, extents: Mapping[str, int], runs: bool
    ) -> Variant | None:
        """A program of a capture that there is."""
        families = self.families.get(_fixed_part(key, axes), ())
        return _serving(families, leaves, extents, runs)

    def _remember(self, key: Any, axes: Axes, extents: Mapping[str, int]) -> None:
        """Look for calls that differ in extents alone from one that captures have served."""
        if min(extents.values()) < 2:
            return  # Empty and single extents are no symbols.
        fixed = _fixed_part(key, axes)
        self._latest = fixed, self.families[fixed]

    def _family(self, key: Any, leaves: list[Any], axes: Axes, captured: CapturedCall) -> Variant:
        """A program of a new capture."""
        made = Family(captured, self._options, interface_of(captured))
        fixed = _fixed_part(key, axes)
        self._latest = None
        self.families[fixed] = [*self.families.pop(fixed, ()), made]  # Behind all others.
        while sum(map(len, self.families.values())) > MOST_FAMILIES:
            oldest = next(iter(self.families))
            del self.families[oldest][0]
            if not self.families[oldest]:
                del self.families[oldest]
        return made.member(extents_of(leaves, axes))

    def _captured(self, leaves: list[Any], given: Given, axes: Axes | None = None) -> CapturedCall:
        self.count += 1
        args, kwargs = replaced(*given, leaves)
        shapes = symbolic_shapes(leaves, axes or {}, self._bounds)
        extents = extents_of(leaves, axes or {})
        try:
            return capture(self._function, args, kwargs, self.name, shapes, extents=extents)
        except (ShapeError, IndexRangeError) as error:
            error.tell(", ".join(f"{name} = {extent}" for name, extent in extents.items()))
            raise

    @property
    def name(self) -> str:
        """The name of the function."""
        return name_of(self._function)


def _serving(
    families: Sequence[Family], leaves: list[Any], extents: Mapping[str, int], runs: bool
) -> Variant | None:
    """A program of the first capture that serves a call, if one does."""
    alone = len(families) == 1  # Otherwise state may tell which of them it is.
    for family in families:
        if family.serves(leaves, extents, runs=runs and alone):
            return family.member(extents)
    return None


def replaced(args: Any, kwargs: Any, leaves: list[Any]) -> tuple[Any, Any]:
    """The arguments with arrays replaced by the tensors made of them."""
    _, shape = tree.flatten((args, kwargs))
    made, named = tree.unflatten(shape, leaves)
    return made, named


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of what is called as one."""
    return str(getattr(function, "__name__", "program"))


def structure_of(key: Any) -> Any:
    """Return a signature without extents, and without the values of what is not a tensor."""
    head, parts = _taken_apart(key)
    return head, tuple((p[0], len(p[1]), *p[2:]) if _is_tensor(p) else p[0] for p in parts)


def _fixed_part(key: Any, axes: Axes) -> Any:
    """A signature with names in place of the open extents of some arguments, see
    `symbolic_shapes`.
    """
    head, parts = _taken_apart(key)
    fixed = [*parts]
    for i, names in axes.items():
        kind, shape, *others = parts[i]
        named = tuple([names.get(k, d) if d > 1 else d for k, d in enumerate(shape)])
        fixed[i] = (kind, named, *others)
    return head, tuple(fixed)


def extents_in(fixed: Any, key: Any) -> dict[str, int] | None:
    """The extents of a signature of tensors, by name, if it differs from another in them alone.

    Args:
        fixed: the other, with names in place of open extents.
        key: the signature.
    """
    head, parts = fixed
    if head is not None or len(parts) != len(key) or key[0].__class__ is not tuple:
        return None
    found: dict[str, int] = {}
    for part, given in zip(parts, key, strict=True):
        dims, shape = part[1], given[1]
        if part[0] is not given[0] or part[2:] != given[2:] or len(dims) != len(shape):
            return None
        for dim, extent in zip(dims, shape, strict=True):
            if dim.__class__ is not str:
                if dim != extent:
                    return None
            elif extent < 2 or found.setdefault(dim, extent) != extent:
                return None
    return found


def _taken_apart(key: Any) -> tuple[Any, Sequence[Any]]:
    """Return the parts of a signature: of all arguments, and of each."""
    if key and key[0] is CAST:
        head, parts = _taken_apart(key[2])
        return (CAST, key[1], head), parts
    if key and key[0] is RECORDED:
        head, parts = _taken_apart(key[1])
        return (RECORDED, head), parts
    if key and key[0].__class__ is tree.Tree:
        return key[0], key[1]
    return None, key


def _is_tensor(part: Any) -> bool:
    """Return whether a part of a signature is that of a tensor."""
    return not isinstance(part[0], type)
