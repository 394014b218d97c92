"""OpenCL devices: memory through PyOpenCL, kernels rendered in OpenCL C.

PyOpenCL, and with it every driver of the system, is loaded when a device is asked for by name.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from treadle.backends.api import Availability
from treadle.backends.rendered.backend import RenderedBackend
from treadle.backends.rendering import Renderer
from treadle.runtime.api import Device


class OpenCL(RenderedBackend):
    """All devices of one platform and type: the first graphics card's, else the processor's."""

    name = "opencl"
    protocol = (1, 2)
    device_kinds = ("opencl",)
    serves = ("opencl",)

    def probe(self) -> Availability:
        if importlib.util.find_spec("pyopencl") is None:
            why = "pyopencl is not installed; pip install 'treadle[opencl]'"
            return Availability(False, why, lacks_library=True)
        try:
            found, why = _devices()
        except ImportError as error:  # its library of loaders is missing or broken
            why = f"pyopencl cannot be imported: {error}"
            return Availability(False, why, lacks_library=True)
        return Availability(bool(found), why, len(found))

    def open(self, index: int, /) -> Device:
        from treadle.backends.opencl.device import ClDevice

        return ClDevice(_devices()[0][index])

    def renderer(self) -> Renderer:
        from treadle.backends.opencl.renderer import ClRenderer

        return ClRenderer(_devices()[0][0])


def _devices() -> tuple[Sequence[Any], str]:
    from treadle.backends.opencl.platforms import devices

    return devices()


backend = OpenCL()
