"""Kernels of ops and of whole workloads, as CUDA C++ and as cubins; nothing is run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from unittest import mock

import pytest
from tests.backends.cuda.host_backend import KIND, HostCuda
from tests.backends.cuda.host_gpu import HostGpu

from treadle.backends.api import Device, Support
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.lower import lower
from treadle.backends.cuda.device import CudaDevice
from treadle.backends.cuda.renderer import TARGET, CudaRenderer
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.engine.eager import placed
from treadle.engine.execute import device_executor
from treadle.ops import REGISTRY

ARCHITECTURES = ("sm_80", "sm_90a")


def has_nvrtc() -> bool:
    """Whether NVIDIA's compiler can be called; it needs no GPU and no driver."""
    try:
        if any(importlib.util.find_spec(n) is None for n in ("cuda.core", "cuda.bindings")):
            return False
    except ModuleNotFoundError:
        return False
    nvrtc: Any = importlib.import_module("treadle.backends.cuda.nvrtc")
    try:
        nvrtc.compiler_version()
    except Exception:  # the library itself is not there
        return False
    return True


needs_nvrtc = pytest.mark.skipif(
    not has_nvrtc(), reason="needs cuda-core, cuda-bindings and nvidia-cuda-nvrtc"
)


def to_cubin(kernels: Sequence[KernelModule], architecture: str) -> bytes:
    """Machine code of some kernels."""
    nvrtc: Any = importlib.import_module("treadle.backends.cuda.nvrtc")
    found: bytes = nvrtc.to_cubin(CudaRenderer([architecture]).render(kernels), architecture)
    return found


def kernels_of(
    names: Iterable[str], dtypes: Collection[DType], most: int = 1 << 30
) -> dict[str, KernelModule]:
    """The kernels of the ops' samples, by symbol; of each op `most` at most."""
    found: dict[str, KernelModule] = {}
    for name in names:
        own: dict[str, KernelModule] = {}
        for sample in REGISTRY[name].samples():
            for dtype in (d for d in sample.element_types() if d in dtypes):
                types = [TensorType(as_dtype(a.dtype), a.shape) for a in sample.arrays(dtype)]
                lowered = lower(sample.op, types, (), TARGET)
                if not isinstance(lowered, Support):
                    launches = (*lowered.prelude, *lowered.launches)
                    own |= {symbol_of(launch.kernel): launch.kernel for launch in launches}
        found |= dict(list(own.items())[:most])
    return found


class _IdleGpu(HostGpu):
    """A GPU whose kernels do nothing."""

    def load(self, binary: bytes, symbols: Sequence[str], /) -> list[Any]:
        return list(symbols)

    def launch(self, *_: Any) -> None:
        return None


class _Renderer(CudaRenderer):
    """Remembers the kernels that it is asked for."""

    def __init__(self) -> None:
        super().__init__(["sm_80"], "none", lambda source, architecture: b"")
        self.kernels: dict[str, KernelModule] = {}

    def render(self, kernels: Sequence[Any], /) -> str:
        self.kernels |= {symbol_of(k): k for k in kernels}
        return super().render(kernels)


class Recorder(HostCuda):
    """The backend with all results zero: it shows which kernels programs run."""

    def __init__(self) -> None:
        super().__init__()
        self.made = _Renderer()

    def open(self, index: int, /) -> Device:
        return CudaDevice(_IdleGpu(index), f"{KIND}{index}")

    def renderer(self) -> _Renderer:
        return self.made


def recorded(recorder: Recorder, run: Callable[[str], object]) -> dict[str, KernelModule]:
    """The kernels that `run` has compiled when it is given the recorder's device."""
    before = set(recorder.made.kernels)
    # Nothing ran, so what checks of indices found is whatever the memory held.
    with (
        mock.patch.object(device_executor, "finding", lambda statuses: None),
        mock.patch.object(placed, "finding", lambda statuses: None),
    ):
        run(f"{KIND}0")
    return {s: k for s, k in recorder.made.kernels.items() if s not in before}


def batches(kernels: dict[str, KernelModule], size: int = 12) -> list[list[KernelModule]]:
    """Kernels that are compiled together, for one source costs less than many."""
    every = list(kernels.values())
    return [every[i : i + size] for i in range(0, len(every), size)]
