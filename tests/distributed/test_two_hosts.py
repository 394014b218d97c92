"""Two hosts that only a link joins: namespaces of the kernel, each with a network and a name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.distributed.test_faults import needs_mpi

from treadle.distributed import launch
from treadle.distributed.server import reachable

AGENT = """#!/bin/sh
# Stands for ssh: HOST COMMAND, with options before the host.
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec ip netns exec %s unshare -u sh -c "hostname host-b; $*"
"""
JOB = """
import platform, sys, time
from pathlib import Path
import treadle as mge, treadle.distributed as dist, treadle.functional as F

def total():
    return F.distributed.all_reduce_sum(mge.tensor([1.0 + dist.get_rank()])).item()

dist.init_process_group()
rank, folder = dist.get_rank(), Path(sys.argv[1])
dist.get_client().user_set(str(rank), platform.node())
hosts = [dist.get_client().user_get(str(r)) for r in range(2)]
(folder / f"{rank}.new").write_text(f"{hosts} {dist.WORLD.is_single_machine} {total()}")
(folder / f"{rank}.new").rename(folder / f"{rank}.said")
while not (folder / "cut").exists():
    time.sleep(0.02)
try:
    total()
except dist.CommunicationError as error:
    (folder / f"{rank}.error").write_text(str(error))
    raise
"""


def ip(*arguments: str) -> bool:
    """Run `ip`; whether it could."""
    return not subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Names of two namespaces, with the addresses 10.77.1.1 and 10.77.1.2."""
    names = f"tdl-a-{os.getpid()}", f"tdl-b-{os.getpid()}"
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        pytest.skip("needs root, ip, unshare and hostname")
    try:
        ends = ("veth-a", "veth-b")
        far = ("peer", "name", ends[1], "netns", names[1])
        if not all(ip("netns", "add", n) for n in names) or not ip(
            "link", "add", ends[0], "netns", names[0], "type", "veth", *far
        ):
            pytest.skip("this machine lets nobody make networks")
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            assert ip("-n", name, "addr", "add", f"10.77.1.{number}/24", "dev", end)
            assert ip("-n", name, "link", "set", end, "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def wait_for(*paths: Path) -> None:
    """Until files are there, or too much time has passed."""
    deadline = time.monotonic() + 300
    while not all(p.exists() for p in paths):
        assert time.monotonic() < deadline, f"waited for {paths}"
        time.sleep(0.05)


@needs_mpi
def test_a_group_over_two_hosts_until_the_link_is_cut(
    hosts: tuple[str, str], tmp_path: Path
) -> None:
    agent, script = tmp_path / "agent", tmp_path / "job.py"
    agent.write_text(AGENT % hosts[1])
    agent.chmod(0o700)
    script.write_text(JOB)
    settings = launch.environment(2) | {"PRTE_MCA_plm_ssh_agent": str(agent)}
    settings |= {"OMPI_MCA_btl": "self,tcp", "TREADLE_COMM_TIMEOUT": "1"}
    passed = ("OMPI_MCA_btl", "OMPI_MCA_pml", "TREADLE_COMM_TIMEOUT", "TREADLE_NUM_THREADS")
    start = [launch.mpiexec(), "-n", "2", "--host", "10.77.1.1,10.77.1.2"]
    start += ["--map-by", "ppr:1:node"]
    start += [a for name in passed for a in ("-x", name)]
    start += [sys.executable, "-m", "mpi4py", str(script), str(tmp_path)]
    command = " ".join(["hostname host-a; exec", *start])
    with (tmp_path / "output").open("w") as output:
        running = subprocess.Popen(
            ["ip", "netns", "exec", hosts[0], "unshare", "-u", "sh", "-c", command],
            env=settings,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(tmp_path / "0.said", tmp_path / "1.said")
        for rank in range(2):
            said = (tmp_path / f"{rank}.said").read_text()
            assert said == "['host-a', 'host-b'] False 3.0"
        assert ip("-n", hosts[0], "link", "set", "veth-a", "down")
        (tmp_path / "cut").touch()
        wait_for(tmp_path / "0.error")
        assert (
            "rank 1 of the group 'world' did not come within 1 s"
            in (tmp_path / "0.error").read_text()
        )
    finally:
        # The launcher waits for its other half beyond the link, which must not be waited for.
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        for process in psutil.process_iter(["cmdline"]):
            if str(tmp_path) in " ".join(process.info["cmdline"] or ()):
                process.kill()


def test_names_that_nobody_knows_become_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reachable("10.1.2.3") == "10.1.2.3"
    found = reachable("no-such-host.invalid")
    # An address of this machine, if it has one besides the loopback network.
    assert found == "no-such-host.invalid" or found.count(".") == 3
    monkeypatch.setattr(
        "treadle.distributed.server._addresses", lambda: iter(["127.0.0.1", "9.9.9.9"])
    )
    assert reachable("127.0.1.1") == "9.9.9.9"
