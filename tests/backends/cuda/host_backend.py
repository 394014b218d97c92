"""The CUDA backend over GPUs made of main memory, installed as a plug-in for tests."""

from __future__ import annotations

from tests.backends.cuda.host_gpu import HostGpu, compile_for_host

from treadle.backends.api import Availability, Device
from treadle.backends.cuda import Cuda
from treadle.backends.cuda.device import CudaDevice
from treadle.backends.cuda.renderer import CudaRenderer
from treadle.backends.rendering import Renderer

KIND = "hostgpu"


class HostCuda(Cuda):
    """Everything of the backend but the driver and the compiler."""

    name = KIND
    device_kinds = (KIND,)
    serves = (KIND,)

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.gpus: dict[int, HostGpu] = {}

    def probe(self) -> Availability:
        return Availability(True, "main memory", self.count)

    def open(self, index: int, /) -> Device:
        self.gpus[index] = HostGpu(index)
        return CudaDevice(self.gpus[index], f"{KIND}{index}")

    def renderer(self) -> Renderer:
        return CudaRenderer(["sm_80"], "g++", compile_for_host)

    def has_products(self) -> bool:
        """Not by NVIDIA's library, also where that is installed."""
        return False
