"""Where in the user's program something was asked for."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from types import FrameType

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
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_ours(frame):
            code = frame.f_code
            return Loc(_shorten(code.co_filename), frame.f_lineno, code.co_name)
        frame = frame.f_back
    return UNKNOWN


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame runs Treadle's code, or the standard library's on behalf of it."""
    file = frame.f_code.co_filename
    if file.startswith((_PACKAGE, "<frozen")) or file == contextlib.__file__:
        return True
    # Constructors that dataclasses and ops generate have no file, but their module's name.
    return file == "<string>" and str(frame.f_globals.get("__name__")).startswith("treadle.")


def _shorten(file: str) -> str:
    """A path relative to the working directory where the file lies below it."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # The directory was deleted.
        return file
    return file[len(here) :] if file.startswith(here) else file
