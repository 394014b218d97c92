"""Where in the user's program something was asked for."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True)
class Loc:
    """A source line: file, 1-based line and function; an empty file means unknown."""

    file: str = ""
    line: int = 0
    function: str = ""

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
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) and not file.startswith("<frozen"):
            return Loc(_shorten(file), frame.f_lineno, frame.f_code.co_name)
        following = frame.f_back
        if following is None:
            break
        frame = following
    return UNKNOWN


def _shorten(file: str) -> str:
    """A path relative to the working directory when that is shorter to read."""
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file
