"""Decisions about who runs which op, as they were made: kept for reports, and logged if asked."""

from __future__ import annotations

import logging
import threading

from treadle.backends import registry
from treadle.base.env import TRACE_DISPATCH
from treadle.base.log import get_logger
from treadle.engine.choice import Decision

_MOST = 4096
_LOCK = threading.Lock()
_MADE: dict[tuple[object, ...], Decision] = {}


def note(decision: Decision) -> Decision:
    """Keep a decision that was just made; TREADLE_TRACE_DISPATCH=1 writes it to the log.

    Those about ops without operands, which may be large constants, are only logged.
    """
    with _LOCK:
        if len(_MADE) >= _MOST:
            del _MADE[next(iter(_MADE))]
        if decision.types:
            _MADE[decision.op, decision.types, decision.device] = decision
    if TRACE_DISPATCH.get() == "1":
        logger = get_logger("dispatch")
        logger.setLevel(logging.INFO)  # whatever the level of the others: it was asked for
        logger.info("%s", decision)
    return decision


def made_for(device: str) -> list[Decision]:
    """The last decisions for a device, by its logical name, oldest first."""
    with _LOCK:
        return [d for d in _MADE.values() if d.device == device]


registry.on_rescan(_MADE.clear)
