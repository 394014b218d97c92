"""`treadle doctor --mpi`: which MPI there is, and whether two processes can talk through it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import time
from typing import Any

import numpy as np

from treadle import distributed
from treadle.cli.section import Finding, Section
from treadle.distributed import carrying, launch
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import CommunicationError

_PACKAGES = ("mpi4py", "openmpi", "mpich", "cloudpickle", "nccl4py")
_SIZES = (("4 KiB", 1 << 10), ("1 MiB", 1 << 18), ("16 MiB", 1 << 22))
_TURNS = 20


def section() -> Section:
    """Packages, the launcher, and what two ranks report; takes a few seconds."""
    rows = [(name, _version(name) or "not installed", "package") for name in _PACKAGES]
    findings = []
    try:
        path = launch.mpiexec()
        rows.append(("mpiexec", path, _banner(path)))
        rows += _two_ranks()
    except CommunicationError as error:
        findings.append(Finding(f"{error.where}: {error.problem}", error.hint))
    return Section("MPI", ("what", "found", "detail"), rows, findings)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _banner(path: str) -> str:
    """The first line that the launcher says of itself."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def _two_ranks() -> list[tuple[str, str, str]]:
    """Start two ranks, have them add up arrays, and report."""
    began = time.monotonic()
    told: list[dict[str, Any]] = distributed.launcher(_report, n_gpus=2)()
    seconds = time.monotonic() - began
    first = told[0]
    rows = [
        ("library", first["library"], "what mpi4py found"),
        ("two ranks", "work", f"started, tried and ended in {seconds:.1f} s"),
        ("arrays on GPUs", first["carried"], "how they travel between these two"),
    ]
    times = zip(_SIZES, first["seconds"], strict=True)
    rows += [(f"all-reduce {name}", f"{t * 1e6:.0f} us", "float32") for (name, _), t in times]
    return rows


def _report() -> dict[str, Any]:
    """Return a rank's report: the library's name, seconds of sums, and how GPU arrays travel.

    Raises:
        CommunicationError: a sum is wrong.
    """
    world = groups.world()
    if world is None:
        raise CommunicationError("doctor", "the ranks are in no group")
    seconds = []
    for name, count in _SIZES:
        x = np.full(count, world.rank + 1, np.float32)
        total = world.all_reduce(x, "sum")
        if not np.array_equal(total, np.full(count, 3, np.float32)):
            raise CommunicationError("doctor", f"the sum of two arrays of {name} is wrong")
        seconds.append(min(_timed(world, x) for _ in range(_TURNS)))
    library: Any = importlib.import_module("mpi4py.MPI")
    name = library.Get_library_version().partition("\n")[0].partition(",")[0]
    carried = carrying.described(groups.WORLD)
    return {"library": name.strip("\0 "), "seconds": seconds, "carried": carried}


def _timed(world: Any, x: Any) -> float:
    world.agree("doctor")
    began = time.perf_counter()
    world.all_reduce(x, "sum")
    return time.perf_counter() - began
