"""Kernels as CUDA C++, compiled together for the host and launched as on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.backends.cuda.host_gpu import HostGpu, compile_for_host

from treadle.backends.codegen.kernel.c_cuda import cuda_source, scratch_bytes
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.target import Target


class HostKernels:
    """Calls one of the kernels on arrays and integers."""

    def __init__(self, kernels: Sequence[KernelModule], target: Target) -> None:
        self.gpu, source = HostGpu(), cuda_source(kernels, target)
        symbols = list(dict.fromkeys(symbol_of(k) for k in kernels))
        loaded = self.gpu.load(compile_for_host(source), symbols)
        self.loaded = dict(zip(symbols, loaded, strict=True))
        self.scratch = scratch_bytes(source)

    def __call__(
        self,
        kernel: KernelModule,
        arguments: Sequence[Any],
        items: int,
        blocks: int = 2,
        threads: int = 3,
    ) -> None:
        queue, symbol = self.gpu.queue(), symbol_of(kernel)
        slots = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
        pitch = self.scratch.get(symbol, 0)
        scratch = np.full(pitch * blocks * threads + 1, 0xA5, np.uint8)
        slots += [items, scratch.ctypes.data, pitch]
        self.gpu.launch(self.loaded[symbol], blocks, threads, slots, queue)
        queue.synchronize()
        assert scratch[-1] == 0xA5, "a kernel wrote behind its scratch memory"
