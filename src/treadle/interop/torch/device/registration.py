"""Registering with PyTorch, once per process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from treadle.base.errors import DeviceError
from treadle.interop.torch.device import (
    asked,
    autocast,
    calls,
    hot,
    movement,
    namespace,
    placements,
    private,
    saving,
    untraced,
    watching,
)
from treadle.interop.torch.device.places import NAME
from treadle.interop.torch.native.library import library
from treadle.interop.torch.native.views_text import VIEWS
from treadle.interop.torch.placements import add_placements

_KEY = "PrivateUse1"
_FREE = "privateuseone"
_library: Any = torch.library.Library
_LOCK = threading.Lock()
_LIBRARIES: list[Any] = []
"""Libraries of operators; what was registered goes with these objects."""


class _Hooks(private.Hooks):  # type: ignore[misc, unused-ignore]  # torch may be missing
    """Answers to PyTorch's questions about a device in C++."""

    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


def register() -> None:
    """Make Treadle's devices devices of PyTorch: `treadle:0` is the host.

    Raises:
        DeviceError: PyTorch has one place for such devices, and another package took it.
    """
    with _LOCK:
        if _LIBRARIES:
            return
        _check_free()
        private.setup(NAME, namespace.module(), _Hooks())
        # The frames that switch Dynamo off, and what frees memory of devices at any time.
        untraced.pass_over(untraced.__name__, "treadle.runtime", "treadle.backends")
        _add_kernels()
        saving.register()
        watching.register()
        add_placements(NAME, placements.home)


def _check_free() -> None:
    held = private.slot_name()
    if held != _FREE:
        raise DeviceError(
            "treadle.torch",
            f"this process already has the device {held!r}, and PyTorch has room for one",
            hint=f"import treadle.torch in a process that does not import {_owner(held)}",
        )


def _owner(name: str) -> str:
    """The package that registered a device."""
    module = getattr(torch, name, None)
    known = str(getattr(module, "__name__", "")) or type(module).__module__
    first = known.partition(".")[0]
    return first if first in sys.modules and first != "torch" else f"what registers {name!r}"


def _in_one() -> Iterator[tuple[str, Any]]:
    """Operators that PyTorch takes apart before we see them.

    Some become `empty` and a variant with `out`, those over lists one for each element. Here they
    are one call.
    """
    wanted = [
        name
        for name in private.registrations("CompositeExplicitAutogradNonFunctional")
        if private.has_kernel(name, "CPU")
    ]
    wanted += [
        name
        for name in private.registrations("CompositeExplicitAutograd")
        if name.startswith("aten::_foreach_") and not name.endswith("out")
    ]
    for name in wanted:
        space, _, rest = name.partition("::")
        if space == "aten":
            packet, _, overload = rest.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            yield rest, hot.kernel(op, calls.run)


def _add_kernels() -> None:
    ours = _library("aten", "IMPL")
    hot.register_by(lambda name, kernel: ours.impl(name, kernel, _KEY))
    own = movement.KERNELS | asked.KERNELS
    kernels = dict(_in_one()) | {name: untraced.untraced(kernel) for name, kernel in own.items()}
    native = library()
    if native is not None and native.register_views():
        kernels = {name: kernel for name, kernel in kernels.items() if name not in VIEWS}
    for name, kernel in kernels.items():
        ours.impl(name, kernel, _KEY)
    for name, kernel in movement.FOR_CPU.items():
        ours.impl(name, untraced.untraced(kernel), "CPU")
    for name in movement.PASSED:
        for key in ("Conjugate", "Negative"):
            ours.impl(name, torch.library.fallthrough_kernel, key)
    for name, kernel in autocast.kernels():
        ours.impl(name, untraced.untraced(kernel), f"Autocast{_KEY}")
    everything = _library("_", "IMPL")
    everything.fallback(calls.run, _KEY)
    everything.fallback(torch.library.fallthrough_kernel, f"Autocast{_KEY}")
    _LIBRARIES.extend((ours, everything))
