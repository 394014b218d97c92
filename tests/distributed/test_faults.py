"""Ranks that raise, are killed or stall: the job ends, says why, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import treadle.distributed as dist
from treadle.distributed import launch


def needs_mpi(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts processes."""
    missing = not importlib.util.find_spec("mpi4py")
    return pytest.mark.multi(pytest.mark.skipif(missing, reason="needs the mpi extra")(test))


def note_process(folder: Path) -> None:
    (folder / f"{dist.get_rank()}.pid").write_text(str(os.getpid()))


def all_ended(folder: Path) -> bool:
    """Whether the processes that noted themselves are gone, within a moment."""
    found = [int(path.read_text()) for path in folder.glob("*.pid")]
    deadline = time.monotonic() + 300
    while any(map(psutil.pid_exists, found)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(found) and not any(map(psutil.pid_exists, found))


def failure_of(folder: Path, size: int, fault: Callable[[], None], rank: int = 1) -> Any:
    """What the launcher raises where one rank has a fault and the others wait for it."""

    @dist.launcher(n_gpus=size)
    def job() -> None:
        note_process(folder)
        print("at work", flush=True)
        dist.group_barrier()  # Else one may be ended before it has said so.
        if dist.get_rank() == rank:
            fault()
        dist.group_barrier()

    with pytest.raises(dist.RankFailed) as caught:
        job()
    assert all_ended(folder)
    return caught.value


@needs_mpi
def test_a_rank_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fault() -> None:
        raise KeyError("missing")

    error = failure_of(tmp_path, 2, fault)
    assert "rank 1 raised an exception" in str(error)
    assert 'raise KeyError("missing")' in error.saw and __file__ in error.saw
    assert isinstance(error.__cause__, KeyError) and isinstance(error, AssertionError)
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == ["[rank 0] at work", "[rank 1] at work"]


@needs_mpi
def test_a_rank_is_killed(tmp_path: Path) -> None:
    error = failure_of(tmp_path, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert "returned nothing" in error.problem
    assert "signal 9" in error.saw or "signal: 9" in error.saw or "KILLED" in error.saw


@needs_mpi
def test_a_rank_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_COMM_TIMEOUT", "1")
    error = failure_of(tmp_path, 2, lambda: time.sleep(60))
    assert isinstance(error.__cause__, dist.CommunicationError)
    assert "rank 1 of the group 'world' did not come within 1 s" in str(error.__cause__)
    assert "1 of 2 ranks are there" in error.__cause__.saw


@needs_mpi
def test_shared_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then ranks of a machine talk through its loopback network."""
    monkeypatch.setattr(launch, "_shares_memory", lambda: False)
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)

    @dist.launcher(n_gpus=2)
    def job() -> tuple[str, list[Any]]:
        group = dist.WORLD.communicator()
        return dict(os.environ)["OMPI_MCA_btl"], group.exchange(dist.get_rank())

    assert job() == [("self,tcp", [0, 1])] * 2


@needs_mpi
def test_ranks_log_as_their_launcher(tmp_path: Path) -> None:
    """What programs tell of their progress shows, and goes to the file that they have chosen."""
    code = """
import sys, treadle as mge, treadle.distributed as dist
told, quiet = mge.get_logger(__name__), mge.get_logger("quiet")
quiet.setLevel("ERROR")
mge.set_log_file(sys.argv[1])

@dist.launcher(n_gpus=2)
def job():
    told.info("named")
    mge.get_logger().info("program")
    quiet.warning("quiet")
    mge.get_logger("treadle").info("own")

job()
"""
    file = tmp_path / "log"
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [f"INFO treadle.{name}" for name in ("__main__: named", "program: program")]
    assert sorted(done.stderr.splitlines()) == [f"[rank {r}] {t}" for r in (0, 1) for t in lines]
    assert sorted(line[24:] for line in file.read_text().splitlines()) == sorted(2 * lines)


SCRIPT = """
import os, sys, time
from pathlib import Path
import treadle.distributed as dist

@dist.launcher(n_gpus=2)
def job():
    (Path(sys.argv[1]) / f"{dist.get_rank()}.pid").write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    job()
"""


@needs_mpi
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_the_launcher_is_ended(tmp_path: Path, sign: signal.Signals) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(tmp_path.glob("*.pid"))) < 2 and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(sign)
    _, said = running.communicate(timeout=300)
    assert running.returncode != 0
    assert ("KeyboardInterrupt" in said) == (sign is signal.SIGINT)
    assert all_ended(tmp_path)


PLAIN = """
import sys
import treadle as mge, treadle.distributed as dist, treadle.functional as F

dist.init_process_group()
total = F.distributed.all_reduce_sum(mge.tensor([1.0])).item()
print("rank", dist.get_rank(), "of", dist.get_world_size(), "has", total, flush=True)
if dist.get_rank():
    raise ValueError("on one rank")
dist.group_barrier()
"""


@needs_mpi
def test_programs_started_by_mpiexec(tmp_path: Path) -> None:
    """Also without `-m mpi4py` an exception on one rank ends the others."""
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    done = subprocess.run(
        [launch.mpiexec(), "-n", "2", sys.executable, str(script)],
        env=launch.environment(2),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    assert {"rank 0 of 2 has 2.0", "rank 1 of 2 has 2.0"} <= set(done.stdout.splitlines())
    assert "ValueError: on one rank" in done.stderr


# -- in this process ---------------------------------------------------------------------------


def test_mpi_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(dist.CommunicationError, match="MPI cannot be used") as caught:
        dist.launcher(lambda: 1, n_gpus=2)()
    assert "pip install" in caught.value.hint
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.delitem(sys.modules, "treadle.runtime.comm.mpi", raising=False)
    monkeypatch.delitem(sys.modules, "treadle.runtime.comm.rendezvous", raising=False)
    with pytest.raises(dist.CommunicationError, match="MPI cannot be used"):
        dist.init_process_group()
    assert not dist.is_distributed()


def test_mpiexec_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_MPIEXEC", "no-such-command")
    with pytest.raises(dist.CommunicationError, match="there is no no-such-command"):
        dist.launcher(lambda: 1, n_gpus=2)()


def test_what_cannot_be_sent() -> None:
    lock = threading.Lock()
    with pytest.raises(dist.CommunicationError, match="cannot be sent to other processes"):
        dist.launcher(lambda: lock.locked(), n_gpus=2)()


def test_processes_on_other_machines_are_started_from_outside() -> None:
    with pytest.raises(dist.CommunicationError, match="started from outside") as caught:
        dist.launcher(lambda: 1, n_gpus=2, world_size=4, rank_start=2, master_ip="far")()
    assert "mpiexec -n 4" in caught.value.hint
    with pytest.raises(ValueError, match="cannot start 0 of 2"):
        dist.launcher(lambda: 1, n_gpus=0, world_size=2)


@pytest.mark.parametrize("gpus", [0, 2])
def test_programs_for_several_gpus_run_on_the_host(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["treadle.distributed.launcher"]  # The name in the package is the class.
    monkeypatch.setattr(module, "get_device_count", lambda kind: gpus)
    assert dist.launcher(world_size=4).n_gpus == (gpus or 4)
    assert dist.launcher().n_gpus == (gpus or 1)
    for elsewhere in ({"rank_start": 2}, {"master_ip": "far"}):
        assert dist.launcher(world_size=4, **elsewhere).n_gpus == (gpus or 1)


def test_ranks_get_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TREADLE_NUM_THREADS", "OMPI_MCA_btl", "OMPI_ALLOW_RUN_AS_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    made = launch.environment(3)
    assert made["TREADLE_NUM_THREADS"] == "2" and "OMPI_ALLOW_RUN_AS_ROOT" not in made
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("OMPI_MCA_btl", "mine")
    monkeypatch.setattr(launch, "_shares_memory", lambda: False)
    made = launch.environment(16)
    assert made["TREADLE_NUM_THREADS"] == "1" and made["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert made["OMPI_MCA_btl"] == "mine"
    monkeypatch.delenv("OMPI_MCA_btl")
    assert launch.environment(2)["OMPI_MCA_btl"] == "self,tcp"
