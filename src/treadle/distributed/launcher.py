"""`launcher`: MegEngine's decorator that calls a function in several processes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from treadle.device import get_device_count
from treadle.distributed.group import (
    check_backend,
    init_process_group,
    job_size,
    require_processes,
)
from treadle.distributed.shrinking import require_resilience
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import CommunicationError


class launcher:
    """Decorator: call a function in one process per device, and return the list of results.

    Processes are started with `mpiexec` on this machine; arguments, results, and closures travel
    by cloudpickle. Where the program itself was started by an MPI launcher nothing is started:
    every process of that job calls the function, and gets the list of all results. Lines that
    processes print which were started here begin with their rank.

    Args:
        func: the function; left out where the decorator is given arguments.
        n_gpus: processes to start. If None the number of devices of `device_type`; where there is
            none, `world_size`, so that a program for several GPUs runs on the host, else 1.
        world_size: processes in all; the same if None. More only within a job that spans machines.
        rank_start, master_ip, port: as MegEngine has them for jobs that span machines, which are
            started with `mpiexec` or `srun` here. Such a job is meant where `rank_start` is not 0
            or `master_ip` not "localhost"; otherwise they have no effect.
        device_type: kind of device to count.
        backend: see `override_backend`.
        on_failure: what becomes of the job when a process is killed: "end" ends all others;
            "shrink" has their collectives raise `RankLost`, after which `shrink` and
            `trainer.Elastic` go on without it. Results are then of those that are left. An
            exception ends the job in any case.

    Raises:
        RankFailed: at the call: a process raised or was killed. All others have been ended.
        CommunicationError: at the call: MPI is missing, or a job has another number of processes.
    """

    def __init__(
        self,
        func: Callable[..., Any] | None = None,
        n_gpus: int | None = None,
        world_size: int | None = None,
        rank_start: int = 0,
        master_ip: str = "localhost",
        port: int = 0,
        device_type: str = "xpu",
        backend: str = "nccl",
        on_failure: str = "end",
    ) -> None:
        check_backend(backend)
        if on_failure not in ("end", "shrink"):
            raise ValueError(f"on_failure must be 'end' or 'shrink', got {on_failure!r}")
        self.on_failure = on_failure
        self.device_type = device_type
        self.asked = n_gpus if world_size is None else world_size
        found = get_device_count("gpu" if device_type == "xpu" else device_type)
        one_machine = rank_start == 0 and master_ip == "localhost"
        on_host = world_size if world_size is not None and one_machine else 1
        self.n_gpus = (found or on_host) if n_gpus is None else n_gpus
        self.world_size = self.n_gpus if world_size is None else world_size
        if not 1 <= self.n_gpus <= self.world_size:
            raise ValueError(f"cannot start {self.n_gpus} of {self.world_size} processes")
        self.options = {"rank_start": rank_start, "master_ip": master_ip, "port": port}
        self.backend = backend
        self.func = func
        if func is not None:
            functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The list of results; the decorator itself where it was made without a function."""
        if self.func is None:
            self.func = args[0]
            functools.update_wrapper(self, args[0])
            return self
        if groups.world() is not None or job_size() > 1:
            return self._within(args, kwargs)
        if self.world_size == 1:
            return [self.func(*args, **kwargs)]
        if self.world_size > self.n_gpus:
            raise CommunicationError(
                "launcher",
                f"{self.world_size} processes on several machines are started from outside",
                saw=f"n_gpus={self.n_gpus}, world_size={self.world_size}",
                hint=f"mpiexec -n {self.world_size} --hostfile hosts python -m mpi4py script.py",
            )
        from treadle.distributed.launch import run_ranks

        shrinks = self.on_failure == "shrink"
        return run_ranks(self.func, args, kwargs, self.n_gpus, shrinks)

    def _within(self, args: Any, kwargs: Any) -> list[Any]:
        """Call the function as a process of the job this one belongs to."""
        if groups.world() is None:
            init_process_group(backend=self.backend, device_type=self.device_type)
        world = groups.world()
        if world is None or self.func is None or self.asked not in (None, world.size):
            raise CommunicationError(
                "launcher",
                f"{self.asked} processes are requested within a job of another size",
                saw="" if world is None else f"a job of {world.size}",
                hint="start the job with as many processes, or leave the number out",
            )
        if self.on_failure == "shrink" and world.size > 1:
            require_resilience("launcher")
        result = self.func(*args, **kwargs)
        return require_processes().exchange(result)  # which may be fewer by now
