"""Freed memory that is handed out again: which, in what order, and that it makes room."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.cuda.host_gpu import HostGpu

from treadle.backends.cuda.device import CudaDevice
from treadle.backends.cuda.pool import MemoryPool
from treadle.device import set_prealloc_config
from treadle.runtime.ahead import AHEAD, Ahead


@pytest.fixture
def gpu() -> HostGpu:
    return HostGpu(memory=1 << 12)


@pytest.fixture
def pool(gpu: HostGpu) -> MemoryPool:
    return MemoryPool(gpu, gpu.queue())


def take(pool: MemoryPool, nbytes: int) -> Any:
    """What waits, or from the driver."""
    return pool.take(nbytes) or pool.fresh(nbytes, pool._queue)


def test_equal_sizes_are_handed_out_by_address(gpu: HostGpu, pool: MemoryPool) -> None:
    regions = sorted((take(pool, 64) for _ in range(4)), key=lambda r: r.address)
    other = take(pool, 128)
    for region in (regions[2], regions[0], regions[3]):
        pool.give(region, 64)
    pool.give(other, 128)
    assert pool.kept == 3 * 64 + 128
    assert [take(pool, 64) for _ in range(3)] == [regions[0], regions[2], regions[3]]
    assert pool.kept == 128 and take(pool, 128) is other and len(gpu.live) == 5


def test_loops_come_back_to_the_same_addresses(pool: MemoryPool) -> None:
    """State is made anew in every turn, in one order or another, before the old one goes."""
    state = [take(pool, 64) for _ in range(5)]
    seen = []
    for turn in range(8):
        made = [take(pool, 64) for _ in state]
        for region in state if turn % 2 else reversed(state):
            pool.give(region, 64)
        state = made
        seen.append(tuple(r.address for r in made))
    assert seen[3:] == seen[1:-2] and len(set(seen[1:])) == 2


def test_what_waits_makes_room(gpu: HostGpu, pool: MemoryPool) -> None:
    pool.give(take(pool, 1024), 1024)
    take(pool, 3500)  # does not fit beside it
    assert not pool.kept and gpu.used == 3500
    with pytest.raises(MemoryError):
        take(pool, 3500)


def test_sizes_that_were_long_not_asked_for_go(gpu: HostGpu, pool: MemoryPool) -> None:
    first, second, third = (take(pool, n) for n in (600, 700, 800))
    for region in (first, second):
        pool.give(region, region.nbytes)
    pool.give(take(pool, 600), 600)  # so that 700 is the older one
    pool.give(third, 800)
    assert pool.is_full
    pool.trim()
    assert pool.kept == 1400 and gpu.live == {first, third}


def test_the_driver_is_asked_ahead(
    gpu: HostGpu, pool: MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AHEAD, "gpu", Ahead())  # It goes with the test.
    asked: list[int] = []
    allocate = gpu.allocate

    def watched(nbytes: int, queue: Any, /) -> Any:
        asked.append(nbytes)
        return allocate(nbytes, queue)

    monkeypatch.setattr(gpu, "allocate", watched)
    set_prealloc_config(min_req=1000)
    first = take(pool, 50)
    assert asked == [50]  # Nothing ahead, as max_overhead is 0.
    set_prealloc_config(alignment=256, min_req=1000, max_overhead=4096)
    second = take(pool, 100)
    assert asked == [50, 100, 924] and gpu.live == {first, second}  # The driver keeps the rest.
    take(pool, 900)
    assert asked[3:] == [900]  # It is of the 924 bytes.
    take(pool, 100)
    assert asked[4:] == [100, 2204]  # Twice the 1074 bytes before, in units of 256.
    for nbytes in (1500, 600, 600):
        take(pool, nbytes)
    assert asked[6:] == [1500, 600, 600, 4264] and gpu.used == 3850  # No room for the last.


def test_a_device_counts_it_as_free() -> None:
    gpu = HostGpu(memory=1 << 12)
    device = CudaDevice(gpu)
    memory = device.alloc(1000)
    device.free(memory)
    assert device.memory() == (1 << 12, 1 << 12) and gpu.used == 1000
    assert device.stream().scratch(3500)  # of the driver, which needs the room
    device.close()
    assert not gpu.live
