"""A GPU made of main memory: CUDA C++ compiled for the host, one thread after the other.

It shows what the text means (indices, masks, reductions, loops over items, scratch memory) and
drives everything above the driver. It says nothing about what NVIDIA's compiler and hardware do.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import platform
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.backends.cuda.driver import DriverError, Extents, Facts

SHIM = """
#include <math.h>
#include <stdint.h>
#include <string.h>
struct extents { unsigned x, y, z; };
static thread_local extents gridDim, blockDim, blockIdx, threadIdx;
#define __global__
#define __device__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __shared__ thread_local
static inline void __syncthreads() {}
typedef void (*any_kernel)(%s);
#define EACH(of, in) for (of.z = 0; of.z < in.z; of.z++) \\
  for (of.y = 0; of.y < in.y; of.y++) for (of.x = 0; of.x < in.x; of.x++)
extern "C" void run_grid(void *kernel, const unsigned *e, int64_t *a, double *d) {
  gridDim = extents{e[0], e[1], e[2]};
  blockDim = extents{e[3], e[4], e[5]};
  EACH(blockIdx, gridDim) EACH(threadIdx, blockDim) ((any_kernel)kernel)(%s);
}
"""
MOST_PARAMETERS = 64
"""Calls pass as many, all of one register's size; a function ignores those it does not know."""
MOST_DOUBLES = 8
"""As many are passed besides: they have registers of their own, wherever they stand in the list."""
_FLAGS = [
    "-std=c++17",
    "-O0",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-w",
    "-shared",
    "-fPIC",
    "-x",
    "c++",
]
_GUARD = 64
_POISON = 0xA5
_numbers = itertools.count()


def host_compiler() -> str | None:
    """The system's C++ compiler, if it is one that takes the flags."""
    return None if platform.system() == "Windows" else shutil.which("g++")


def compile_for_host(source: str, architecture: str = "") -> bytes:
    """A shared library of what would be a cubin."""
    types = ", ".join(["int64_t"] * MOST_PARAMETERS + ["double"] * MOST_DOUBLES)
    values = [f"a[{i}]" for i in range(MOST_PARAMETERS)] + [f"d[{i}]" for i in range(MOST_DOUBLES)]
    with tempfile.TemporaryDirectory() as folder:
        text, library = Path(folder, "kernels.cu"), Path(folder, "kernels.so")
        text.write_text(SHIM % (types, ", ".join(values)) + source)
        command = [host_compiler() or "g++", *_FLAGS, str(text), "-o", str(library)]
        subprocess.run(command, check=True)
        return library.read_bytes()


class HostRegion:
    """Memory with guards on both sides, which `release` looks at."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = np.full(nbytes + 3 * _GUARD, _POISON, np.uint8)
        self.start = -self.memory.ctypes.data % _GUARD + _GUARD
        self.address = self.memory.ctypes.data + self.start
        self.alive = True

    def check(self) -> None:
        before = self.memory[: self.start]
        after = self.memory[self.start + self.nbytes :]
        assert (before == _POISON).all() and (after == _POISON).all(), "written out of bounds"


class HostMark:
    def __init__(self, queue: HostQueue) -> None:
        self.queue, self.position = queue, queue.submitted

    def done(self) -> bool:
        return self.queue.finished >= self.position

    def wait(self) -> None:
        self.queue.finish(self.position)


QUEUES: weakref.WeakValueDictionary[int, HostQueue] = weakref.WeakValueDictionary()
"""Every queue by its handle, for fakes of libraries."""


class HostTimedMark(HostMark):
    """Notes the time when the queue gets there."""

    def __init__(self, queue: HostQueue) -> None:
        self.time = 0.0
        queue.submit(self._reached)
        super().__init__(queue)

    def _reached(self) -> None:
        self.time = time.perf_counter()

    def since(self, start: HostTimedMark, /) -> float:
        assert self.done() and start.done()
        return self.time - start.time


class HostQueue:
    """Work waits until somebody waits for it, as it may on a GPU."""

    def __init__(self) -> None:
        self.handle = next(_numbers) + 1
        self.work: list[Any] = []
        self.submitted = self.finished = 0
        self._lock = threading.RLock()
        QUEUES[self.handle] = self

    def submit(self, task: Any) -> None:
        with self._lock:
            self.work.append(task)
            self.submitted += 1

    def finish(self, position: int) -> None:
        with self._lock:
            while self.finished < position:
                self.work.pop(0)()
                self.finished += 1

    def mark(self) -> HostMark:
        return HostMark(self)

    def timed_mark(self) -> HostTimedMark:
        return HostTimedMark(self)

    def after(self, mark: Any, /) -> None:
        self.submit(mark.wait)

    def synchronize(self) -> None:
        self.finish(self.submitted)


class HostRecording:
    """What a capture has recorded."""

    def __init__(self, work: Sequence[Any]) -> None:
        self.work = tuple(work)
        self.pending = 0
        self.closed = False

    def run(self) -> None:
        for task in self.work:
            task()
        self.pending -= 1

    def close(self) -> None:
        assert not self.pending and not self.closed, "let go of while it is under way"
        self.closed = True


class HostCapture(HostQueue):
    """A queue that remembers its work; what CUDA forbids while capturing is an error."""

    def __init__(self, gpu: HostGpu) -> None:
        super().__init__()
        self.gpu = gpu
        self.ended = False
        gpu.capturing += 1

    def submit(self, task: Any) -> None:
        assert not self.ended
        self.work.append(task)

    def finish(self) -> HostRecording:
        if self.gpu.refuses:
            raise DriverError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)")
        made = HostRecording(self.work)
        self.gpu.recordings.append(made)
        return made

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self.gpu.capturing -= 1

    def _refuse(self, *_: Any) -> Any:
        raise DriverError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)")

    mark = timed_mark = after = synchronize = _refuse


class HostGpu:
    """A GPU of `memory` bytes."""

    def __init__(self, index: int = 0, memory: int = 1 << 28, processors: int = 2) -> None:
        self.index = index
        self.facts = Facts(f"host gpu {index}", (8, 0), memory, 1e9, processors, 256, 1e9)
        self.used = self.selected = 0
        self.launches: list[tuple[int, int]] = []
        self.submissions = 0
        self.recordings: list[HostRecording] = []
        self.capturing = 0
        self.refuses = False
        self.live: set[HostRegion] = set()
        self.closed = False
        self._libraries: list[Any] = []

    def select(self) -> None:
        self.selected += 1

    def queue(self) -> HostQueue:
        return HostQueue()

    def allocate(self, nbytes: int, queue: HostQueue, /) -> HostRegion:
        if isinstance(queue, HostCapture):
            raise DriverError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)")
        if self.used + nbytes > self.facts.memory:
            raise MemoryError("CUDA_ERROR_OUT_OF_MEMORY")
        region = HostRegion(nbytes)
        self.used += nbytes
        self.live.add(region)
        return region

    def release(self, region: HostRegion, queue: HostQueue, /) -> None:
        assert region in self.live, "released twice"
        assert not isinstance(queue, HostCapture), "released in the middle of a recording"
        self.live.discard(region)
        self.used -= region.nbytes

        def gone() -> None:
            region.check()
            region.memory[:] = 0xDD

        queue.submit(gone)

    def pinned(self, nbytes: int, /) -> HostRegion:
        return HostRegion(nbytes)

    def copy(self, to: int, source: int, nbytes: int, queue: HostQueue, /) -> None:
        queue.submit(lambda: ctypes.memmove(to, source, nbytes))

    def fill(self, to: int, value: int, nbytes: int, queue: HostQueue, /) -> None:
        queue.submit(lambda: ctypes.memset(to, value, nbytes))

    def load(self, binary: bytes, symbols: Sequence[str], /) -> list[Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{next(_numbers)}.so")
            path.write_bytes(binary)
            library = ctypes.CDLL(str(path))
        self._libraries.append(library)
        run = library.run_grid
        return [(run, ctypes.cast(getattr(library, s), ctypes.c_void_p)) for s in symbols]

    def launch(
        self,
        kernel: Any,
        blocks: Extents,
        threads: Extents,
        arguments: Sequence[int | float],
        queue: Any,
        /,
        shared: int = 0,
    ) -> None:
        grid, block = (e if isinstance(e, tuple) else (e,) for e in (blocks, threads))
        if not all(0 < e < 1 << 31 for e in grid) or not 0 < math.prod(block) <= 1024:
            raise DriverError("CUDA_ERROR_INVALID_VALUE (1)")
        run, function = kernel
        doubles = [a for a in arguments if isinstance(a, float)]
        integers = [a for a in arguments if not isinstance(a, float)]
        assert len(integers) <= MOST_PARAMETERS and len(doubles) <= MOST_DOUBLES
        extents = (ctypes.c_uint * 6)(*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3])
        if not isinstance(queue, HostCapture):
            self.launches.append((math.prod(grid), math.prod(block)))
            self.submissions += 1
        slots = (ctypes.c_int64 * MOST_PARAMETERS)(*integers)
        beside = (ctypes.c_double * MOST_DOUBLES)(*doubles)
        queue.submit(lambda: run(function, extents, slots, beside))

    def capture(self) -> HostCapture:
        return HostCapture(self)

    def replay(self, recording: HostRecording, queue: HostQueue, /) -> None:
        assert not recording.closed
        recording.pending += 1
        self.submissions += 1
        queue.submit(recording.run)

    def memory(self) -> tuple[int, int]:
        return self.facts.memory, self.facts.memory - self.used

    def close(self) -> None:
        self.closed = True
