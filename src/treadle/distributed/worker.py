"""One rank of a launcher: `python -m mpi4py -m treadle.distributed.worker FOLDER`."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from treadle import logger
from treadle.distributed import group, launch, shrinking
from treadle.distributed.launch import Failure, JobFolder, hold, is_held
from treadle.distributed.sending import dumps
from treadle.distributed.streams import finish_lines, name_lines
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import CommunicationError

_LOOK = 0.25
"""Seconds between two looks at whether the launcher is alive."""


def main(path: str) -> None:
    """Call what the folder says, and leave there what came of it."""
    # Not above: processes that a rank starts, such as a loader's, import this module again, and
    # must not join MPI in its name.
    mpi = importlib.import_module("mpi4py.MPI")
    folder, rank = JobFolder(path), int(mpi.COMM_WORLD.rank)
    lock = hold(folder.alive(rank))
    if lock is not None:
        lock.write(str(os.getpid()))
        lock.flush()
    name_lines(rank)
    threading.Thread(target=_watch, args=(folder.launcher,), daemon=True).start()
    try:
        result = _call(folder)
        JobFolder.write(folder.result(rank), dumps(cloudpickle, result))
        shrinking.leave()
        finish_lines()
        if groups.losses():
            os._exit(0)  # MPI's own end might wait for ranks that are lost.
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        failure = Failure(rank, traceback.format_exc(), _pickled(error))
        JobFolder.write(folder.failure(rank), pickle.dumps(failure))
        finish_lines()
        mpi.COMM_WORLD.Abort(1)


def _call(folder: JobFolder) -> Any:
    told = pickle.loads(folder.call.read_bytes())
    sys.path[:] = told["path"]
    sys.argv[:] = told["argv"]
    logger.restore(told["log"])
    function, args, kwargs = pickle.loads(told["call"])
    if group.job_size() != told["count"]:
        raise CommunicationError(
            "launcher",
            f"{told['count']} processes were started, and MPI knows of {group.job_size()}",
            saw=f"mpiexec is {launch.mpiexec()}",
            hint="it is of another MPI than mpi4py uses: set TREADLE_MPIEXEC or MPI4PY_LIBMPI",
        )
    group.init_process_group()
    return function(*args, **kwargs)


def _pickled(error: BaseException) -> bytes:
    try:
        return dumps(cloudpickle, error)
    except Exception:
        return b""


def _watch(launcher: Path) -> None:
    """End this process, whatever it does, once its launcher is gone."""
    while is_held(launcher):
        time.sleep(_LOOK)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
