"""The one thread pool of the process: how many threads, starting them, forks.

Workers are native threads that Python knows nothing of. They are started when something first
runs, and again after a fork, which they do not survive. Changing their number makes a new pool;
callers that still run in the old one finish there, alone if its workers have gone, since a job
never waits for workers to come (see `pool_text.py`).
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import signal
import threading
import time

from treadle.backends.cpu.host import available_cores
from treadle.backends.cpu.layout import LIVE, MOST_THREADS, POOL_BYTES, SPINS, THREADS
from treadle.backends.cpu.native import core
from treadle.base.env import NUM_THREADS
from treadle.base.errors import DeviceError
from treadle.base.log import get_logger

STACK_BYTES = 16 << 20
"""Kernels keep scratch memory on the stack; pages that are not touched cost nothing."""
_SPINS = 3000
_SPINS_OVERSUBSCRIBED = 20
"""Turns a worker waits awake: tens of microseconds, or hardly any where cores are scarce."""
_EXIT_SECONDS = 1.0


class ThreadPool:
    """A number of threads, the caller counted, and the memory they meet in."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._memory = mmap.mmap(-1, POOL_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._starts = (ctypes.c_int64 * (2 * threads))()
        enough = threads <= available_cores()
        self._word(SPINS).value = _SPINS if enough else _SPINS_OVERSUBSCRIBED
        started = 1
        while started < threads and self._start(started):
            started += 1
        if started < threads:
            get_logger().warning("only %d of %d threads could be started", started, threads)
            self.threads = started
        self._word(THREADS).value = self.threads

    def stop(self) -> None:
        """Tell the workers to end after the job they are at; returns before they have."""
        core().stop(self.address)

    def live(self) -> int:
        """Workers that have not ended."""
        return self._int(LIVE).value

    def _start(self, number: int) -> bool:
        """Start worker `number`; its stack is large and signals stay with Python's threads."""
        self._starts[2 * number : 2 * number + 2] = [self.address, number]
        start = ctypes.addressof(self._starts) + 16 * number
        attributes = ctypes.create_string_buffer(128)  # a pthread_attr_t has 56 or 64 bytes
        handle = ctypes.c_void_p()
        libc = ctypes.CDLL(None)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
        libc.pthread_attr_setdetachstate(attributes, 1)
        self._int(LIVE).value += 1
        # The module signal makes an enum of every member of a set: longer than starting a thread.
        every, before = (ctypes.create_string_buffer(128) for _ in range(2))  # as large as any set
        libc.sigfillset(every)
        libc.pthread_sigmask(signal.SIG_BLOCK, every, before)
        try:
            failed = libc.pthread_create(
                ctypes.byref(handle),
                attributes,
                ctypes.c_void_p(core().worker),
                ctypes.c_void_p(start),
            )
        finally:
            libc.pthread_sigmask(signal.SIG_SETMASK, before, None)
        libc.pthread_attr_destroy(attributes)
        if failed:
            self._int(LIVE).value -= 1
        return not failed

    def _word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + offset)

    def _int(self, offset: int) -> ctypes.c_int32:
        return ctypes.c_int32.from_address(self.address + offset)


class _Process:
    """State of this process: the address of its pool (None until the first run) and its lock."""

    def __init__(self) -> None:
        self.address: int | None = None
        self.pool: ThreadPool | None = None
        self.wanted: int | None = None
        self.lock = threading.RLock()
        self.kept: list[ThreadPool] = []


PROCESS = _Process()
"""Callers read `PROCESS.address` anew at each call; see `start`."""


def start() -> int:
    """Start the pool if it has not been; its address."""
    with PROCESS.lock:
        if PROCESS.pool is None:
            PROCESS.pool = ThreadPool(get_threads())
            PROCESS.kept.append(PROCESS.pool)  # callers may be inside for as long as they like
            PROCESS.address = PROCESS.pool.address
        return PROCESS.pool.address


def get_threads() -> int:
    """Return how many threads share the work of a kernel.

    Raises:
        DeviceError: `TREADLE_NUM_THREADS` is not a number in range.
    """
    if PROCESS.wanted is None:
        text = NUM_THREADS.get()
        if text:
            PROCESS.wanted = _checked(int(text) if text.isdecimal() else text, NUM_THREADS.source())
        else:
            PROCESS.wanted = min(available_cores(), MOST_THREADS)
    return PROCESS.wanted


def set_threads(count: int) -> int:
    """Set how many threads share the work of a kernel; the number it was before.

    More than there are cores is allowed. Results do not depend on it.

    Raises:
        DeviceError: the number is below 1 or above 256.
    """
    with PROCESS.lock:
        before = get_threads()
        PROCESS.wanted = _checked(count, "set_threads")
        if PROCESS.pool is not None and PROCESS.wanted != before:
            PROCESS.pool.stop()
            PROCESS.pool, PROCESS.address = None, None
        return before


def _checked(count: int | str, where: str) -> int:
    if isinstance(count, int) and 1 <= count <= MOST_THREADS:
        return count
    raise DeviceError(
        "cpu", f"{where}: {count!r} is not a number of threads", hint=f"1 to {MOST_THREADS}"
    )


def _after_fork() -> None:
    """Forget the pool in a forked child, which has no workers and whose lock nobody may release."""
    PROCESS.pool, PROCESS.address = None, None
    PROCESS.lock = threading.RLock()


def _at_exit() -> None:
    """Code may be unloaded when the process ends: no worker should be inside then."""
    pool = PROCESS.pool
    if pool is None:
        return
    pool.stop()
    deadline = time.monotonic() + _EXIT_SECONDS
    while pool.live() > 0 and time.monotonic() < deadline:
        time.sleep(0.0005)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
