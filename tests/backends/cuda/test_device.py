"""The device over a GPU made of main memory: movement, order, memory, failures."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from tests.backends.cuda.host_gpu import HostGpu

from treadle.backends.cuda import check_capability
from treadle.backends.cuda import device as device_module
from treadle.backends.cuda.device import PIECE, PIECES, CudaDevice
from treadle.backends.cuda.driver import DriverError, architecture, count_devices
from treadle.backends.cuda.launching import geometry
from treadle.base.errors import DeviceError, DeviceLost, OutOfMemory
from treadle.runtime.api import CachingDevice, PartDevice, PeerDevice, TimedEvent, TimingDevice
from treadle.runtime.opened import OpenDevice


@pytest.fixture
def gpu() -> HostGpu:
    return HostGpu(memory=1 << 26)


@pytest.fixture
def device(gpu: HostGpu) -> CudaDevice:
    return CudaDevice(gpu, "gpu0")


def numbers(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


@pytest.mark.parametrize("nbytes", [1, 63, PIECE, (PIECES + 2) * PIECE + 5])
def test_what_goes_in_comes_out(device: CudaDevice, nbytes: int) -> None:
    memory, data = device.alloc(nbytes), numbers(nbytes)
    device.copy_in(memory, data.data, device.stream())
    sent, out = data.copy(), np.zeros(nbytes, np.uint8)
    data[:] = 0  # no longer read
    device.copy_out(out.data, memory, device.stream())
    np.testing.assert_array_equal(out, sent)


def test_parts_share_memory(device: CudaDevice) -> None:
    memory, stream, out = device.alloc(256), device.stream(), np.zeros(256, np.uint8)
    device.fill(memory, 7, 256, stream)
    device.fill(device.part(memory, 64, 32), 9, 32, stream)
    device.copy_in(device.part(memory, 100, 2), memoryview(b"ab"), stream)
    device.copy_out(out.data, memory, stream)
    assert out[63] == 7 and (out[64:96] == 9).all() and bytes(out[100:102]) == b"ab"
    with pytest.raises(ValueError, match="256"):
        device.part(memory, 200, 57)


def test_it_is_what_the_protocols_ask_for(device: CudaDevice) -> None:
    for protocol in (CachingDevice, PartDevice, PeerDevice, TimingDevice):
        assert isinstance(device, protocol)
    assert isinstance(device.stream().record(), TimedEvent)
    opened = OpenDevice("gpu0", device)
    block = opened.upload(np.arange(6.0))
    back = np.zeros(6)
    opened.download(block, back)
    assert back.tolist() == [0, 1, 2, 3, 4, 5]
    opened.close()
    assert device.gpu.closed and not device.gpu.live  # type: ignore[attr-defined]


def test_events_are_done_when_work_before_them_is(device: CudaDevice) -> None:
    memory, stream = device.alloc(8), device.stream()
    device.fill(memory, 1, 8, stream)
    event = stream.record()
    assert not event.done()
    event.wait()
    assert event.done()
    later = stream.record()
    later.wait()
    assert later.since(event) > 0
    with pytest.raises(TypeError, match="another device"):
        later.since(CudaDevice(HostGpu(1)).stream().record())


def test_peers_copy_and_keep_their_memory_until_then(gpu: HostGpu, device: CudaDevice) -> None:
    other = CudaDevice(HostGpu(1), "gpu1")
    source, target = other.alloc(64), device.alloc(64)
    other.fill(source, 5, 64, other.stream())
    device.stream().wait(other.stream().record())
    device.copy_peer(target, other, source, 64, device.stream())
    other.free(source)
    other.pool.clear()
    other.stream().synchronize()  # gives the memory to others
    out = np.zeros(64, np.uint8)
    device.copy_out(out.data, target, device.stream())
    assert (out == 5).all()


def test_no_room_is_an_error_of_the_framework(gpu: HostGpu, device: CudaDevice) -> None:
    opened = OpenDevice("gpu0", device)
    with pytest.raises(OutOfMemory, match="gpu0: cannot allocate"):
        opened.alloc(1 << 27)
    assert opened.memory() == (1 << 26, 1 << 26)


def test_scratch_grows_and_is_given_back(gpu: HostGpu, device: CudaDevice) -> None:
    stream = device.stream()
    first = stream.scratch(100)
    assert stream.scratch(50) == first and gpu.used == 100
    stream.scratch(1000)
    assert gpu.used == 1000
    device.close()
    assert gpu.used == 0 and gpu.closed


@pytest.mark.parametrize(
    ("code", "kind"),
    [("CUDA_ERROR_ILLEGAL_ADDRESS", DeviceLost), ("CUDA_ERROR_INVALID_VALUE", DeviceError)],
)
def test_failures_of_the_driver(device: CudaDevice, code: str, kind: type[Exception]) -> None:
    def fail() -> None:
        raise DriverError(f"{code} (700)")

    with pytest.raises(kind, match=code) as raised:
        device.call(fail)
    assert type(raised.value) is kind


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_is_told(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_FORKED", [device_module._FORKED[0] + 1])
    with pytest.raises(DeviceLost, match="forkserver"):
        device.alloc(1)
    device.close()  # leaves the parent's GPU alone
    assert not device.gpu.closed  # type: ignore[attr-defined]


def test_threads_share_pinned_memory(device: CudaDevice) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        data, out = numbers(10_000, seed), np.zeros(10_000, np.uint8)
        memory = device.alloc(10_000)
        device.copy_in(memory, data.data, device.stream())
        device.copy_out(out.data, memory, device.stream())
        if not (data == out).all():
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_architectures_are_exact() -> None:
    assert [architecture(c) for c in ((8, 0), (8, 9), (9, 0), (12, 0))] == [
        "sm_80",
        "sm_89",
        "sm_90a",
        "sm_120a",
    ]


def test_old_gpus_are_refused_with_their_capability() -> None:
    with pytest.raises(DeviceError, match=r"gpu1: its compute capability is 7.0; 7.5 and above"):
        check_capability(1, (7, 0))
    check_capability(0, (7, 5))


def test_facts_become_information(device: CudaDevice) -> None:
    info = device.info
    assert (info.name, info.memory) == ("host gpu 0", 1 << 26)
    assert info.units == 2
    assert {"compute_80", "multiprocessors_2", "bfloat16"} <= set(info.features)


@pytest.mark.parametrize(
    ("items", "scratch", "expected"),
    [
        (1, 0, (1, 32)),
        (100, 0, (4, 32)),
        (1000, 0, (8, 128)),
        (1000, 1 << 14, (2, 128)),  # 4 MiB of scratch memory are 256 threads
        (1000, 1 << 19, (1, 8)),
        (1000, 1 << 30, (1, 1)),
    ],
)
def test_threads_of_a_launch(items: int, scratch: int, expected: tuple[int, int]) -> None:
    facts = HostGpu(memory=1 << 26).facts
    found = geometry(items, scratch, facts)
    assert (found.blocks, found.threads) == expected
    assert found.scratch == found.blocks * found.threads * scratch


def test_a_missing_driver_is_named() -> None:
    count, reason = count_devices("libthere_is_no_such_library.so.1")
    assert count == 0 and "no CUDA driver" in reason and "libthere_is_no_such" in reason
