"""Waiting for devices, and what runs when the process ends."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from treadle.engine.devices import names as devices

_HANDLERS: list[Callable[[], Any]] = []


def synchronize() -> None:
    """Wait until all opened devices have done what was asked of them.

    A failure that a device reports late is raised here.
    """
    for device in devices.opened():
        if not device.lost:  # every use of it says so already
            device.synchronize()


def at_exit(handler: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function to be called when the process ends; returns it, so that it decorates.

    The last one comes first; each runs once, by `leave` or at the interpreter's end.
    """
    _HANDLERS.append(handler)
    return handler


def run_handlers() -> None:
    """Call what `at_exit` was given, and forget it."""
    while _HANDLERS:
        _HANDLERS.pop()()


def leave(code: Any = 0) -> NoReturn:
    """Run the handlers of `at_exit`, wait for devices and end the process by `SystemExit`."""
    run_handlers()
    synchronize()
    sys.exit(code)


atexit.register(run_handlers)
