"""A mark on gradients that a compiled step found out to be usable, or not.

A program cannot leave a gradient out at run time, as eager code does by setting it to None. It
marks the gradient with a truth value, by which the optimizer selects between new values and old.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

from treadle.tensor import Tensor

_MARK = "_usable"
_DROPPED: list[ref[Tensor]] = []


def drop(tensors: Iterable[Tensor]) -> None:
    """Take the gradients of these tensors away, since not all are finite."""
    _DROPPED.clear()
    for tensor in tensors:
        tensor.grad = None
        _DROPPED.append(ref(tensor))


def was_dropped(tensor: Tensor) -> bool:
    """True if the last gradients that were dropped had this tensor's among them."""
    return any(known() is tensor for known in _DROPPED)


def mark_usable(grad: Tensor, flag: Tensor) -> None:
    """Mark a gradient as one that counts only where `flag`, one bool, is true."""
    grad.__dict__[_MARK] = flag


def usable(grad: Tensor | None) -> Tensor | None:
    """The mark of a gradient; None where it counts in any case."""
    found: Tensor | None = None if grad is None else grad.__dict__.get(_MARK)
    return found
