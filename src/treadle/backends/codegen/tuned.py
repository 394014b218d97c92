"""Choices that were measured on this machine, where generators would else trust their model.

A generator with several ways to write the same computation asks `choice` under a key that says what
is computed; what it gets was measured before and recorded, or is None. It also says which choices
there are, for whoever measures: inside of `trying`, some choice is forced; `questions` notes what
is asked. A record may come from anywhere, so whoever asks checks that a choice fits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from treadle.backends.codegen.target import Target

Choice = Mapping[str, int]
"""Numbers by name; what they mean is the generator's affair."""
Choices = Mapping[str, Choice]
"""By target and key, see `name_of`."""


class _State:
    """The records of this machine, and a digest of them."""

    def __init__(self) -> None:
        self.choices: Choices = {}
        self.digest = ""


_STATE = _State()
_TRIED: ContextVar[tuple[Choices, str] | None] = ContextVar("tried", default=None)
_ASKED: ContextVar[dict[str, tuple[Choice, ...]] | None] = ContextVar("asked", default=None)


def choice(
    target: Target, key: str, offers: Callable[[], Sequence[Choice]] = tuple
) -> Choice | None:
    """Return what was measured to be best, if anything was; `offers` lists the alternatives."""
    name = name_of(target, key)
    asked = _ASKED.get()
    if asked is not None and name not in asked:
        asked[name] = tuple(offers())
    tried = _TRIED.get()
    found = None if tried is None else tried[0].get(name)
    return _STATE.choices.get(name) if found is None else found


def name_of(target: Target, key: str) -> str:
    """The name of a question in a record."""
    return f"{target.name} {key}"


def install(choices: Choices) -> None:
    """Use a record from here on."""
    _STATE.choices, _STATE.digest = choices, _digest(choices)


def installed() -> Choices:
    """The record in use."""
    return _STATE.choices


def digest() -> str:
    """Part of every key under which something that depends on choices is remembered."""
    tried = _TRIED.get()
    return _STATE.digest if tried is None else f"{_STATE.digest}+{tried[1]}"


@contextmanager
def trying(choices: Choices) -> Iterator[None]:
    """Use these choices in the block, in place of recorded ones."""
    token = _TRIED.set((choices, _digest(choices)))
    try:
        yield
    finally:
        _TRIED.reset(token)


@contextmanager
def questions() -> Iterator[dict[str, tuple[Choice, ...]]]:
    """The names that are asked for inside, with what there is to choose from."""
    asked: dict[str, tuple[Choice, ...]] = {}
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


def _digest(choices: Choices) -> str:
    if not choices:
        return ""
    text = json.dumps({name: dict(choices[name]) for name in sorted(choices)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
