"""Fields of requests, each read by a function that knows its type and range."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from treadle.base.errors import ShapeError, TreadleError
from treadle.base.files.strict_json import shorten
from treadle.serve.protocol import RequestRefusal


class Wrong(RequestRefusal):
    """A request that is answered with an error, as OpenAI's interface has it.

    Attributes:
        param: the field that is wrong.
        code: a word for programs.
    """

    def __init__(
        self, text: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(status, text)
        self.param = param
        self.code = code


def number_of(
    content: Mapping[str, Any],
    name: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    whole: bool = False,
) -> Any:
    """A number, None where there is none; switches are not numbers."""
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        mistyped(name, "an integer" if whole else "a number", value)
    if not low <= value <= high:
        raise Wrong(f"{name} is {low:g} to {high:g}, not {value}", name)
    return value


def switch_of(content: Mapping[str, Any], name: str) -> bool:
    """True or false; false where there is none."""
    value = content.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        mistyped(name, "true or false", value)
    return bool(value)


def mistyped(name: str, wanted: str, value: Any) -> NoReturn:
    """Refuse a value of another type."""
    raise Wrong(f"{name} is {wanted}, not {shorten(json.dumps(value))}", name)


def text_of(value: Any, name: str) -> str:
    """A text that can be written as UTF-8."""
    if not isinstance(value, str):
        mistyped(name, "a text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong(f"{name} holds half of a surrogate pair, which is not text", name) from None
    return str(value)


def list_of(value: Any, name: str, most: int) -> list[Any]:
    """A list with something in it."""
    if not isinstance(value, list):
        mistyped(name, "a list", value)
    if not 1 <= len(value) <= most:
        raise Wrong(f"{name} has {len(value)} entries, 1 to {most} are taken", name)
    return list(value)


def texts_of(content: Mapping[str, Any], name: str, most: int) -> tuple[str | tuple[int, ...], ...]:
    """Texts or lists of tokens: one or several."""
    value = content.get(name)
    if isinstance(value, str):
        return (text_of(value, name),)
    given = list_of(value, name, 1 << 20)
    if all(_is_token(each) for each in given):
        return (tuple(given),)
    if len(given) > most:
        raise Wrong(f"{name} has {len(given)} texts, {most} are taken", name)
    return tuple(_text_or_tokens(each, name) for each in given)


def _text_or_tokens(value: Any, name: str) -> str | tuple[int, ...]:
    if isinstance(value, list) and value and all(_is_token(each) for each in value):
        return tuple(value)
    return text_of(value, name)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def wrong_of(error: TreadleError, param: str) -> Wrong:
    """An error of the framework in words for clients."""
    parts = (error.problem, error.saw, error.hint)
    code = "context_length_exceeded" if isinstance(error, ShapeError) else None
    return Wrong("; ".join(p for p in parts if p), param, code)
