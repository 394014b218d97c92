"""Symbolic extents: integer expressions in a normal form, with ranges.

An expression is a sum of coefficients times products of atoms; an atom is a symbol (a batch
size, a sequence length) or a floor division, remainder, minimum or maximum of expressions.
Expressions are interned, so equal ones are identical and hash fast; what is known of one (its
bounds, a divisor) is computed once, from that of its parts. Python's own questions (a comparison,
a truth value, an index) are answered at the extents of the call that is captured, and become guards
of the capture; one that leaves a single value is a pin.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from threading import Lock
from typing import Any, Literal, TypeAlias, TypeVar, Union, cast
from weakref import WeakValueDictionary

import numpy as np

from treadle.base import interval
from treadle.base.errors import ShapeError
from treadle.base.extent import Symbol
from treadle.base.interval import Interval
from treadle.base.loc import Loc, user_location
from treadle.base.monomials import is_never_zero, merged, sum_bounds, term_divisor, without

Dim: TypeAlias = Union[int, "Expr"]
D = TypeVar("D", int, Union[int, "Expr"])
Monomial: TypeAlias = "tuple[Atom, ...]"
Terms: TypeAlias = "tuple[tuple[Monomial, int], ...]"
Function = Literal["floordiv", "mod", "min", "max"]


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A function of two extents that is not a polynomial."""

    function: Function
    x: Dim
    y: Dim

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Applied) or self.function != other.function:
            return False
        return is_identical(self.x, other.x) and is_identical(self.y, other.y)

    def __hash__(self) -> int:
        return hash((self.function, self.x, self.y))

    def __str__(self) -> str:
        if self.function in ("min", "max"):
            return f"{self.function}({self.x}, {self.y})"
        sign = "//" if self.function == "floordiv" else "%"
        return f"(({self.x}) {sign} ({self.y}))"

    @property
    def order(self) -> tuple[Any, ...]:
        """Key of the order, behind those of all symbols."""
        return 1, self.function, _order(self.x), _order(self.y)

    @property
    def bounds(self) -> Interval:
        """Inclusive bounds, from those of the operands."""
        return interval.FUNCTIONS[self.function](bounds(self.x), bounds(self.y))

    @property
    def divisor(self) -> int:
        """A number that is known to divide the extent."""
        x, y = divisor(self.x), divisor(self.y)
        if self.function != "floordiv":
            return math.gcd(x, y)
        return x // y if isinstance(self.y, int) and x % self.y == 0 else 1


Atom: TypeAlias = Symbol | Applied


Operation: TypeAlias = Callable[[Any, Any], Any]


def _methods(operation: Operation, exact: Operation | None) -> tuple[Operation, Operation]:
    """An operator of extents, and what Python calls when the extent stands on the right."""
    return (
        lambda x, y: _operated(operation, exact, x, y),
        lambda y, x: _operated(operation, exact, x, y),
    )


def _operated(operation: Operation, exact: Operation | None, x: Any, y: Any) -> Any:
    """An operation on extents; real numbers take the number that an extent is, which pins it.

    Anything else, such as a tensor, has the extent as an operand.
    """
    if exact is not None and isinstance(x, _EXTENTS) and isinstance(y, _EXTENTS):
        return exact(x, y)
    if isinstance(x, _NUMBERS) and isinstance(y, _NUMBERS):
        return operation(*(int(v) if isinstance(v, Expr) else v for v in (x, y)))
    return NotImplemented


# A compilation computes the same ones again and again. Keys are terms, since comparing expressions
# of equal hashes would ask the call.
_added: Operation = lru_cache(1 << 14)(lambda x, y: _sum((*x, *y)))
_multiplied: Operation = lru_cache(1 << 14)(
    lambda x, y: _sum((merged(m, n), c * d) for m, c in x for n, d in y)
)


class Expr:
    """An extent that is not a plain int. Build with `symbol` and arithmetic."""

    __slots__ = ("__weakref__", "_hash", "bounds", "divisor", "order", "terms")
    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to the extent.

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.order = tuple((tuple(a.order for a in m), c) for m, c in terms)
        self.bounds = sum_bounds(terms)
        self.divisor = math.gcd(*(term_divisor(m, c) for m, c in terms))
        self._hash = hash(tuple([(m, 2 * c + 1) for m, c in terms]))  # -1 and -2 have one hash.

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        decisions = DECISIONS.get()
        if decisions is None or not isinstance(other, int | Expr):
            return False
        low, high = self.bounds
        if isinstance(other, int) and not low <= other <= high and not decisions.every:
            return False
        return _answer(equal(self, other))

    def __lt__(self, other: Dim) -> bool:
        return _answer(less_equal(self + 1, other))

    def __le__(self, other: Dim) -> bool:
        return _answer(less_equal(self, other))

    def __gt__(self, other: Dim) -> bool:
        return _answer(less_equal(other + 1, self))

    def __ge__(self, other: Dim) -> bool:
        return _answer(less_equal(other, self))

    def __reduce__(self) -> tuple[object, ...]:
        # Hashes of strings differ between processes, and copies must be interned.
        return _interned, (self.terms,)

    __add__, __radd__ = _methods(operator.add, lambda x, y: _added(_terms(x), _terms(y)))
    __sub__, __rsub__ = _methods(operator.sub, lambda x, y: x + -1 * y)
    __mul__, __rmul__ = _methods(operator.mul, lambda x, y: _multiplied(_terms(x), _terms(y)))
    __floordiv__, __rfloordiv__ = _methods(operator.floordiv, lambda x, y: _floordiv(x, y))
    __mod__, __rmod__ = _methods(operator.mod, lambda x, y: _mod(x, y))
    __truediv__, __rtruediv__ = _methods(operator.truediv, None)

    def __neg__(self) -> Dim:
        return _sum((m, -c) for m, c in self.terms)

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and other >= 0:
            return math.prod([self] * other)
        return _operated(operator.pow, None, self, other)

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
        return not _answer(equal(self, 0))

    def __int__(self) -> int:
        return _pinned(self)

    def __float__(self) -> float:
        return float(_pinned(self))

    __index__ = __int__


_EXTENTS = (int, Expr, np.integer)
_NUMBERS = (*_EXTENTS, float)


def symbol(
    name: str,
    low: int = 1,
    high: int | None = None,
    multiple: int = 1,
    edges: tuple[int, ...] = (),
    hint: int | None = None,
) -> Expr:
    """A new unknown extent between `low` and `high` (inclusive), a multiple of `multiple`.

    Symbols of one name and range are the same extent, if they have the same edges and hint.

    Raises:
        ShapeError: no number lies in the range, `multiple` is not positive, edges are not in order,
            or they or the hint are not in the range.
    """
    return extent_of(Symbol(name, low, high, multiple, edges, hint))


def extent_of(known: Symbol) -> Expr:
    """The unknown extent as an expression."""
    return _interned((((known,), 1),))


def minimum(x: Dim, y: Dim) -> Dim:
    """The smaller extent."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    if _is_told(less_equal(x, y)):
        return x
    return y if _is_told(less_equal(y, x)) else _apply("min", *_sorted(x, y))


def maximum(x: Dim, y: Dim) -> Dim:
    """The larger extent."""
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    if _is_told(less_equal(x, y)):
        return y
    return x if _is_told(less_equal(y, x)) else _apply("max", *_sorted(x, y))


def bounds(x: Dim) -> Interval:
    """Inclusive bounds of an extent, infinite where nothing is known."""
    return (x, x) if isinstance(x, int) else x.bounds


def divisor(x: Dim) -> int:
    """A number that is known to divide the extent; 0, which everything divides, has 0."""
    return abs(x) if isinstance(x, int) else x.divisor


# -- normal form ---------------------------------------------------------------------------

_INTERNED: WeakValueDictionary[Terms, Expr] = WeakValueDictionary()
_LOCK = Lock()


def _interned(terms: Terms) -> Expr:
    """The one expression of these terms, which are in normal form."""
    found = _INTERNED.get(terms)
    if found is None:
        made = Expr(terms)
        with _LOCK:
            found = _INTERNED.setdefault(terms, made)
    return found


def is_identical(x: Dim, y: Dim) -> bool:
    """Return whether two extents are one expression, or one number; nothing is decided by it."""
    return x is y or (isinstance(x, int) and isinstance(y, int) and x == y)


def _terms(x: Dim) -> Terms:
    return x.terms if isinstance(x, Expr) else (((), int(index(x))),)


def _order(x: Dim) -> tuple[Any, ...]:
    """Sort key of extents."""
    return (((), x),) if isinstance(x, int) else x.order


def _sorted(x: Dim, y: Dim) -> tuple[Dim, Dim]:
    return (x, y) if _order(x) <= _order(y) else (y, x)


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    """The normal form of a list of terms: graded lexicographic; an int when no atom is left."""
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    left = [(m, c) for m, c in total.items() if c]
    if not left:
        return 0
    if len(left) > 1:
        left.sort(key=lambda term: (-len(term[0]), [a.order for a in term[0]]))
    elif not left[0][0]:
        return left[0][1]
    return _interned(tuple(left))


def _apply(function: Function, x: Dim, y: Dim) -> Dim:
    """A function as an atom; its value where bounds leave only one."""
    atom = Applied(function, x, y)
    low, high = atom.bounds
    return int(low) if low == high else _interned((((atom,), 1),))


def _floordiv(x: Dim, y: Dim) -> Dim:
    """x // y, with what divides exactly taken out of it."""
    if isinstance(y, Expr):
        quotient = _exact_quotient(x, y)
        return _apply("floordiv", x, y) if quotient is None else quotient
    y = index(y)
    if y < 0:
        x, y = -x, -y
    # (a*y + b*g + c) // y = a + (b + c//g) // (y//g), where g divides y.
    terms = _terms(x)
    whole = _sum((m, c // y) for m, c in terms if not m or c % y == 0)
    rest = [(m, c if m else c % y) for m, c in terms if not m or c % y]
    common = math.gcd(y, *(c for m, c in rest if m))
    return whole + _nested_floordiv(_sum((m, c // common) for m, c in rest), y // common)


def _nested_floordiv(x: Dim, y: int) -> Dim:
    """(z//a + c) // y = (z + c*a) // (a*y), for numbers a, c and y."""
    if isinstance(x, int) or y == 1:
        return x // y
    (monomial, coefficient), *others = x.terms
    constant = others[0][1] if others else 0
    if coefficient == 1 and len(monomial) == 1 and (not others or not others[0][0]):
        inner = monomial[0]
        if isinstance(inner, Applied) and inner.function == "floordiv" and isinstance(inner.y, int):
            return _floordiv(inner.x + constant * inner.y, inner.y * y)
    return _apply("floordiv", x, y)


def _mod(x: Dim, y: Dim) -> Dim:
    """x % y, without the multiples of y in it."""
    if isinstance(y, Expr):
        if _exact_quotient(x, y) is not None:
            return 0
    else:
        y = index(y)
        if y < 0:
            return -(-x % -y)
        x = _sum((m, c % y) for m, c in _terms(x) if term_divisor(m, c) % y)
        if divisor(x) % y == 0:
            return 0
    (low, high), (least, _) = bounds(x), bounds(y)
    return x if low >= 0 and high < least else _apply("mod", x, y)


def _exact_quotient(x: Dim, y: Expr) -> Dim | None:
    """x / y where y divides x as a polynomial: division by leading terms."""
    (monomial, number), *_ = y.terms
    quotient: Dim = 0
    while not is_identical(x, 0):
        (left, coefficient), *_ = _terms(x)
        factors = without(left, monomial)
        if factors is None or coefficient % number:
            return None
        term = _sum([(factors, coefficient // number)])
        quotient, x = quotient + term, x - term * y
    return quotient


# -- relations and guards ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """`expr == 0`, `expr >= 0` or `expr != 0`, over extents."""

    kind: Literal["==0", ">=0", "!=0"]
    expr: Dim

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Relation):
            return False
        return self.kind == other.kind and is_identical(self.expr, other.expr)

    def __hash__(self) -> int:
        return hash((self.kind, self.expr))

    def __str__(self) -> str:
        return f"{self.expr} {self.kind[:2]} 0"

    @property
    def opposite(self) -> Relation:
        """The relation that holds exactly where this one does not."""
        if self.kind == ">=0":
            return Relation(">=0", -self.expr - 1)
        return Relation("!=0" if self.kind == "==0" else "==0", self.expr)

    def truth(self) -> bool | None:
        """True or False where ranges and divisors decide it, None where only a call can."""
        if self.kind == "!=0":
            zero = Relation("==0", self.expr).truth()
            return None if zero is None else not zero
        if self.kind == ">=0":
            return _is_natural(self.expr)
        low, high = bounds(self.expr)
        if low == high == 0:
            return True
        apart = low > 0 or high < 0 or is_never_zero(_terms(self.expr))
        return False if apart or any(map(_is_natural, (self.expr - 1, -self.expr - 1))) else None

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether the relation is true for concrete values of the symbols."""
        value = evaluate(self.expr, values)
        if self.kind == ">=0":
            return value >= 0
        return (value == 0) == (self.kind == "==0")


def _is_natural(x: Dim, levels: int = 2) -> bool | None:
    """The truth of `x >= 0`, from ranges and from the cases of a maximum or minimum in it."""
    low, high = bounds(x)
    if low >= 0 or high < 0:
        return low >= 0
    for monomial, factor in _terms(x) if levels else ():
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, Applied) and atom.function in ("max", "min"):
            # Both cases have to hold for a minimum, which a maximum times less than 0 is, too.
            rest, both = x - _sum([(monomial, factor)]), (atom.function == "min") == (factor > 0)
            cases = [_is_natural(rest + factor * case, levels - 1) for case in (atom.x, atom.y)]
            if (not both) in cases or None not in cases:
                return cases[0] if cases[0] == cases[1] else not both
    return None


def equal(x: Dim, y: Dim) -> Relation:
    """x == y."""
    difference = x - y
    if isinstance(difference, Expr):
        # Lowest terms and a positive start, so that m == n and 2*n == 2*m are one guard.
        common = math.gcd(*(c for _, c in difference.terms))
        if difference.terms[0][1] < 0:
            common = -common
        if common != 1:
            difference = _sum((m, c // common) for m, c in difference.terms)
    return Relation("==0", difference)


def less_equal(x: Dim, y: Dim) -> Relation:
    """x <= y."""
    return Relation(">=0", y - x)


def always(relation: Relation) -> bool:
    """Return whether the relation is known to hold whatever the symbols are."""
    return relation.truth() is True


@dataclass(frozen=True, slots=True)
class Decisions:
    """Answers to Python's questions about extents while a call is captured.

    Attributes:
        values: the extents of that call, by symbol.
        hints: extents that stand for all of a program's; where there are some, a program for many
            extents is being compiled, and what asks for a number ends that.
        guards: what was answered by them, in order.
        pins: expressions whose number was asked for, with the user's line.
        every: whether answers that ranges give are guards, too: extents outside of the ranges are
            met as well.
    """

    values: Mapping[str, int]
    hints: Mapping[str, int] = field(default_factory=dict)
    guards: dict[Relation, None] = field(default_factory=dict)
    pins: dict[Expr, Loc] = field(default_factory=dict)
    every: bool = False

    def knows(self, x: Dim) -> bool:
        """Return whether the call gives the extent, which may also come out of data."""
        return symbols_of(x) <= self.values.keys()

    def tell(self, relation: Relation) -> None:
        """Make a guard of what ranges decide, if extents outside of them are met as well."""
        if self.every and isinstance(relation.expr, Expr) and self.knows(relation.expr):
            self.guards[relation] = None


DECISIONS: ContextVar[Decisions | None] = ContextVar("decisions", default=None)


def _answer(relation: Relation) -> bool:
    """The truth of a relation, which becomes a guard where the call alone decides it."""
    truth, decisions = relation.truth(), DECISIONS.get()
    if truth is not None:
        if decisions is not None:
            decisions.tell(relation if truth else relation.opposite)
        return truth
    if decisions is None or not decisions.knows(relation.expr):
        raise ShapeError(
            "shape",
            f"whether {relation} is known only at run time",
            hint="data decide it: choose with F.where, or ask outside of the compiled function",
        ).of_run()
    found = relation.holds(decisions.values)
    decisions.guards[relation if found else relation.opposite] = None
    return found


def _is_told(relation: Relation) -> bool:
    """Return whether a relation always holds, which becomes a guard as an answer does."""
    decisions = DECISIONS.get()
    if decisions is not None and always(relation):
        decisions.tell(relation)
    return always(relation)


def _pinned(x: Expr) -> int:
    """The number that an extent is in the call that is captured, for which alone it then holds."""
    decisions = DECISIONS.get()
    if decisions is None or not decisions.knows(x):
        raise ShapeError(
            "shape",
            f"the extent {x} is symbolic and has no fixed value",
            hint="data decide it: return the tensor, and ask outside of the compiled function",
        ).of_run()
    if decisions.hints:
        raise ShapeError("compile", f"a number is needed for the extent {x}")
    value = evaluate(x, decisions.values)
    decisions.guards[equal(x, value)] = None
    decisions.pins.setdefault(x, user_location())
    return value


def symbols_of(x: Dim) -> set[str]:
    """Names of the symbols in an extent."""
    found: set[str] = set()
    for atom in [a for monomial, _ in _terms(x) for a in monomial]:
        if isinstance(atom, Symbol):
            found.add(atom.name)
        else:
            found |= symbols_of(atom.x) | symbols_of(atom.y)
    return found


def evaluate(x: Dim, values: Mapping[str, D], known: dict[Atom, D] | None = None) -> D:
    """The extent for concrete values of its symbols, or for other symbols in their place.

    `known` is what atoms were found to be, and grows.

    Raises:
        ShapeError: a symbol has no value.
        ZeroDivisionError: a divisor is zero.
    """
    known = {} if known is None else known
    total: D = 0
    for monomial, coefficient in _terms(x):
        part: D = coefficient
        for atom in monomial:
            if atom not in known:
                known[atom] = _evaluate_atom(atom, values, known)
            part = part * known[atom]
        total = total + part
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, D], known: dict[Atom, D]) -> D:
    if isinstance(atom, Symbol):
        if atom.name not in values:
            raise ShapeError("shape", f"no value is bound to the extent {atom.name}")
        return values[atom.name]
    return applied(atom.function, *(evaluate(v, values, known) for v in (atom.x, atom.y)))


def applied(function: Function, x: D, y: D) -> D:
    """A function of two extents."""
    if function in ("floordiv", "mod"):
        return x // y if function == "floordiv" else x % y
    chosen: Any = minimum if function == "min" else maximum
    return cast(D, chosen(x, y))
