"""Advice on functions that are captured again and again: what changed, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.base.loc import Loc
from treadle.base.log import get_logger
from treadle.base.symbol import Expr
from treadle.base.tree import Tree

MANY = 8
"""Programs of one function after which somebody is told."""

_ADVICE = {
    "shape": "pad to a few shapes, or name axes that change in jit.compile(dynamic=...)",
    "element type": "cast arguments to one element type",
    "device": "move arguments to one device",
    "tensor": "pass distinct tensors, or the same ones, in every call",
    "Python number": "pass a tensor in place of a Python number that changes: mge.tensor(value)",
    "value": "pass what changes as a tensor, or compile one function for each value",
    "structure": "pass the same structure of arguments in every call",
    "state": "tensors that the function reads, or their gradients, come and go or change type",
}
_INSTEAD = "compute with x.shape and tensors in place of numbers"


def tell_of_many(name: str, before: Any, now: Any, pins: Mapping[Expr, Loc]) -> None:
    """Warn that a function has had many programs.

    Args:
        name: of the function.
        before: the signature of the last program but this one; see `jit.compiled.signature`.
        now: this one's.
        pins: extents whose numbers it asks for, and where.
    """
    what, saw = changed(before, now)
    advice = _ADVICE[what]
    if what == "shape" and pins:
        advice = f"it asks for numbers of extents: {_places(pins)}; {_INSTEAD}"
    get_logger("jit").warning(
        "%s: program number %d is made: another %s, %s; %s",
        name,
        MANY + 1,
        what,
        saw,
        advice,
    )


def tell_of_pins(name: str, pins: Mapping[Expr, Loc]) -> None:
    """Warn that a function asks for the number of an extent, and so has a program for each."""
    get_logger("jit").warning(
        "%s: the body runs again for each extent whose number it asks for: %s; %s, or leave these "
        "axes out of `dynamic`",
        name,
        _places(pins),
        _INSTEAD,
    )


def tell_of_extents(name: str, reason: str) -> None:
    """Warn that a function whose extents are open has a program for each set of them."""
    get_logger("jit").warning(
        "%s: %d programs were made, one for each set of extents, because one for many of them "
        "could not be: %s; pad the arguments to a few shapes",
        name,
        MANY + 1,
        reason,
    )


def _places(pins: Mapping[Expr, Loc]) -> str:
    return ", ".join(f"{extent} at {place}" for extent, place in pins.items())


def changed(before: Any, now: Any) -> tuple[str, str]:
    """Return what differs between two signatures: the kind of thing, and its values
    before and now.
    """
    if before == now:
        return "state", "the arguments are alike"
    old, new = _parts(before), _parts(now)
    if old is None or new is None or len(old) != len(new):
        return "structure", "another number or nesting of arguments"
    for i, (a, b) in enumerate(zip(old, new, strict=True)):
        if a != b:
            what, was, is_ = _difference(a, b)
            return what, f"argument {i}: {was}, then {is_}"
    return "structure", "another nesting or other names of arguments"


def _parts(key: Any) -> Any:
    """Return the parts of a signature: (kind, shape) of a tensor, (type, value) of the rest."""
    if not isinstance(key, tuple):
        return None
    if len(key) == 3 and isinstance(key[0], str):  # Under autocast: its name, settings, the key.
        return _parts(key[2])
    if len(key) == 2 and isinstance(key[0], str):  # Under a tape.
        return _parts(key[1])
    return key[1] if len(key) == 2 and isinstance(key[0], Tree) else key


def _difference(a: Any, b: Any) -> tuple[str, Any, Any]:
    if len(a) != len(b):
        return "tensor", "one that was passed before", "another one"
    if isinstance(a[0], type) or isinstance(b[0], type):
        if a[0] is not b[0]:
            return "value", _name(a), _name(b)
        return "Python number" if a[0] in (int, float, complex) else "value", a[1], b[1]
    if a[1] != b[1]:
        return "shape", a[1], b[1]
    if a[0].dtype is not b[0].dtype:
        return "element type", a[0].dtype, b[0].dtype
    return "device", a[0].device, b[0].device


def _name(part: Any) -> str:
    return part[0].__name__ if isinstance(part[0], type) else "a tensor"
