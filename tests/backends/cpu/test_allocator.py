"""Memory of eager results: alignment, reuse, no aliasing, limits."""

import itertools
import os
import threading

import numpy as np
import pytest

from treadle.backends.cpu import allocator
from treadle.backends.cpu.allocator import SMALL, Allocator, MappedBlock
from treadle.base.errors import OutOfMemory

F32 = np.dtype(np.float32)
N = SMALL // 4


@pytest.fixture
def memory() -> Allocator:
    return Allocator(64 << 20)


@pytest.mark.parametrize("elements", [N, N + 1, 3 * N, 1 << 20, (1 << 20) + 5])
def test_results_are_ordinary_aligned_arrays(memory: Allocator, elements: int) -> None:
    x = memory.empty((elements,), F32)
    assert type(x) is np.ndarray
    assert x.dtype is F32 or x.dtype == F32
    assert x.shape == (elements,)
    assert x.flags.c_contiguous and x.flags.writeable and x.flags.aligned
    assert x.ctypes.data % 64 == 0
    x[:] = 1
    assert x.sum() == elements


def test_shapes_without_elements_and_of_one() -> None:
    memory = Allocator(0)
    assert memory.empty((0, 5), F32).shape == (0, 5)
    assert memory.empty((), F32).shape == ()
    assert memory.arena(0).shape == (0,)
    assert memory.arena(1).ctypes.data % 64 == 0


def test_large_blocks_start_at_a_huge_page(memory: Allocator) -> None:
    assert memory.empty((2 << 20,), F32).ctypes.data % (2 << 20) == 0


def test_blocks_come_back_when_the_last_view_goes(memory: Allocator) -> None:
    x = memory.empty((4, N), F32)
    place = x.ctypes.data
    view = x[1:, ::2].T
    flat = memoryview(x)
    del x
    assert memory.statistics().cached == 0
    assert memory.empty((4, N), F32).ctypes.data != place
    del view
    assert memory.statistics().live > 0
    del flat
    assert memory.statistics().live == 0
    assert memory.statistics().mapped == 2
    again = [memory.empty((4, N), F32) for _ in range(2)]
    assert place in [a.ctypes.data for a in again]
    assert memory.statistics().mapped == 2


def test_live_arrays_never_overlap(memory: Allocator) -> None:
    rng = np.random.default_rng(0)
    live: list[tuple[np.ndarray, int]] = []
    for turn in range(400):
        if live and rng.random() < 0.45:
            array, value = live.pop(rng.integers(len(live)))
            assert (array == value).all()
        else:
            array = memory.empty((int(rng.integers(N, 3 * N)),), F32)
            array[:] = turn
            live.append((array, turn))
    assert all((array == value).all() for array, value in live)
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a, _ in live)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_similar_sizes_share_blocks(memory: Allocator) -> None:
    for extra in range(0, 2000, 100):
        memory.empty((10 * N + extra,), F32)
    assert memory.statistics().mapped <= 2


def test_larger_blocks_that_are_unused_are_taken_before_others_are_mapped(
    memory: Allocator,
) -> None:
    large, larger = (memory.empty((k * N,), F32) for k in (4, 6))
    places = large.ctypes.data, larger.ctypes.data
    del large, larger
    x, y = (memory.empty((3 * N,), F32) for _ in range(2))
    assert (x.ctypes.data, y.ctypes.data) == places
    assert memory.statistics().live == 10 * SMALL
    del x, y
    assert memory.empty((6 * N,), F32).ctypes.data == places[1], "it is one of its size again"
    assert memory.statistics() == (0, 10 * SMALL, 2)
    tiny = memory.empty((N,), F32)
    assert memory.statistics() == (SMALL, 10 * SMALL, 3), "more than twice the size is kept"
    del tiny


def test_large_results_that_are_kept_keep_little_more_than_they_need() -> None:
    memory, mib = Allocator(64 << 20), 1 << 20
    large = [memory.empty((mib,), F32) for _ in range(4)]
    del large
    kept = [memory.empty((mib * 5 // 8,), F32) for _ in range(4)]
    assert memory.statistics().live < 4 * 3 * mib
    del kept


def test_the_cache_is_bounded() -> None:
    memory = Allocator(8 << 20)
    arrays = [memory.empty((1 << 18,), F32) for _ in range(20)]
    assert memory.statistics().live >= 20 << 20
    del arrays
    assert memory.statistics().live == 0
    assert memory.statistics().cached <= 8 << 20
    assert memory.empty_cache() > 0
    assert memory.statistics() == (0, 0, 20)


def test_threads_take_and_give_back() -> None:
    memory = Allocator(16 << 20)
    failures: list[str] = []

    def work(value: int) -> None:
        for _ in range(300):
            x = memory.empty((N,), F32)
            x[:] = value
            if not (x == value).all():
                failures.append("overlap")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert memory.statistics().live == 0


def test_a_forked_child_has_its_own_copy() -> None:
    x = allocator.HOST.empty((N,), F32)
    x[:] = 1
    child = os.fork()
    if child == 0:
        x[:] = 2
        allocator.HOST.empty((3 * N,), F32)[:] = 3
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (x == 1).all()


def test_too_much_is_a_designed_error(memory: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemory, match=r"cannot allocate \d+ bytes"):
        memory.empty((1 << 50,), F32)
    memory.empty((N,), F32)
    attempts: list[int] = []

    def fail(room: int) -> MappedBlock:
        attempts.append(room)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(MappedBlock, "of", fail)
    with pytest.raises(OutOfMemory, match="hint: use smaller batches"):
        memory.empty((9 * N,), F32)
    assert len(attempts) == 2  # once more after the cache was emptied
    assert memory.statistics().cached == 0
