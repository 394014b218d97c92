"""Logging under MegEngine's names.

Treadle's own logger shows warnings; loggers that programs make for themselves by
`get_logger(__name__)` show `info`, too, as they do in MegEngine. `MEGENGINE_LOGGING_LEVEL` or
`set_log_level` sets one level for all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from treadle.base import log
from treadle.base.env import LOG_LEVEL
from treadle.base.log import set_log_file

__all__ = [
    "MegEngineLogFormatter",
    "enable_debug_log",
    "get_logger",
    "replace_mgb_log_level",
    "set_log_file",
    "set_log_level",
    "set_mgb_log_level",
]

_NAMED: list[logging.Logger] = []
"""Loggers of programs that have a level of their own."""
_CHOSEN = [False]
"""Whether `set_log_level` was called."""


class MegEngineLogFormatter(logging.Formatter):
    """Date, time, place in the source, level and message, as MegEngine prints them."""

    def __init__(
        self,
        fmt: str = "%(asctime)s %(filename)s:%(lineno)d %(levelname)s %(message)s",
        datefmt: str | None = "%d %H:%M:%S",
    ) -> None:
        super().__init__(fmt, datefmt)


def get_logger(
    name: str | None = None, formatter: Callable[[], logging.Formatter] | None = None
) -> logging.Logger:
    """Treadle's logger, or one of the program's, below it, by name.

    Args:
        name: of the program's logger, usually `__name__`.
        formatter: a class of formatters, such as `MegEngineLogFormatter`, which the logger then
            uses on a handler of its own; by default records look like Treadle's.

    Raises:
        ValueError: the environment names no level.
    """
    logger = log.get_logger(name)
    if name is None:
        return logger
    if logger.level == logging.NOTSET and not _CHOSEN[0] and not LOG_LEVEL.get():
        logger.setLevel(logging.INFO)
        _NAMED.append(logger)
    if formatter is not None and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(formatter())
        logger.addHandler(handler)
        logger.propagate = False
    return logger


def set_log_level(level: int | str, update_existing: bool = True) -> int:
    """Set the level (a number or a name) of all loggers and return what Treadle's had.

    Args:
        level: a number, or a name such as "INFO".
        update_existing: whether loggers that programs have made already follow.

    Raises:
        ValueError: `level` names no level.
    """
    before = log.set_log_level(level)
    _CHOSEN[0] = True
    if update_existing:
        while _NAMED:
            _NAMED.pop().setLevel(logging.NOTSET)
    return before


def enable_debug_log() -> None:
    """Log everything."""
    set_log_level(logging.DEBUG)


def set_mgb_log_level(level: int | str) -> int:
    """Set the level of Treadle's own logger alone and return the one before.

    That is the level of MegEngine's C++ part, of which Treadle has none.
    """
    return log.set_log_level(level)


@contextmanager
def replace_mgb_log_level(level: int | str) -> Iterator[None]:
    """Change the level of Treadle's own logger within a block."""
    before = log.set_log_level(level)
    try:
        yield
    finally:
        log.set_log_level(before)
