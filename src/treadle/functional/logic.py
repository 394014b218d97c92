"""Comparisons and logic, element by element; results are bool tensors.

Operands are tensors, numbers or arrays; they broadcast and promote as the Python operators do.
Results have the broadcast shape. The logical functions take bool only; anything else is a
`DTypeError`.
"""

from __future__ import annotations

from typing import Any

from treadle.functional.arguments import binary, unary
from treadle.ops import logic as lg
from treadle.tensor import Tensor

__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]


def equal(x: Any, y: Any) -> Tensor:
    """x == y.

    Example:
        >>> F.equal(mge.tensor([1, 2]), mge.tensor([1, 3])).tolist()
        [True, False]
    """
    return binary(lg.Equal(), x, y)


def not_equal(x: Any, y: Any) -> Tensor:
    """x != y.

    Example:
        >>> F.not_equal(mge.tensor([1, 2]), mge.tensor([1, 3])).tolist()
        [False, True]
    """
    return binary(lg.NotEqual(), x, y)


def less(x: Any, y: Any) -> Tensor:
    """x < y.

    Example:
        >>> F.less(mge.tensor([1, 2, 3]), 2).tolist()
        [True, False, False]
    """
    return binary(lg.Less(), x, y)


def less_equal(x: Any, y: Any) -> Tensor:
    """x <= y.

    Example:
        >>> F.less_equal(mge.tensor([1, 2, 3]), 2).tolist()
        [True, True, False]
    """
    return binary(lg.LessEqual(), x, y)


def greater(x: Any, y: Any) -> Tensor:
    """x > y.

    Example:
        >>> F.greater(mge.tensor([1, 2, 3]), 2).tolist()
        [False, False, True]
    """
    return binary(lg.Greater(), x, y)


def greater_equal(x: Any, y: Any) -> Tensor:
    """x >= y.

    Example:
        >>> F.greater_equal(mge.tensor([1, 2, 3]), 2).tolist()
        [False, True, True]
    """
    return binary(lg.GreaterEqual(), x, y)


def logical_not(x: Any) -> Tensor:
    """NOT of a bool tensor.

    Example:
        >>> F.logical_not(mge.tensor([True, False])).tolist()
        [False, True]
    """
    return unary(lg.LogicalNot(), x)


def logical_and(x: Any, y: Any) -> Tensor:
    """AND of bool tensors.

    Example:
        >>> F.logical_and(mge.tensor([True, True]), mge.tensor([True, False])).tolist()
        [True, False]
    """
    return binary(lg.LogicalAnd(), x, y)


def logical_or(x: Any, y: Any) -> Tensor:
    """OR of bool tensors.

    Example:
        >>> F.logical_or(mge.tensor([True, False]), mge.tensor([False, False])).tolist()
        [True, False]
    """
    return binary(lg.LogicalOr(), x, y)


def logical_xor(x: Any, y: Any) -> Tensor:
    """XOR of bool tensors.

    Example:
        >>> F.logical_xor(mge.tensor([True, True]), mge.tensor([True, False])).tolist()
        [False, True]
    """
    return binary(lg.LogicalXor(), x, y)
