"""Einstein summation, as a chain of transposes and matrix products."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from treadle.base.errors import ShapeError
from treadle.functional.arguments import as_tensor, promote_all
from treadle.functional.math import matmul
from treadle.tensor import Tensor

__all__ = ["einsum"]

_SPARE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Sums of products over named axes, as in NumPy: `einsum("bij,bjk->bik", x, y)`.

    Without `->` the result has, in alphabetical order, the axes that are named once. `...` stands
    for axes without names, which broadcast. Operands are contracted from left to right.

    Raises:
        ValueError: the equation is malformed or does not fit the operands.
        ShapeError: axes of one name differ in extent.

    Example:
        >>> x, y = F.ones((2, 3, 4)), F.ones((2, 4, 5))
        >>> F.einsum("bij,bjk->bik", x, y).shape, F.einsum("ii", F.eye(3)).item()
        ((2, 3, 5), 3.0)
    """
    if not operands:
        raise ValueError(f"einsum: {equation!r} is given no operand")
    given = promote_all([as_tensor(x) for x in operands])
    inputs, output = _parse(equation, [x.ndim for x in given])
    terms = [_diagonal(x, labels) for x, labels in zip(given, inputs, strict=True)]
    x, labels = terms[0]
    for i, (y, theirs) in enumerate(terms[1:], 1):
        later = output + "".join(inputs[i + 1 :])
        x, labels = _contract(x, labels, y, theirs, later)
    x, labels = _summed(x, labels, output)
    return x.transpose([labels.index(c) for c in output]) if labels else +x


def _parse(equation: str, ndims: list[int]) -> tuple[list[str], str]:
    """Labels of every operand and of the result, with letters for the axes of `...`."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ndims):
        raise ValueError(f"einsum: {equation!r} is for {len(inputs)} operands, got {len(ndims)}")
    unused = [c for c in _SPARE if c not in equation]
    most = max(n - len(t.replace("...", "")) for t, n in zip(inputs, ndims, strict=True))
    extra = "".join(unused[: max(most, 0)])
    filled = [_filled(t, n, extra, equation) for t, n in zip(inputs, ndims, strict=True)]
    if not arrow:
        named = Counter("".join(inputs).replace(".", ""))
        right = ("..." if "..." in left else "") + "".join(
            sorted(c for c in named if named[c] == 1)
        )
    result = right.replace("...", extra if "..." in left else "")
    if len(set(result)) != len(result) or not set(result) <= set("".join(filled)):
        raise ValueError(f"einsum: the result of {equation!r} repeats or invents an axis")
    return filled, result


def _filled(term: str, ndim: int, extra: str, equation: str) -> str:
    count = ndim - len(term.replace("...", ""))
    if not term.replace("...", "", 1).isalpha() and term not in ("", "..."):
        raise ValueError(f"einsum: cannot read {term!r} in {equation!r}")
    if count < 0 or (count > 0 and "..." not in term):
        raise ValueError(f"einsum: {term!r} in {equation!r} does not fit {ndim} axes")
    return term.replace("...", extra[len(extra) - count :])


def _diagonal(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """The diagonal over axes that share a name."""
    for label in labels:
        while labels.count(label) > 1:
            i, j = labels.index(label), labels.rindex(label)
            if x.shape[i] != x.shape[j]:
                raise ShapeError("einsum", f"axes {label!r} differ in extent", saw=str(x.type))
            order = [a for a in range(x.ndim) if a not in (i, j)]
            along = np.arange(x.shape[i])
            x = x.transpose([i, j, *order])[along, along]
            labels = label + "".join(labels[a] for a in order)
    return x, labels


def _summed(x: Tensor, labels: str, kept: str) -> tuple[Tensor, str]:
    """Sums over the axes that nobody needs any more."""
    gone = [i for i, c in enumerate(labels) if c not in kept]
    return (x.sum(gone), "".join(c for c in labels if c in kept)) if gone else (x, labels)


def _contract(x: Tensor, mine: str, y: Tensor, theirs: str, later: str) -> tuple[Tensor, str]:
    """The product of two terms as one batched matrix product."""
    x, mine = _summed(x, mine, theirs + later)
    y, theirs = _summed(y, theirs, mine + later)
    extents = _extents(x, mine, y, theirs)
    shared = [c for c in mine if c in theirs]
    batch = "".join(c for c in shared if c in later)
    inner = "".join(c for c in shared if c not in later)
    rows = "".join(c for c in mine if c not in theirs)
    columns = "".join(c for c in theirs if c not in mine)
    first = _arranged(x, mine, batch, rows, inner, extents)
    second = _arranged(y, theirs, batch, inner, columns, extents)
    if x._kind.dtype.is_float:
        product = matmul(first, second)
    else:  # integers stay exact, which a product in float32 is not
        product = (first.reshape(*first.shape, 1) * second.reshape(-1, 1, *second.shape[1:])).sum(2)
    labels = batch + rows + columns
    return product.reshape([extents[c] for c in labels]), labels


def _extents(x: Tensor, mine: str, y: Tensor, theirs: str) -> dict[str, int]:
    """The extent of every axis, of which one of size 1 broadcasts."""
    extents = dict(zip(mine, x.shape, strict=True))
    for label, extent in zip(theirs, y.shape, strict=True):
        known = extents.setdefault(label, extent)
        if known != extent and 1 not in (known, extent):
            raise ShapeError(
                "einsum",
                f"axes {label!r} have extents {known} and {extent}",
                saw=f"{x.type}, {y.type}",
            )
        extents[label] = extent if known == 1 else known
    return extents


def _arranged(
    x: Tensor, labels: str, batch: str, first: str, second: str, extents: dict[str, int]
) -> Tensor:
    """x as (batch, first, second), each several axes merged into one."""
    order = batch + first + second
    x = x.transpose([labels.index(c) for c in order])
    x = x.broadcast_to([extents[c] for c in order])
    return x.reshape([math.prod(extents[c] for c in part) for part in (batch, first, second)])
