"""Logging under MegEngine's names.

Treadle's own logger shows warnings; loggers that programs make for themselves by `get_logger()` or
`get_logger(__name__)` show `info`, too, as they do in MegEngine. `MEGENGINE_LOGGING_LEVEL` or
`set_log_level` sets one level for all of them. Processes that `distributed.launcher` starts log as
the one that starts them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
"""True if `set_log_level` was called."""


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
    """A logger of the program's, below Treadle's own, which is called "treadle".

    Args:
        name: of the logger, usually `__name__`; "program" if None.
        formatter: a class of formatters, such as `MegEngineLogFormatter`, which the logger then
            uses on a handler of its own; by default records look like Treadle's.

    Raises:
        ValueError: the environment names no level.
    """
    logger = log.get_logger("program" if name is None else name)
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


def settings() -> dict[str, Any]:
    """Return the settings by which another process logs as this one does, as data that can be
    pickled.
    """
    own = log.get_logger()
    known = [own.name, *(n for n in own.manager.loggerDict if n.startswith(f"{own.name}."))]
    files = [h.baseFilename for h in own.handlers if isinstance(h, logging.FileHandler)]
    return {
        "levels": {name: logging.getLogger(name).level for name in known},
        "named": [logger.name for logger in _NAMED],
        "chosen": _CHOSEN[0],
        "files": files,
    }


def restore(found: dict[str, Any]) -> None:
    """Log as the process did that gave these `settings()`."""
    log.get_logger()
    for name, level in found["levels"].items():
        logging.getLogger(name).setLevel(level)
    _NAMED[:] = [logging.getLogger(name) for name in found["named"]]
    _CHOSEN[0] = found["chosen"]
    for file in found["files"]:
        set_log_file(file)


@contextmanager
def replace_mgb_log_level(level: int | str) -> Iterator[None]:
    """Change the level of Treadle's own logger within a block."""
    before = log.set_log_level(level)
    try:
        yield
    finally:
        log.set_log_level(before)
