"""Objects of packages above this one that `save` and `load` know as plain values in disguise.

A form is a class, a kind that stands for it in files, and a function to plain values. The way back
stands here for the kind: the table is closed, as files must not choose what is imported, and the
module is imported when such a file is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.base import late

_FROM_PLAIN = {"traced_module": late.traced_module_from_plain}
_FORMS: dict[type, tuple[str, Callable[[Any], Any]]] = {}


def register_form(cls: type, kind: str, to_plain: Callable[[Any], Any]) -> None:
    """Register a class whose objects `save` writes, but not those of classes derived from it.

    Raises:
        KeyError: the kind is not in this module's table.
    """
    if kind not in _FROM_PLAIN:
        raise KeyError(f"{kind} is not in the table of forms")
    _FORMS[cls] = kind, to_plain


def form_of(x: object) -> tuple[str, Any] | None:
    """The kind and the plain value of an object; None if its class has no form."""
    found = _FORMS.get(type(x))
    return None if found is None else (found[0], found[1](x))


def restored(kind: str, plain: Any) -> Any:
    """The object of a plain value.

    Raises:
        KeyError: the kind is unknown.
    """
    return _FROM_PLAIN[kind]()(plain)
