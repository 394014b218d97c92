"""Starting processes on this machine, calling a function in each, and ending them all.

The call travels through a folder that only this user can read: the pickled call, one file per rank
with its result or its exception, and locks. Whoever holds a lock is alive: ranks end when nobody
holds the launcher's, and the launcher returns when nobody holds the ranks'.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from treadle import logger
from treadle.base import env
from treadle.distributed.sending import dumps
from treadle.runtime.comm.api import CommunicationError, RankFailed

_TAIL = 30
"""Lines of the ranks' standard error that a message repeats at most."""
_GRACE = 3.0
"""Seconds that ranks have to end by themselves before they are killed."""
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Failure:
    """Report of a rank that ends with an exception."""

    rank: int
    traceback: str
    exception: bytes


class JobFolder:
    """The files of one job."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.call = self.path / "call"
        self.launcher = self.path / "launcher.lock"

    def result(self, rank: int) -> Path:
        """Return the path of a rank's pickled result."""
        return self.path / f"result-{rank}"

    def failure(self, rank: int) -> Path:
        """Return the path of a rank's pickled `Failure`."""
        return self.path / f"failure-{rank}"

    def alive(self, rank: int) -> Path:
        """Return the path of a rank's lock; the file holds its process's number."""
        return self.path / f"rank-{rank}.lock"

    @staticmethod
    def write(path: Path, data: bytes) -> None:
        """Put a file there in one step."""
        temporary = path.with_name(path.name + ".new")
        temporary.write_bytes(data)
        temporary.rename(path)


def hold(path: Path) -> IO[str] | None:
    """Take a lock, which the process has until the file is closed; None if another has it."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def is_held(path: Path) -> bool:
    """Return whether a process has the lock."""
    try:
        file = hold(path)
    except FileNotFoundError:
        return False
    if file is not None:
        file.close()
    return file is None


# -- the launcher's side -----------------------------------------------------------------------


def mpiexec() -> str:
    """The command that starts ranks: the one that came with this Python's MPI, or the system's.

    Raises:
        CommunicationError: there is none.
    """
    named = env.MPIEXEC.get()
    beside = Path(sys.executable).with_name("mpiexec")
    found = shutil.which(named) if named else str(beside) if beside.exists() else None
    found = found or (None if named else shutil.which("mpiexec"))
    if found is None:
        raise CommunicationError(
            "launcher",
            f"there is no {named or 'mpiexec'} to start processes with",
            hint='pip install "treadle[mpi]", or install the MPI of your system',
        )
    return found


def command(count: int, *program: str, shrinks: bool = False) -> list[str]:
    """The command line that runs a program of Python in `count` ranks.

    Raises:
        CommunicationError: there is no command that starts ranks, or it cannot start such as
            outlive others where the job is to shrink.
    """
    starter = mpiexec()
    flags = ["--with-ft", "ulfm"] if shrinks else []
    if shrinks:
        _require_ulfm(starter)
    return [starter, *flags, "-n", str(count), sys.executable, "-m", "mpi4py", *program]


def _require_ulfm(starter: str) -> None:
    """Raise CommunicationError unless the launcher is Open MPI 5 or later, which has ULFM."""
    said = subprocess.run([starter, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\(Open MPI\) (\d+)", said.stdout)
    if version is None or int(version[1]) < 5:
        raise CommunicationError(
            "launcher",
            "this MPI cannot continue when ranks are lost",
            saw=(said.stdout or said.stderr).strip().partition("\n")[0],
            hint='install Open MPI 5 (pip install "treadle[mpi]"), or leave on_failure at "end" '
            "and resume from the last checkpoint",
        )


def environment(count: int, shrinks: bool = False) -> dict[str, str]:
    """The environment of ranks on this machine.

    Open MPI is told to start more ranks than cores, to leave threads where the system puts them,
    and to talk through memory. Other libraries do not look at these names.
    """
    changes = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm" if _shares_memory() else "self,tcp",
    }
    if shrinks:  # The end of a job with lost ranks waits for them now and then, unless told not to.
        changes["OMPI_MCA_async_mpi_finalize"] = "1"
    if os.geteuid() == 0:  # As root, containers' usual user, it starts nothing unless told so.
        for library in ("OMPI", "PRTE"):
            changes[f"{library}_ALLOW_RUN_AS_ROOT"] = "1"
            changes[f"{library}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    cores = len(os.sched_getaffinity(0))
    if count > cores:  # Whoever waits lets others work.
        changes["OMPI_MCA_mpi_yield_when_idle"] = "1"
    changes = {k: v for k, v in changes.items() if env.foreign(k) is None}
    if not env.NUM_THREADS.get():
        changes[env.NUM_THREADS.names[0]] = str(max(cores // count, 1))
    return env.of_child(changes)


def _shares_memory() -> bool:
    """Return whether there is room for MPI's mailboxes in shared memory, some 16 MiB per rank."""
    try:
        return shutil.disk_usage("/dev/shm").free > 64 << 20
    except OSError:
        return False


def run_ranks(
    function: Callable[..., Any], args: Any, kwargs: Any, count: int, shrinks: bool = False
) -> list[Any]:
    """Call a function in `count` new processes that are a group; what it returns, by rank.

    Args:
        function, args, kwargs: the call.
        count: processes.
        shrinks: whether those that are left go on where some are killed.

    Raises:
        RankFailed: a rank raised, was killed or ended early; all others have been ended.
        CommunicationError: MPI is missing, or the function cannot be sent.
    """
    data = _pickled(function, args, kwargs, count)
    started = command(count, "-m", "treadle.distributed.worker", shrinks=shrinks)
    with tempfile.TemporaryDirectory(prefix="treadle-job-") as path:
        folder = JobFolder(path)
        JobFolder.write(folder.call, data)
        lock = hold(folder.launcher)
        try:
            with _running([*started, path], environment(count, shrinks)) as (process, tail):
                while process.poll() is None:
                    time.sleep(_POLL)
        finally:
            if lock is not None:
                lock.close()
            _bury(folder, count)
        return _results(folder, count, process.returncode, tail, shrinks)


def _pickled(function: Callable[..., Any], args: Any, kwargs: Any, count: int) -> bytes:
    cloudpickle = _cloudpickle()
    paths = [os.path.abspath(p) for p in sys.path]
    try:
        call = dumps(cloudpickle, (function, args, kwargs))
    except Exception as error:
        raise CommunicationError(
            "launcher",
            f"the function, or what it refers to, cannot be sent to other processes: {error}",
            hint="make files, locks and connections inside of the function",
        ) from error
    told = {"path": paths, "argv": sys.argv, "count": count, "log": logger.settings()}
    return pickle.dumps({**told, "call": call})


def _cloudpickle() -> Any:
    try:
        importlib.import_module("mpi4py")
        return importlib.import_module("cloudpickle")
    except ImportError as error:
        raise CommunicationError(
            "launcher", f"MPI cannot be used: {error}", hint='pip install "treadle[mpi]"'
        ) from error


@contextmanager
def _running(
    arguments: list[str], environment_: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], deque[str]]]:
    """A process whose output goes to this one's; it does not outlive the block."""
    tail: deque[str] = deque(maxlen=_TAIL)
    # In a session of its own: an interrupt from the keyboard reaches ranks through us, once.
    process = subprocess.Popen(
        arguments,
        env=environment_,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    readers = [
        threading.Thread(target=_forward, args=(process.stdout, lambda: sys.stdout, None)),
        threading.Thread(target=_forward, args=(process.stderr, lambda: sys.stderr, tail)),
    ]
    for reader in readers:
        reader.daemon = True
        reader.start()
    try:
        yield process, tail
    finally:
        _end(process)
        for reader, pipe in zip(readers, (process.stdout, process.stderr), strict=True):
            reader.join(_GRACE)
            if pipe is not None and not reader.is_alive():
                pipe.close()


def _forward(source: IO[str] | None, target: Callable[[], TextIO], tail: deque[str] | None) -> None:
    """Copy lines as they come to what is this process's stream by then."""
    for given in source or ():
        line = given.replace("\0", "")  # Open MPI ends some of its messages with one.
        if tail is not None:
            tail.append(line)
        try:
            target().write(line)
            target().flush()
        except ValueError:  # closed, as streams of test runners are between tests
            continue


def _end(process: subprocess.Popen[str]) -> None:
    """End MPI's launcher, and with it its ranks."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            continue


def _bury(folder: JobFolder, count: int) -> None:
    """Wait until no rank is left; kill those that do not end by themselves."""
    left = _left_after(_GRACE, [folder.alive(r) for r in range(count)])
    for path in left:
        number = path.read_text()
        if number.isdecimal():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
    # What a rank has forked has its lock, too, and may take a moment longer.
    _left_after(_GRACE, left)


def _left_after(seconds: float, locks: list[Path]) -> list[Path]:
    """The locks that somebody still holds by then."""
    deadline = time.monotonic() + seconds
    while (locks := [path for path in locks if is_held(path)]) and time.monotonic() < deadline:
        time.sleep(_POLL)
    return locks


def _results(
    folder: JobFolder, count: int, status: int, tail: deque[str], shrinks: bool
) -> list[Any]:
    """Return the results of the ranks, or raise the first one's exception."""
    failed = [path for r in range(count) if (path := folder.failure(r)).exists()]
    if failed:  # The first one; others may have failed for want of it.
        first = min(failed, key=lambda path: path.stat().st_mtime_ns)
        failure: Failure = pickle.loads(first.read_bytes())
        raise _failed(failure) from _exception(failure)
    found = [r for r in range(count) if folder.result(r).exists()]
    missing = [r for r in range(count) if r not in found]
    if (status or missing) and not (shrinks and found):
        raise RankFailed(
            "launcher",
            f"the job ended with status {status}, and rank{'s' * (len(missing) > 1)} "
            f"{', '.join(map(str, missing))} returned nothing",
            saw="".join(line for line in tail if line.strip()).strip(),
            hint="a rank was killed, ran out of memory, or called exit()",
        )
    return [pickle.loads(folder.result(r).read_bytes()) for r in found]


def _failed(failure: Failure) -> RankFailed:
    return RankFailed(
        "launcher",
        f"rank {failure.rank} raised an exception",
        saw="its traceback:\n" + failure.traceback.rstrip(),
    )


def _exception(failure: Failure) -> BaseException | None:
    """The rank's exception, if it can be read here."""
    try:
        found = pickle.loads(failure.exception)
    except Exception:
        return None
    return found if isinstance(found, BaseException) else None
