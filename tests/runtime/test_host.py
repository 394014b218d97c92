"""The host as a device like any other."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from treadle.base.errors import OutOfMemory
from treadle.runtime.api import DoneEvent, SynchronousStream
from treadle.runtime.host import ALIGNMENT, HostDevice
from treadle.runtime.opened import OpenDevice


def test_memory_is_aligned_and_as_large_as_asked() -> None:
    device = HostDevice()
    for nbytes in (1, 63, 64, 1000):
        buffer = device.alloc(nbytes)
        assert buffer.nbytes == nbytes and buffer.bytes.ctypes.data % ALIGNMENT == 0
        device.free(buffer)


def test_bytes_go_in_and_out() -> None:
    device = HostDevice()
    stream = device.stream()
    buffer = device.alloc(8)
    device.fill(buffer, 7, 8, stream)
    device.copy_in(buffer, memoryview(b"abc"), stream)
    out = bytearray(5)
    device.copy_out(memoryview(out), buffer, stream)
    assert out == b"abc\x07\x07"


@pytest.mark.parametrize("nbytes", [2**40, 2**62])
def test_huge_requests_are_refused(nbytes: int) -> None:
    with pytest.raises(OutOfMemory, match=f"host: cannot allocate {nbytes} bytes"):
        HostDevice().alloc(nbytes)


def test_it_opens_as_any_device_does() -> None:
    device = OpenDevice("cpu0", HostDevice())
    back = np.empty(3)
    device.download(device.upload(np.arange(3.0)), back)
    assert back.tolist() == [0.0, 1.0, 2.0]
    total, free = device.memory()
    assert total >= free > 0 and device.info.memory == total and device.info.name == "host"
    device.close()


def test_systems_that_do_not_tell_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf_names")
    assert HostDevice().memory() == (0, 0)


def test_synchronous_streams_are_always_done() -> None:
    stream = SynchronousStream()
    event = stream.record()
    stream.wait(event)
    stream.synchronize()
    assert isinstance(event, DoneEvent) and event.done()


_FREED = """
from treadle.runtime.host import give_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

given = [bytes(3000) for _ in range(20_000)]
last = given[-1]  # C libraries return what lies behind all that is in use
del given
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others return it, or never do")
def test_what_the_c_library_keeps_is_given_back() -> None:
    command = [sys.executable, "-c", _FREED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 40_000_000
