"""Source locations in the user's program."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, field
from types import FrameType

from treadle.base.layers import current_layer
from treadle.base.tracebacks import PASSING, is_generated, is_own_file


@dataclass(frozen=True, slots=True)
class Loc:
    """A source line: file, 1-based line and function; an empty file means unknown.

    `layer` is the module that ran the line, where somebody watches; it does not count as a part of
    the place.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    layer: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return bool(self.file)

    def __str__(self) -> str:
        if not self.file:
            return "unknown"
        where = f"{self.file}:{self.line}"
        return where if self.function in ("", "<module>") else f"{where} in {self.function}"


UNKNOWN = Loc()


def user_location() -> Loc:
    """The innermost stack frame that does not belong to Treadle.

    Taken when raising and while capturing, never on the eager fast path.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if not _is_passed_over(file) and not (file == "<string>" and is_generated(frame)):
            return Loc(_shorten(file), frame.f_lineno, code.co_name, current_layer())
        frame = frame.f_back
    return UNKNOWN


_CALLERS: list[str] = []
"""Folders of frameworks that run ops for the user."""


def pass_over(folder: str) -> None:
    """Attribute no lines below `folder` to the user: a framework there runs ops for them."""
    _CALLERS.append(os.path.join(folder, ""))


def _is_passed_over(file: str) -> bool:
    return _is_our_file(file) or any(map(file.startswith, _CALLERS))


@functools.lru_cache(4096)
def _is_our_file(file: str) -> bool:
    """Return whether a file is Treadle's, or the standard library's that runs on behalf of it."""
    return is_own_file(file) or file.startswith("<frozen") or file in PASSING


def _shorten(file: str) -> str:
    """A path relative to the working directory where the file lies below it."""
    try:
        return _relative(file, os.getcwd())
    except OSError:  # The directory was deleted.
        return file


@functools.lru_cache(4096)
def _relative(file: str, folder: str) -> str:
    here = os.path.join(folder, "")
    return file[len(here) :] if file.startswith(here) else file
