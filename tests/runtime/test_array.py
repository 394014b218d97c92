"""Arrays in device memory, in host memory, or in both, and movement between places."""

import threading
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.backends.toy_backend import FRESH, ToyBuffer, ToyDevice, ToyWithPeers

from treadle.base.errors import DeviceError
from treadle.runtime.api import Event, Stream, SynchronousStream
from treadle.runtime.array import DeviceArray, from_host, to_device, to_host
from treadle.runtime.opened import OpenDevice

DATA = np.arange(6, dtype=np.float32).reshape(2, 3)


def opened(kind: type[ToyDevice] = ToyDevice, index: int = 0) -> OpenDevice:
    return OpenDevice(f"toy{index}", kind(index, 1 << 20))


def test_the_device_copy_is_made_once_on_demand() -> None:
    device = opened()
    array = from_host(DATA, device)
    assert (array.shape, array.dtype, array.nbytes) == ((2, 3), np.float32, 24)
    assert array.on_host and device.raw.copies == (0, 0) and "in host" in repr(array)
    first = array.buffer
    assert array.buffer is first and device.raw.copies == (1, 0)
    assert "in device and host" in repr(array)
    assert array.host() is DATA and device.raw.copies == (1, 0)


def test_the_host_copy_is_made_once_on_demand() -> None:
    device = opened()
    array = DeviceArray(device, DATA.dtype, DATA.shape, block=device.upload(DATA))
    assert not array.on_host
    np.testing.assert_array_equal(array.host(), DATA)
    assert array.host() is array.host() and device.raw.copies == (1, 1)
    assert (device.traffic.bytes_up, device.traffic.bytes_down) == (24, 24)


@pytest.mark.parametrize(
    "array",
    [
        DATA.T,
        DATA[::-1, ::2],
        np.broadcast_to(np.float32(3), (2, 2)),
        np.array(2.5),
        np.zeros((0, 3)),
        np.array([True, False]),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([1 + 2j]),
    ],
    ids=["transposed", "strided", "broadcast", "0-d", "empty", "bool", "bfloat16", "complex"],
)
def test_any_array_makes_the_round_trip(array: np.ndarray[Any, Any]) -> None:
    device = opened()
    there = DeviceArray(device, array.dtype, array.shape, block=device.upload(array))
    back = there.host()
    assert back.dtype == array.dtype and back.shape == array.shape and back.flags.c_contiguous
    assert back.tobytes() == array.tobytes()


def test_uniform_arrays_are_filled() -> None:
    device = opened()
    array = DeviceArray(device, np.dtype("i4"), (2,), host=np.full(2, -1, np.int32), fill=255)
    assert array.buffer.bytes[:9].tolist() == [255] * 8 + [FRESH]
    assert device.raw.fills == 1 and device.raw.copies == (0, 0)


def test_uploads_are_charged_to_whoever_caused_them() -> None:
    charged: list[int] = []
    device = opened()
    array = DeviceArray(device, DATA.dtype, DATA.shape, host=DATA, charge=charged.append)
    array.host()
    assert charged == []
    array.block, array.block
    assert charged == [24]


def test_memory_is_freed_with_its_array() -> None:
    device = opened()
    array = from_host(DATA, device)
    array.block
    assert (device.raw.allocs, device.raw.frees, device.allocated) == (1, 0, 24)
    del array
    assert (device.raw.allocs, device.raw.frees, device.allocated) == (1, 1, 0)
    del device


def test_many_threads_upload_an_array_once() -> None:
    class Slow(ToyDevice):
        def copy_in(self, dst: ToyBuffer, src: memoryview, stream: Any, /) -> None:
            time.sleep(0.002)  # lets the other threads in
            super().copy_in(dst, src, stream)

    device = opened(Slow)
    for _ in range(5):
        array = from_host(DATA, device)
        barrier = threading.Barrier(4, timeout=300)
        buffers: list[Any] = []

        def ask(array: Any = array, barrier: Any = barrier, to: list[Any] = buffers) -> None:
            barrier.wait()
            to.append(array.buffer)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(b) for b in buffers}) == 1
    assert device.raw.ins == 5


# -- between places ----------------------------------------------------------------------------


def test_host_payloads_are_not_copied() -> None:
    assert to_host(DATA) is DATA and from_host(DATA, None) is DATA
    device = opened()
    assert to_host(from_host(DATA, device)) is DATA
    assert to_device(DATA, device).host() is DATA


def test_moving_within_a_device_is_nothing() -> None:
    device = opened()
    array = from_host(DATA, device)
    assert to_device(array, device) is array


def test_arrays_with_a_host_copy_are_uploaded_from_there() -> None:
    source, target = opened(ToyWithPeers), opened(ToyWithPeers, 1)
    array = from_host(DATA, source)
    array.block
    moved = to_device(array, target)
    assert moved.host() is DATA and target.raw.fetched == 0  # type: ignore[attr-defined]


def test_peers_copy_without_the_host() -> None:
    source, target = opened(ToyWithPeers), opened(ToyWithPeers, 1)
    assert target.reaches(source) and not target.reaches(opened())
    array = DeviceArray(source, DATA.dtype, DATA.shape, block=source.upload(DATA))
    moved = to_device(array, target)
    assert not moved.on_host and source.raw.outs == target.raw.ins == 0
    assert target.traffic.peer_copies == 1
    np.testing.assert_array_equal(moved.host(), DATA)
    with pytest.raises(DeviceError, match="cannot copy from toy0 without the host"):
        opened(index=2).fetch(source, array.block)


def test_peers_wait_for_the_work_that_makes_the_value() -> None:
    order: list[str] = []

    class Watched(SynchronousStream):
        def record(self) -> Event:
            order.append("recorded")
            return super().record()

        def wait(self, event: Event, /) -> None:
            order.append("awaited")

    class Queued(ToyWithPeers):
        def stream(self) -> Stream:
            return Watched()

        def copy_peer(self, *arguments: Any) -> None:
            order.append("copied")
            super().copy_peer(*arguments)

    source, target = opened(Queued), opened(Queued, 1)
    target.fetch(source, source.upload(DATA))
    assert order[:3] == ["recorded", "awaited", "copied"]
    # Nor does the source free the value before it has been copied.
    assert order[3:] == ["recorded", "awaited"]


def test_strangers_copy_by_the_host() -> None:
    source, target = opened(), opened(ToyWithPeers, 1)
    array = DeviceArray(source, DATA.dtype, DATA.shape, block=source.upload(DATA))
    np.testing.assert_array_equal(to_device(array, target).host(), DATA)
    assert source.raw.outs == 1 and array.on_host
