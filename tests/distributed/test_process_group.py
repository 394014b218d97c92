"""Processes that a program starts by itself and that meet at a port: no MPI is needed."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.distributed import collective_checks, pipeline_checks, program_checks, training_checks
from tests.distributed.world import PATIENCE, checks_of

import treadle as mge
import treadle.distributed as dist
import treadle.functional as F

MODULES = {2: (program_checks, training_checks, pipeline_checks), 3: (collective_checks,)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _body(
    work: Callable[..., Any], args: Any, size: int, rank: int, port: int, patience: str, told: Any
) -> None:
    os.environ["TREADLE_COMM_TIMEOUT"] = patience
    try:
        dist.init_process_group("localhost", port, size, rank, rank)
        told.put((rank, work(*args)))
    except Exception as error:
        told.put((rank, f"{type(error).__name__}: {error}"))
        raise


def on_ranks(
    work: Callable[..., Any],
    *args: Any,
    port: int,
    size: int = 2,
    patience: str = PATIENCE,
    ranks: Sequence[int] | None = None,
) -> list[Any]:
    """Return what `work` gives, or its error, on each rank, in processes without MPI around."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    started = [
        context.Process(target=_body, args=(work, args, size, r, port, patience, told))
        for r in (range(size) if ranks is None else ranks)
    ]
    for process in started:
        process.start()
    found = dict(told.get(timeout=500) for _ in started)
    for process in started:
        process.join(60)
    return [found[r] for r in sorted(found)]


def every_check(names: Sequence[str]) -> list[str]:
    modules: list[ModuleType] = [sys.modules[name] for name in names]
    passed = []
    for name, check in checks_of(modules).items():
        check()
        dist.group_barrier()
        passed.append(name)
    return passed


@pytest.mark.multi
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_they_do_all_that_processes_of_mpi_do(size: int) -> None:
    server, modules = dist.Server(0), MODULES[size]
    names = [module.__name__ for module in modules]
    found = on_ranks(every_check, names, port=server.py_server_port, size=size)
    server.close()
    assert found == [list(checks_of(modules))] * size


def values() -> tuple[Any, ...]:
    world = dist.WORLD.communicator()
    rank = dist.get_rank()
    every = world.exchange((rank, {"x": b"\0", "y": [None, 1.5]}))
    F.distributed.remote_send(mge.tensor([float(rank)]), 1 - rank)
    got = F.distributed.remote_recv(1 - rank).tolist()  # A value goes before each tensor.
    if rank == 0:
        dist.get_client().user_set("key", 5)
    facts = dist.get_backend(), dist.get_py_server_addr()[0], dist.get_local_device_id()
    try:
        world.send_value(object(), 1 - rank)
    except dist.CommunicationError as error:
        refused = str(error)
    left = dist.get_client().user_get("key")
    dist.group_barrier()  # The server ends with the first of them.
    return every, got, left, facts, refused


def test_the_first_of_them_starts_a_server_and_values_pass() -> None:
    for rank, found in enumerate(on_ranks(values, port=free_port())):
        every, got, left, facts, refused = found
        assert every == [(r, {"x": b"\0", "y": [None, 1.5]}) for r in range(2)]
        assert got == [1.0 - rank] and left == 5 and facts == ("sockets", "localhost", rank)
        assert "values are numbers" in refused


def total() -> float:
    return float(F.distributed.all_reduce_sum(mge.tensor(1.0 + dist.get_rank())).item())


@pytest.mark.long
def test_jobs_one_after_another_meet_at_one_server() -> None:
    server = dist.Server(0)
    for _ in range(2):
        assert on_ranks(total, port=server.py_server_port) == [3.0, 3.0]
    server.close()


def alone_on_zero() -> Any:
    if dist.get_rank() == 0:
        return total()
    return mge.tensor(1.0).item()


@pytest.mark.long
def test_a_rank_that_leaves_or_does_not_come_is_named() -> None:
    server = dist.Server(0)
    left, _ = on_ranks(alone_on_zero, port=server.py_server_port, patience="30")
    assert "rank 1 has left" in left
    (alone,) = on_ranks(total, port=server.py_server_port, size=3, patience="1", ranks=[0])
    assert alone.startswith("CommunicationError") and "within 1 s" in alone
    (nobody,) = on_ranks(total, port=free_port(), patience="1", ranks=[1])
    assert "key-value server" in nobody and "does not answer" in nobody
    server.close()


PROGRAM = """
import multiprocessing as mp
import megengine as mge
import megengine.distributed as dist

def worker(rank, port, told):
    dist.init_process_group("localhost", port, 2, rank, rank)
    told.put(mge.functional.distributed.all_gather(mge.tensor([rank])).tolist())
    dist.group_barrier()

if __name__ == "__main__":
    server, told = dist.Server(0), mp.Queue()
    print(mge.functional.exp(mge.functional.zeros(3)).sum())  # Threads that a fork leaves behind.
    started = [mp.Process(target=worker, args=(r, server.py_server_port, told)) for r in range(2)]
    for process in started:
        process.start()
    print([told.get() for _ in started], [p.join() or p.exitcode for p in started])
"""


def test_a_program_that_forks_them(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    line = [sys.executable, "-m", "treadle.interop.megengine", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert "[[0, 1], [0, 1]] [0, 0]" in done.stdout, done.stderr
