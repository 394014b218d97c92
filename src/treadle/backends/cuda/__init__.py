"""The CUDA backend: NVIDIA GPUs by way of cuda-core, generated kernels compiled by NVRTC.

Where to read: `driver.py` (what is needed of a GPU) and `physical.py` (a real one), `device.py`
(memory, copies, order), `renderer.py` with `launching.py` (kernels), `nvrtc.py` (their compiler),
`libraries/` (what cuBLASLt computes). Nothing of NVIDIA's is imported before a GPU was
found.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from treadle.backends.api import Availability, Device
from treadle.backends.cuda.driver import (
    LEAST,
    architecture,
    capabilities,
    count_devices,
    driver_version,
)
from treadle.backends.rendered.backend import RenderedBackend
from treadle.backends.rendering import Renderer
from treadle.base.errors import DeviceError

INSTALL = "pip install 'treadle[cuda]'"
PRIORITY = 0
"""Not chosen for `xpux` before it has been seen to run on a GPU; `gpux` names it."""


class Cuda(RenderedBackend):
    """NVIDIA GPUs."""

    name = "cuda"
    protocol = (1, 1)
    device_kinds = ("gpu",)
    serves = ("gpu",)

    def probe(self) -> Availability:
        missing = [n for n in ("cuda.core", "cuda.bindings") if not _is_installed(n)]
        needs = f"{' and '.join(missing)} not installed: {INSTALL}" if missing else ""
        count, reason = count_devices()
        if not count or missing:
            return Availability(False, "; ".join(filter(None, (reason, needs))))
        return Availability(True, f"{count} by NVIDIA's driver", count, PRIORITY)

    @functools.cached_property
    def versions(self) -> dict[str, int]:
        """Versions of CUDA and its driver as numbers such as 13000; none without a GPU."""
        if not self.probe().ok:
            return {}
        nvrtc: Any = importlib.import_module("treadle.backends.cuda.nvrtc")
        return {"driver": driver_version(), "cuda": nvrtc.compiler_number()}

    def open(self, index: int, /) -> Device:
        physical: Any = importlib.import_module("treadle.backends.cuda.physical")
        device: Any = importlib.import_module("treadle.backends.cuda.device")
        gpu = physical.open_gpu(index)
        check_capability(index, gpu.facts.capability)
        opened: Device = device.CudaDevice(gpu, f"gpu{index}")
        return opened

    def renderer(self) -> Renderer:
        names = [architecture(c) for c in capabilities() if c >= LEAST]
        module: Any = importlib.import_module("treadle.backends.cuda.renderer")
        made: Renderer = module.CudaRenderer(names)
        return made

    @functools.cached_property
    def _compiler(self) -> Any:
        if not self.has_products():
            return super()._compiler
        module: Any = importlib.import_module("treadle.backends.cuda.compiler")
        return module.CudaCompiler(self.renderer())

    def has_products(self) -> bool:
        """Whether cuBLASLt computes products; else generated kernels do."""
        return _is_installed("nvmath.bindings.cublasLt")


def check_capability(index: int, capability: tuple[int, int]) -> None:
    """Raise `DeviceError` for a GPU that is older than the compiler's oldest."""
    if capability < LEAST:
        found, least = (".".join(map(str, c)) for c in (capability, LEAST))
        raise DeviceError(
            f"gpu{index}",
            f"its compute capability is {found}; {least} and above can be used",
            hint="use cpux",
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


backend = Cuda()
