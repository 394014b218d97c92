"""The package's logger and its MegEngine-named switches."""

from __future__ import annotations

import logging
import os
import sys
from threading import Lock
from typing import TextIO

from treadle.base.env import LOG_LEVEL
from treadle.base.process import RUNTIME

_NAME = "treadle"
_LOCK = Lock()
_TOLD: dict[str, bool] = RUNTIME.table("warnings given once", "messages")
"""Warnings that somebody has had."""
_FORMAT = "%(levelname)s %(name)s: %(message)s"


def get_logger(name: str | None = None) -> logging.Logger:
    """The package logger, or the child of it called `name`.

    The first call makes it write to standard error, at the level of `MEGENGINE_LOGGING_LEVEL` or
    `TREADLE_LOG_LEVEL` (a name or a number; warnings and above by default).

    Raises:
        ValueError: the variable names no level.
    """
    root = logging.getLogger(_NAME)
    with _LOCK:
        if not any(isinstance(h, _StandardError) for h in root.handlers):
            _configure(root)
    return root if name in (None, _NAME) else root.getChild(str(name))


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is when a record comes, which notebooks and tests replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.stream = sys.stderr
        super().emit(record)


def _configure(root: logging.Logger) -> None:
    wanted = LOG_LEVEL.get()
    try:
        root.setLevel(_level(wanted or logging.WARNING))
    except ValueError:
        raise ValueError(f"{LOG_LEVEL.source()}={wanted!r} is not a logging level") from None
    handler = _StandardError()
    handler.setFormatter(logging.Formatter(_FORMAT))
    root.addHandler(handler)
    root.propagate = False


def set_log_prefix(prefix: str) -> None:
    """Begin each record on standard error with a text, such as which of several processes it is."""
    for handler in get_logger().handlers:
        if isinstance(handler, _StandardError):
            handler.setFormatter(logging.Formatter(prefix.replace("%", "%%") + _FORMAT))


def _level(level: int | str) -> int | str:
    """A level as `logging` takes it: a number, or a name in capitals."""
    if isinstance(level, int):
        return level
    return int(level) if level.isdecimal() else level.upper()


def set_log_level(level: int | str, update_existing: bool = True) -> int:
    """Set the level (a number or a name) of the package logger and return the level it had.

    Children inherit the level, so `update_existing` has nothing left to update.

    Raises:
        ValueError: `level` names no level.
    """
    logger = get_logger()
    before = logger.level
    logger.setLevel(_level(level))
    return before


def tell_once(text: str) -> None:
    """Warn with a text that was not told yet."""
    if text not in _TOLD:
        _TOLD[text] = True
        get_logger().warning("%s", text)


def tell_no_effect(name: str, why: str) -> None:
    """Warn, once, that a setting was accepted and changes nothing."""
    tell_once(f"{name} has no effect here: {why}")


def set_log_file(fout: str | os.PathLike[str] | TextIO, mode: str = "a") -> None:
    """Write log records to a file besides standard error.

    Args:
        fout: its name, or anything that has `write` and `flush`.
        mode: in which to open what is named.
    """
    handler: logging.Handler
    if isinstance(fout, (str, os.PathLike)):
        handler = logging.FileHandler(fout, mode=mode)
    else:
        handler = logging.StreamHandler(fout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    get_logger().addHandler(handler)


def enable_debug_log() -> None:
    """Log everything."""
    set_log_level(logging.DEBUG)
