"""The CUDA backend over GPUs made of main memory, installed as a plug-in for tests."""

from __future__ import annotations

from tests.backends.cuda.host_gpu import HostGpu, compile_for_host

from treadle.backends.api import Availability, Device
from treadle.backends.cuda import Cuda
from treadle.backends.cuda.device import CudaDevice, CudaMemory
from treadle.backends.cuda.renderer import CudaRenderer
from treadle.backends.rendering import Renderer

KIND = "hostgpu"


class PoisoningDevice(CudaDevice):
    """Freed memory, which waits for whoever wants it next, loses its contents."""

    def free(self, buffer: CudaMemory, /) -> None:
        if buffer.region is not None:
            self.fill(buffer, 0xDD, buffer.nbytes, self.stream())
        super().free(buffer)


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
        return PoisoningDevice(self.gpus[index], f"{KIND}{index}")

    def renderer(self) -> Renderer:
        return CudaRenderer(["sm_80"], "g++", compile_for_host)

    def libraries(self) -> tuple[str, ...]:
        """None of NVIDIA's, also where they are installed."""
        return ()
