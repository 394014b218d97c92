"""Exit statuses of all commands."""

from __future__ import annotations

import enum

from treadle.base.errors import LoadError


class Status(enum.IntEnum):
    """Status in which a command ended."""

    DONE = 0
    """It did what was asked."""
    FAILED = 1
    """A file cannot be read or written, or a model cannot be compiled or run."""
    MISUSE = 2
    """Arguments are wrong."""
    DIFFERENT = 3
    """Results are not those that were expected."""
    UNFIT = 4
    """The file has code for another processor or another version."""
    INTERRUPTED = 130
    """Ctrl-C."""


class Unfit(LoadError):
    """A file has code for another machine, and was not to be compiled anew."""


class Misuse(LoadError):
    """Error for arguments that make no sense, whatever the files hold."""
