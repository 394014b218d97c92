"""Run-time switches under MegEngine's names; set them as `treadle.config.async_level = 0`.

`async_level` 0 waits for the device after every op, as `device.synchronous` does, so that failures
are raised by the op at fault; 1 and 2 let devices work late. Errors of shape, dtype and device are
always raised at the call. `deterministic_kernel` is what all kernels are. `benchmark_kernel` has
what is compiled for the host from then on measured first, wherever kernels have alternatives, and
`benchmark_with_subprocess` has another process do that. `disable_memory_forwarding` has the values
of programs compiled from then on keep memory of their own; `_auto_format_convert = False` has them
hold maps in the order of axes that the program gives them.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from treadle.backends.measuring import MEASURING
from treadle.base.env import SYNC
from treadle.base.modes import casting
from treadle.engine.options import Converting, Sharing
from treadle.runtime.synchronous import SYNCHRONOUS

_ALLOWED: dict[str, tuple[Any, ...]] = {
    "benchmark_kernel": (False, True),
    "benchmark_with_subprocess": (False, True),
    "deterministic_kernel": (False, True),
    "async_level": (2, 0, 1),
    "disable_memory_forwarding": (False, True),
    "_compute_mode": ("default", "float32"),
    "_auto_format_convert": (True, False),
}


class _Config(types.ModuleType):
    """A module whose attributes are checked when they are set."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Programs that are sent to other processes refer to this module as to any other.
        return importlib.import_module, (self.__name__,)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ALLOWED and value not in _ALLOWED[name]:
            raise AssertionError(f"config.{name} must be one of {_ALLOWED[name]}, got {value!r}")
        super().__setattr__(name, value)
        if name == "async_level":
            SYNCHRONOUS.on = value == 0 or SYNC.get() == "1"
        elif name == "benchmark_kernel":
            MEASURING.on = value
        elif name == "benchmark_with_subprocess":
            MEASURING.apart = value
        elif name == "disable_memory_forwarding":
            Sharing.on = not value
        elif name == "_auto_format_convert":
            Converting.on = value

    @property
    def _compute_mode(self) -> str:
        """ "float32" inside of `amp.autocast`, else what was set."""
        return "float32" if casting() is not None else str(self.__dict__["_compute_mode"])

    @_compute_mode.setter
    def _compute_mode(self, value: str) -> None:
        self.__dict__["_compute_mode"] = value


benchmark_kernel: bool = False
benchmark_with_subprocess: bool = False
deterministic_kernel: bool = False
async_level: int = 2
disable_memory_forwarding: bool = False
_compute_mode: str = "default"
_auto_format_convert: bool = True


@contextmanager
def _override(
    benchmark_kernel: bool | None = None,
    deterministic_kernel: bool | None = None,
    async_level: int | None = None,
    compute_mode: str | None = None,
) -> Iterator[None]:
    """Change switches inside a block (or, as a decorator, inside a function)."""
    module = sys.modules[__name__]
    wanted = {
        "benchmark_kernel": benchmark_kernel,
        "deterministic_kernel": deterministic_kernel,
        "async_level": async_level,
        "_compute_mode": compute_mode,
    }
    changed = {name: value for name, value in wanted.items() if value is not None}
    before = {name: getattr(module, name) for name in changed}
    try:
        for name, value in changed.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


sys.modules[__name__].__class__ = _Config
