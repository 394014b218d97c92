"""The reference engine: NumPy, every op, every dtype, on the host device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from treadle.backends.api import Availability, Backend, Support
from treadle.base.types import TensorType
from treadle.ops.op import Op
from treadle.runtime.api import Device
from treadle.runtime.host import HostDevice

# Ops promise IEEE results (inf, nan) and say so; NumPy's remarks about them are not for users.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"treadle\.")


class Reference(Backend):
    """Runs `Op.reference`; the oracle of every other engine and the last resort."""

    name = "reference"
    protocol = (1, 0)
    device_kinds = ("cpu", "multithread")
    serves = ("cpu", "multithread")
    priority = 0

    def probe(self) -> Availability:
        return Availability(True, "NumPy on the host", count=1)

    def open(self, index: int, /) -> Device:
        return HostDevice()

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        return op.reference


backend = Reference()
