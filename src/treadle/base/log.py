"""The package's logger and its MegEngine-named switches."""

from __future__ import annotations

import logging
import sys

from treadle.base.env import LOG_LEVEL

_NAME = "treadle"


def get_logger(name: str | None = None) -> logging.Logger:
    """The package logger, or a child of it; it writes to standard error once configured."""
    root = logging.getLogger(_NAME)
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
        root.setLevel(LOG_LEVEL.get().upper() or logging.WARNING)
    return root if name in (None, _NAME) else root.getChild(str(name))


def set_log_level(level: int | str, update_existing: bool = True) -> int:
    """Set the level of the package logger and return the level it had.

    Children inherit the level, so `update_existing` has nothing left to update.
    """
    logger = get_logger()
    before = logger.level
    logger.setLevel(level)
    return before


def set_log_file(fout: str, mode: str = "a") -> None:
    """Write log records to the file `fout`, opened in `mode`, besides standard error."""
    handler = logging.FileHandler(fout, mode=mode)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    get_logger().addHandler(handler)


def enable_debug_log() -> None:
    """Log everything."""
    set_log_level(logging.DEBUG)
