"""Symbolic extents: integer expressions in a normal form, with ranges.

An expression is a sum of coefficients times products of atoms; an atom is a symbol (a batch
size, a sequence length) or a floor division, remainder, minimum or maximum of expressions.
Expressions are interned, so equal ones are identical and hash fast. Relations that ranges cannot
decide become guards of the capture that is active.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias, Union

from treadle.base.errors import ShapeError

Dim: TypeAlias = Union[int, "Expr"]
Monomial: TypeAlias = "tuple[Atom, ...]"
Function = Literal["floordiv", "mod", "min", "max"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """An unknown extent with inclusive bounds (`high` None: unbounded) and a known divisor."""

    name: str
    low: int = 1
    high: int | None = None
    multiple: int = 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of two extents that is no polynomial."""

    function: Function
    x: Dim
    y: Dim

    def __str__(self) -> str:
        if self.function in ("min", "max"):
            return f"{self.function}({self.x}, {self.y})"
        sign = "//" if self.function == "floordiv" else "%"
        return f"(({self.x}) {sign} ({self.y}))"


Atom: TypeAlias = Symbol | Apply
_INTERNED: dict[tuple[tuple[Monomial, int], ...], Expr] = {}


class Expr:
    """An extent that is not a plain int. Build with `symbol` and arithmetic."""

    __slots__ = ("_hash", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other

    def __add__(self, other: Dim) -> Dim:
        return _sum([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _sum([(m, -c) for m, c in self.terms])

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        pairs = [
            (tuple(sorted((*m, *n), key=str)), c * d)
            for m, c in self.terms
            for n, d in _terms(other)
        ]
        return _sum(pairs)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        quotient = _exact_quotient(self, other)
        return _apply("floordiv", self, other) if quotient is None else quotient

    def __rfloordiv__(self, other: int) -> Dim:
        return _apply("floordiv", other, self)

    def __mod__(self, other: Dim) -> Dim:
        exact = _exact_quotient(self, other) is not None
        if exact or (isinstance(other, int) and divisor(self) % other == 0):
            return 0
        return _apply("mod", self, other)

    def __rmod__(self, other: int) -> Dim:
        return _apply("mod", other, self)

    def __repr__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = [str(a) for a in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} " if text else ("-" if sign == "-" else "")
            text += "*".join(factors)
        return text

    def __bool__(self) -> bool:
        raise ShapeError(
            "shape",
            f"the extent {self} is symbolic and has no truth value",
            hint="use shape.require(...) to state what must hold",
        )

    def __int__(self) -> int:
        raise ShapeError("shape", f"the extent {self} is symbolic and has no fixed value")

    __index__ = __int__


def symbol(name: str, low: int = 1, high: int | None = None, multiple: int = 1) -> Expr:
    """A new unknown extent between `low` and `high` (inclusive), a multiple of `multiple`."""
    expr = _sum([((Symbol(name, low, high, multiple),), 1)])
    if isinstance(expr, int):
        raise ShapeError("symbol", f"{name} is not a symbol")
    return expr


def minimum(x: Dim, y: Dim) -> Dim:
    """The smaller extent."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    if always(less_equal(x, y)):
        return x
    return y if always(less_equal(y, x)) else _apply("min", x, y)


def maximum(x: Dim, y: Dim) -> Dim:
    """The larger extent."""
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    if always(less_equal(x, y)):
        return y
    return x if always(less_equal(y, x)) else _apply("max", x, y)


def _terms(x: Dim) -> tuple[tuple[Monomial, int], ...]:
    return (((), int(x)),) if isinstance(x, int) else x.terms


def _sum(terms: list[tuple[Monomial, int]]) -> Dim:
    """The interned normal form of a list of terms; an int when no atom is left."""
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    left = {m: c for m, c in total.items() if c}
    if not left or tuple(left) == ((),):
        return left.get((), 0)
    key = tuple(sorted(left.items(), key=lambda t: (-len(t[0]), [str(a) for a in t[0]])))
    return _INTERNED.setdefault(key, Expr(key))


def _apply(function: Function, x: Dim, y: Dim) -> Dim:
    return _sum([((Apply(function, x, y),), 1)])


def _exact_quotient(x: Expr, y: Dim) -> Dim | None:
    """x / y when every term of x contains the single term y."""
    divisors = _terms(y)
    if len(divisors) != 1 or divisors[0][1] == 0:
        return None
    (factors, number) = divisors[0]
    quotient: list[tuple[Monomial, int]] = []
    for monomial, coefficient in x.terms:
        left = list(monomial)
        for atom in factors:
            if atom not in left:
                return None
            left.remove(atom)
        if coefficient % number:
            return None
        quotient.append((tuple(left), coefficient // number))
    return _sum(quotient)


def bounds(x: Dim) -> tuple[float, float]:
    """Inclusive bounds of an extent, infinite where nothing is known."""
    low = high = 0.0
    for monomial, coefficient in _terms(x):
        lo, hi = 1.0, 1.0
        for atom in monomial:
            lo, hi = _interval_product((lo, hi), _atom_bounds(atom))
        lo, hi = _interval_product((lo, hi), (coefficient, coefficient))
        low, high = low + lo, high + hi
    return low, high


def _interval_product(x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    products = [0.0 if 0 in (a, b) else a * b for a in x for b in y]
    return min(products), max(products)


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return atom.low, math.inf if atom.high is None else atom.high
    (xl, xh), (yl, yh) = bounds(atom.x), bounds(atom.y)
    if atom.function == "min":
        return min(xl, yl), min(xh, yh)
    if atom.function == "max":
        return max(xl, yl), max(xh, yh)
    if yl <= 0:
        return -math.inf, math.inf
    if atom.function == "mod":
        return 0, min(yh - 1, xh) if xl >= 0 else yh - 1
    ends = [_floor(a / b) for a in (xl, xh) for b in (yl, yh) if not math.isinf(b)] or [0.0]
    if math.isinf(yh):
        ends.append(0.0 if xl >= 0 else -1.0)
    return min(ends), max(ends)


def _floor(x: float) -> float:
    return x if math.isinf(x) else math.floor(x)


def divisor(x: Dim) -> int:
    """A number that is known to divide the extent."""
    parts = []
    for monomial, coefficient in _terms(x):
        known = [a.multiple for a in monomial if isinstance(a, Symbol)]
        parts.append(math.prod(known, start=abs(coefficient)))
    return math.gcd(*parts) if parts else 0


@dataclass(frozen=True, slots=True)
class Relation:
    """`expr == 0` or `expr >= 0`, over extents."""

    kind: Literal["==0", ">=0"]
    expr: Dim

    def __str__(self) -> str:
        return f"{self.expr} {self.kind[:2]} 0"

    def truth(self) -> bool | None:
        """True or False where ranges decide it, None where only a call can."""
        low, high = bounds(self.expr)
        if self.kind == ">=0":
            return True if low >= 0 else False if high < 0 else None
        if low == high == 0:
            return True
        return False if low > 0 or high < 0 else None

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether the relation is true for concrete values of the symbols."""
        value = evaluate(self.expr, values)
        return value == 0 if self.kind == "==0" else value >= 0


def equal(x: Dim, y: Dim) -> Relation:
    """x == y."""
    return Relation("==0", x - y)


def less_equal(x: Dim, y: Dim) -> Relation:
    """x <= y."""
    return Relation(">=0", y - x)


def always(relation: Relation) -> bool:
    """Whether the relation is known to hold whatever the symbols are."""
    return relation.truth() is True


_GUARDS: ContextVar[list[Relation] | None] = ContextVar("guards", default=None)


@contextmanager
def recording_guards() -> Iterator[list[Relation]]:
    """Collect the relations that `require` could not decide inside the block."""
    guards: list[Relation] = []
    token = _GUARDS.set(guards)
    try:
        yield guards
    finally:
        _GUARDS.reset(token)


def require(relation: Relation, otherwise: Callable[[], Exception]) -> None:
    """State what must hold: raises `otherwise()` if it cannot, guards the capture if it may.

    Without a capture that records guards an undecided relation raises as well.
    """
    truth = relation.truth()
    if truth:
        return
    guards = _GUARDS.get()
    if truth is None and guards is not None:
        if relation not in guards:
            guards.append(relation)
        return
    raise otherwise()


def evaluate(x: Dim, values: Mapping[str, int]) -> int:
    """The extent for concrete values of its symbols; a missing symbol raises `ShapeError`."""
    total = 0
    for monomial, coefficient in _terms(x):
        total += coefficient * math.prod(_evaluate_atom(a, values) for a in monomial)
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        if atom.name not in values:
            raise ShapeError("shape", f"no value is bound to the extent {atom.name}")
        return values[atom.name]
    x, y = evaluate(atom.x, values), evaluate(atom.y, values)
    if atom.function == "floordiv":
        return x // y
    if atom.function == "mod":
        return x % y
    return min(x, y) if atom.function == "min" else max(x, y)
