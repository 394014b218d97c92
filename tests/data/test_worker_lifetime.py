"""No worker and no shared memory outlives its loader, however that ends."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.data.sample_datasets import Pids, Trap, raise_value_error

from treadle.data import DataLoader, SequentialSampler

# Far more than it takes; a failing test alone waits this long.
PATIENCE = 300.0


def is_gone(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(map(is_gone, processes)):
        assert time.monotonic() < deadline, "workers are left behind"
        time.sleep(0.01)


def children() -> set[psutil.Process]:
    return {
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    }


@pytest.fixture(scope="module", autouse=True)
def running_fork_server() -> None:
    """Python's own fork server and resource tracker stay; have them before counting."""
    list(DataLoader(Pids(1), num_workers=1))


@pytest.fixture(autouse=True)
def no_shared_memory_left() -> Iterator[None]:
    before = shared_memory()
    yield
    assert not shared_memory() - before


def shared_memory() -> set[str]:
    """Names that Python gives; MPI makes others there in tests that run beside these."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem."))}


def start(**options: Any) -> tuple[DataLoader, Iterator[Any], list[int]]:
    """A loader in the middle of an epoch, and its workers."""
    dataset = Pids(64)
    loader = DataLoader(dataset, SequentialSampler(dataset, 1), num_workers=2, **options)
    batches = iter(loader)
    workers = [int(next(batches)[0, 0]) for _ in range(2)]
    assert len(set(workers)) == 2
    assert not any(map(is_gone, workers))
    return loader, batches, workers


def test_the_end_of_an_epoch_ends_the_workers() -> None:
    _, batches, workers = start()
    assert len(list(batches)) == 62
    assert all(map(is_gone, workers))


def test_leaving_the_loop_ends_the_workers() -> None:
    _, batches, workers = start()
    for _ in batches:
        break
    del batches, _
    assert all(map(is_gone, workers))


def test_an_exception_ends_the_workers() -> None:
    before = children()
    with pytest.raises(ValueError, match="bad sample"):
        list(DataLoader(Trap(8, 6, raise_value_error), num_workers=2))
    assert children() == before


def test_garbage_in_a_cycle_ends_the_workers() -> None:
    loader, batches, workers = start(persistent_workers=True)
    cycle: list[Any] = [loader, batches]
    cycle.append(cycle)
    del loader, batches, cycle
    gc.collect()
    assert all(map(is_gone, workers))


def test_an_iterator_that_was_never_advanced_ends_its_workers() -> None:
    before = children()
    iterator = iter(DataLoader(Pids(4), num_workers=2))
    assert len(children()) == len(before) + 2
    del iterator
    assert children() == before


def test_a_start_that_fails_halfway_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_second(process: ForkServerProcess) -> None:
        if process.name.endswith("1"):
            raise OSError("no more processes")
        genuine(process)

    genuine = ForkServerProcess.start
    monkeypatch.setattr(ForkServerProcess, "start", fail_second)
    before = children()
    with pytest.raises(OSError, match="no more processes"):
        iter(DataLoader(Pids(4), num_workers=2))
    assert children() == before


def test_persistent_workers_stay_for_the_loader_only() -> None:
    loader, batches, workers = start(persistent_workers=True)
    list(batches)
    assert not any(map(is_gone, workers))
    assert {int(batch[0, 0]) for batch in loader} == set(workers)
    next(iter(loader))
    assert {int(batch[0, 0]) for batch in loader} == set(workers)
    del loader, batches
    assert all(map(is_gone, workers))


# ── the end of the whole process ─────────────────────────────────────────────────────────────

SCRIPT = """
import os, signal, sys, time
from tests.data.sample_datasets import Pids
from treadle.data import DataLoader

if __name__ == "__main__":
    context, ending = sys.argv[1:]
    # What runs in the background of a shell inherits that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dataset = Pids(64, stuck_from=4)
    loader = DataLoader(dataset, num_workers=2, context=context, prefetch_factor=3)
    batches = iter(loader)
    print(*(int(next(batches)[0, 0]) for _ in range(4)), flush=True)
    if ending == "exit":
        sys.exit(0)
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    next(batches)
"""
"""Starts two workers, which then hang in their third sample, and ends in the way it is told."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place for a script and what a killed `multiprocessing` leaves in TMPDIR.

    Not `tmp_path`: that is too long for the path of the fork server's socket.
    """
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}


def run_script(folder: Path, context: str, ending: str) -> subprocess.Popen[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(path), context, ending],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("context", "ending", "code"),
    [
        ("forkserver", "exit", 0),
        ("forkserver", "kill", -signal.SIGKILL),
        ("fork", "kill", -signal.SIGKILL),
    ],
)
def test_the_end_of_the_process_ends_hanging_workers(
    folder: Path, context: str, ending: str, code: int
) -> None:
    with run_script(folder, context, ending) as script:
        output, errors = script.communicate(timeout=PATIENCE)
    assert script.returncode == code, errors
    assert "Traceback" not in errors
    workers = [int(word) for word in output.split()]
    assert len(set(workers)) == 2
    wait_until_gone(workers)


def test_ctrl_c_ends_workers_in_silence(folder: Path) -> None:
    with run_script(folder, "forkserver", "wait") as script:
        assert script.stdout is not None
        workers = [int(word) for word in script.stdout.readline().split()]
        # As a terminal does: to every process of the foreground group.
        os.killpg(script.pid, signal.SIGINT)
        _, errors = script.communicate(timeout=PATIENCE)
    assert script.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    wait_until_gone(workers)


def test_a_script_without_a_guard_is_told_about_it(folder: Path) -> None:
    path = folder / "script.py"
    path.write_text(
        "from tests.data.sample_datasets import Pids\n"
        "from treadle.data import DataLoader\n"
        "list(DataLoader(Pids(4), num_workers=1))\n"
    )
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "exited with code 1 before it was ready" in done.stderr
    assert 'must guard its entry with `if __name__ == "__main__":`' in done.stderr
