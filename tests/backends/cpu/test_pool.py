"""The thread pool: any number of threads, any callers, forks."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.backends.cpu.hand_written import addresses, executable

from treadle.backends.cpu import pool
from treadle.backends.program import Address, Run
from treadle.base.errors import DeviceError

SIZES = (1, 2, 3, 7, 64, 1000)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = pool.get_threads()
    yield
    pool.set_threads(before)


def check(rounds: int = 50) -> None:
    """Every item is done exactly once, whatever the number of items."""
    for items in SIZES:
        x = np.ones(items, np.int64)
        launch = Run("hand_affine", (Address(0), 3), items)
        program = executable([launch] * 4, 1)
        bases, steps = addresses(x), np.arange(items)
        for _ in range(rounds):
            x[:] = 1
            program.run(bases)
            np.testing.assert_array_equal(x, 81 + 40 * steps)


@pytest.mark.parametrize("threads", range(1, 9))
def test_every_item_is_done_once(threads: int) -> None:
    pool.set_threads(threads)
    assert pool.get_threads() == threads
    check(10)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = np.random.default_rng(0).standard_normal(8 * 999).astype(np.float32)
    seen = set()
    for threads in range(1, 9):
        pool.set_threads(threads)
        partial, total = np.zeros(1000, np.float32), np.zeros(125, np.float32)
        steps = [
            Run("hand_sum", (Address(0), Address(1)), 999),
            Run("hand_sum", (Address(1), Address(2)), 125),
        ]
        executable(steps, 3).run(addresses(x, partial, total))
        seen.add(total.tobytes())
    assert len(seen) == 1


def test_several_threads_take_part() -> None:
    pool.set_threads(3)
    who = np.zeros(64, np.int64)
    program = executable([Run("hand_who", (Address(0), 20_000), 64)], 1)
    seen: set[int] = set()
    deadline = time.monotonic() + 300  # for machines whose cores are all busy otherwise
    while len(seen) < 3 and time.monotonic() < deadline:
        program.run(addresses(who))
        seen |= set(who.tolist())
    assert len(seen) == 3
    assert 0 not in seen


def test_concurrent_callers_get_their_own_results() -> None:
    pool.set_threads(3)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            check(20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_number_of_threads_changes_while_others_run() -> None:
    stop = threading.Event()
    rounds: list[int] = []

    def work() -> None:
        while not stop.is_set():
            check(1)
            rounds.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    for count in range(60):
        pool.set_threads(1 + count % 6)
        time.sleep(0.001)
    stop.set()
    thread.join()
    assert rounds


def in_child(work: Callable[[], None]) -> int:
    """Exit status of a forked child that does the work; killed if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_children_of_an_idle_process_run_in_parallel() -> None:
    pool.set_threads(2)
    check(1)

    def work() -> None:
        assert pool.PROCESS.address is None
        check(3)
        assert pool.PROCESS.pool is not None
        assert pool.PROCESS.pool.live() == 1
        assert in_child(lambda: check(1)) == 0

    assert in_child(work) == 0
    check(3)


def test_a_fork_while_another_thread_runs() -> None:
    pool.set_threads(3)
    stop = threading.Event()
    spin = executable([Run("hand_spin", (2_000,), 50)] * 20, 0)

    def keep_busy() -> None:
        while not stop.is_set():
            spin.run(np.zeros(0, np.int64))

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        assert [in_child(lambda: check(2)) for _ in range(5)] == [0] * 5
    finally:
        stop.set()
        thread.join()
    check(3)


def test_workers_end_when_told() -> None:
    pool.set_threads(4)
    check(1)
    old = pool.PROCESS.pool
    assert old is not None
    assert old.live() == 3
    pool.set_threads(2)
    deadline = time.monotonic() + 300
    while old.live() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert old.live() == 0


def test_signals_stay_with_python(monkeypatch: pytest.MonkeyPatch) -> None:
    pool.set_threads(4)
    check(1)
    caught: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
    try:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
            check(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught


def test_numbers_of_threads_that_make_no_sense() -> None:
    for count in (0, -1, 257):
        with pytest.raises(DeviceError, match="not a number of threads"):
            pool.set_threads(count)


def test_the_environment_decides_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PROCESS", type(pool.PROCESS)())
    monkeypatch.setenv("TREADLE_NUM_THREADS", "5")
    assert pool.get_threads() == 5
    monkeypatch.setattr(pool, "PROCESS", type(pool.PROCESS)())
    monkeypatch.setenv("TREADLE_NUM_THREADS", "many")
    with pytest.raises(DeviceError, match="TREADLE_NUM_THREADS: 'many'"):
        pool.get_threads()
