"""A device in use: what backends may rely on, and what users may."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import logged
from tests.backends.toy_backend import GONE, ToyBuffer, ToyDevice

from treadle.base.errors import DeviceError, OutOfMemory
from treadle.runtime.array import from_host
from treadle.runtime.opened import OpenDevice


def test_no_backend_is_asked_for_empty_memory() -> None:
    device = OpenDevice("toy0", ToyDevice(0, 1024))
    block = device.alloc(0)  # the toy asserts that at least one byte is asked for
    assert block.nbytes == 0 and device.allocated == 0
    device.release(block)
    assert device.raw.frees == 1


def test_freeing_in_the_middle_of_an_allocation_waits() -> None:
    """The garbage collector may run anywhere, also inside a backend's `alloc`."""

    class Collecting(ToyDevice):
        def alloc(self, nbytes: int, /) -> ToyBuffer:
            buffer = super().alloc(nbytes)
            self._busy = True
            gc.collect()  # frees the array in the cycle: the toy asserts it is not told so now
            self._busy = False
            return buffer

    device = OpenDevice("toy0", Collecting(0, 1 << 20))
    cycle: list[Any] = [from_host(np.ones(4), device)]
    cycle[0].block
    cycle.append(cycle)
    with logged() as lines:
        del cycle
        device.alloc(8)
    assert lines == [] and device.raw.frees == 1


def test_threads_allocate_and_free_one_at_a_time() -> None:
    device = OpenDevice("toy0", ToyDevice(0, 1 << 20))  # asserts that calls do not overlap
    with logged() as lines:

        def work() -> None:
            for _ in range(200):
                array = from_host(np.ones(8), device)
                array.block

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    raw = device.raw
    assert lines == [] and raw.allocs == 800
    device.alloc(1)  # whatever was left by a race is freed now
    assert raw.frees == 800


def test_closing_frees_everything_and_is_final() -> None:
    device = OpenDevice("toy0", ToyDevice(0, 1 << 20))
    array, other = from_host(np.ones(4), device), from_host(np.zeros(2), device)
    buffer = array.buffer
    device.close()
    assert device.raw.closed and device.raw.frees == 1 and set(buffer.bytes) == {GONE}
    np.testing.assert_array_equal(array.host(), np.ones(4))
    with pytest.raises(DeviceError, match="toy0: the device was closed"):
        other.block
    with pytest.raises(DeviceError, match="tensors there are lost"):
        device.download(array.block, np.empty(4))
    del array, other
    assert device.raw.frees == 1


def test_running_out_says_how_much_there_is() -> None:
    device = OpenDevice("toy0", ToyDevice(0, 128))
    block = device.alloc(64)
    with pytest.raises(OutOfMemory, match="toy0: cannot allocate 65 bytes") as caught:
        device.alloc(65)
    assert "64 of 128 bytes free" in str(caught.value)
    assert isinstance(caught.value.__cause__, MemoryError)
    device.release(block)
    assert device.alloc(65).nbytes == 65


def test_failures_name_the_device_and_keep_the_cause() -> None:
    class Failing(ToyDevice):
        def copy_out(self, dst: memoryview, src: ToyBuffer, stream: Any, /) -> None:
            raise OSError("the cable is out")

        def alloc(self, nbytes: int, /) -> ToyBuffer:
            if nbytes > 100:
                raise RuntimeError("the chip is hot")
            return super().alloc(nbytes)

    device = OpenDevice("toy0", Failing(0, 1024))
    with pytest.raises(DeviceError, match="toy0: copy_out failed: OSError: the cable") as caught:
        device.download(device.upload(np.ones(2)), np.empty(2))
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(DeviceError, match="alloc failed: RuntimeError: the chip is hot"):
        device.alloc(101)


def test_failures_nobody_can_catch_are_logged() -> None:
    class Failing(ToyDevice):
        def free(self, buffer: ToyBuffer, /) -> None:
            raise OSError("lost")

        def close(self) -> None:
            raise OSError("lost")

    device = OpenDevice("toy0", Failing(0, 1024))
    with logged() as lines:
        device.release(device.alloc(8))
        device.close()
    assert lines == ["toy0 failed to free 8 bytes", "toy0 failed to close"]
    assert device.closed and device.allocated == 0
