"""OpenCL devices: memory through PyOpenCL, kernels rendered in OpenCL C.

PyOpenCL, and with it every driver of the system, is loaded when a device is asked for by name.
"""

from __future__ import annotations

import importlib
import importlib.util
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
            return Availability(False, why)
        try:
            found, why = self._module("platforms").devices()
        except ImportError as error:  # its library of loaders is missing or broken
            return Availability(False, f"pyopencl cannot be imported: {error}")
        return Availability(bool(found), why, len(found))

    def open(self, index: int, /) -> Device:
        found, _ = self._module("platforms").devices()
        device: Device = self._module("device").ClDevice(found[index])
        return device

    def renderer(self) -> Renderer:
        found, _ = self._module("platforms").devices()
        made: Renderer = self._module("renderer").ClRenderer(found[0])
        return made

    @staticmethod
    def _module(name: str) -> Any:
        return importlib.import_module(f"treadle.backends.opencl.{name}")


backend = OpenCL()
