"""The reference engine: NumPy, every op, every dtype, on the host device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from treadle.backends.api import PROTOCOL, Availability, Kernel, Support
from treadle.base.types import TensorType
from treadle.ops.op import Op
from treadle.runtime.api import Device
from treadle.runtime.host import HostDevice

# Ops promise IEEE results (inf, nan) and say so; NumPy's remarks about them are not for users.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"treadle\.")


class Reference:
    """Runs `Op.reference`; the oracle of every other engine and the last resort."""

    name = "reference"
    protocol = PROTOCOL
    device_kinds = ("cpu", "multithread")
    serves = ("cpu", "multithread")
    priority = 0

    def probe(self) -> Availability:
        return Availability(True, "NumPy on the host", count=1)

    def open(self, index: int, /) -> Device:
        return HostDevice()

    def kernels(self) -> Sequence[Kernel]:
        return ()

    def prepare(
        self, op: Op, types: Sequence[TensorType] | None, /
    ) -> Callable[..., Any] | Support:
        return op.reference


backend = Reference()
