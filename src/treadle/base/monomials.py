"""Products of atoms, of which expressions of extents are sums: bounds, divisors, quotients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from treadle.base import interval
from treadle.base.interval import Interval

A = TypeVar("A")


def without(monomial: Sequence[A], factors: Iterable[A]) -> tuple[A, ...] | None:
    """The monomial divided by some factors; None where one of them is missing."""
    left = list(monomial)
    for atom in factors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def merged(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
    """The product of two monomials, its atoms in their order."""
    return tuple(sorted((*x, *y), key=lambda a: a.order)) if x and y else x or y


def sum_bounds(terms: Iterable[tuple[Sequence[Any], int]]) -> Interval:
    """Inclusive bounds of a sum of coefficients times monomials."""
    total: Interval = (0, 0)
    for monomial, coefficient in terms:
        part: Interval = (coefficient, coefficient)
        for atom in monomial:
            part = interval.product(part, atom.bounds)
        total = interval.total(total, part)
    return total


def term_divisor(monomial: Iterable[Any], coefficient: int) -> int:
    """A number that is known to divide a coefficient times a monomial."""
    made: int = math.prod((a.divisor for a in monomial), start=abs(coefficient))
    return made


def is_never_zero(terms: Sequence[tuple[Sequence[Any], int]]) -> bool:
    """Return whether the constant term is not a multiple of what divides all the others."""
    *others, (monomial, constant) = terms or (((), 0),)
    if monomial or not others:
        return False
    return constant % math.gcd(*(term_divisor(m, c) for m, c in others)) != 0
