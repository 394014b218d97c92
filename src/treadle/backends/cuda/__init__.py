"""The CUDA backend: NVIDIA GPUs by way of cuda-core, generated kernels compiled by NVRTC.

Where to read: `driver.py` (what is needed of a GPU) and `physical.py` (a real one), `device.py`
(memory, copies, order) with `pool.py`, `renderer.py` with `launching.py` (kernels), `recording.py`
(CUDA graphs), `nvrtc.py` (the compiler), `libraries/` (what NVIDIA's libraries compute). Nothing of
NVIDIA's is imported before a GPU was found.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle.backends.api import Availability, Device
from treadle.backends.cuda.driver import (
    LEAST,
    architecture,
    capabilities,
    count_devices,
    driver_version,
    has_driver,
    unique_name,
)
from treadle.backends.rendered.backend import RenderedBackend
from treadle.backends.rendering import Renderer
from treadle.base.env import CUDA_LIBRARIES
from treadle.base.errors import DeviceError
from treadle.runtime.comm.carriers import NCCL, Offer

if TYPE_CHECKING:
    from treadle.backends.rendered.compiler import RenderedCompiler

LIBRARIES = {"cublasLt": "nvmath.bindings.cublasLt", "cudnn": "cudnn", NCCL: "nccl.core"}
"""The package that each kind of library call is made by."""
INSTALL = "pip install 'treadle[cuda]'"
PRIORITY = 10
"""A GPU that works is what `xpux` stands for."""


class Cuda(RenderedBackend):
    """NVIDIA GPUs."""

    name = "cuda"
    protocol = (1, 2)
    device_kinds = ("gpu",)
    serves = ("gpu",)

    def probe(self) -> Availability:
        missing = [n for n in ("cuda.core", "cuda.bindings") if not _is_installed(n)]
        needs = f"{' and '.join(missing)} not installed: {INSTALL}" if missing else ""
        count, reason = count_devices()
        if not count or missing:
            lacks = bool(missing) or not has_driver()
            why = "; ".join(filter(None, (reason, needs)))
            return Availability(False, why, count, lacks_library=lacks)
        if all(c < LEAST for c in capabilities()):
            why = f"compute capability below {LEAST[0]}.{LEAST[1]}: CUDA has no compiler for it"
            return Availability(False, why, count)
        return Availability(True, f"{count} by NVIDIA's driver", count, PRIORITY)

    @functools.cached_property
    def versions(self) -> dict[str, int]:
        """Versions of CUDA and its driver as numbers such as 13000; none without a GPU."""
        if not self.probe().ok:
            return {}
        from treadle.backends.cuda import nvrtc
        from treadle.backends.cuda.libraries.cudnn import library as cudnn

        numbers = {"driver": driver_version(), "cuda": nvrtc.compiler_number()}
        return numbers | {"cudnn": cudnn.version()}

    def open(self, index: int, /) -> Device:
        from treadle.backends.cuda.device import CudaDevice
        from treadle.backends.cuda.physical import open_gpu

        gpu = open_gpu(index)
        check_capability(index, gpu.facts.capability)
        return CudaDevice(gpu, f"gpu{index}")

    def renderer(self) -> Renderer:
        from treadle.backends.cuda.renderer import CudaRenderer

        return CudaRenderer([architecture(c) for c in capabilities() if c >= LEAST])

    @functools.cached_property
    def _compiler(self) -> RenderedCompiler:
        from treadle.backends.cuda.compiler import CudaCompiler

        return CudaCompiler(self.renderer(), self.libraries())

    def libraries(self) -> tuple[str, ...]:
        """Kinds of library calls whose packages are installed; kernels are generated for the rest.

        The names are those of `libraries/calls.py`.
        """
        allowed = {name.strip() for name in CUDA_LIBRARIES.get().split(",")}
        return tuple(k for k, p in LIBRARIES.items() if k in allowed and _is_installed(p))

    def offers(self, index: int, /) -> Mapping[str, Offer]:
        """Return the offer of NCCL for a device, or the reason why it cannot be used."""
        if NCCL not in self.libraries():
            why = "nccl4py is missing: pip install 'treadle[nccl]'"
            off = f"{CUDA_LIBRARIES.names[0]} leaves NCCL out"
            return {NCCL: Offer(refusal=off if _is_installed(LIBRARIES[NCCL]) else why)}
        from treadle.backends.cuda.libraries import nccl

        found = nccl.version()
        refusal = "" if found else "libnccl.so.2 was not found: pip install 'treadle[nccl]'"
        return {NCCL: Offer(found, unique_name(index), refusal)}


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
