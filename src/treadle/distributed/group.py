"""Groups of processes: joining them, and what a process knows of the one it is in."""

from __future__ import annotations

import functools
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np

from treadle.backends.program import Compiler
from treadle.base.array import Array
from treadle.base.env import COMM_TIMEOUT, foreign
from treadle.base.log import set_log_prefix
from treadle.device import get_device_count, set_default_device
from treadle.distributed import carrying
from treadle.distributed.streams import RankStream
from treadle.engine.devices.names import default_device, leave_notice_to_others
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.random import seed
from treadle.runtime.comm import carriers, groups
from treadle.runtime.comm.api import CommunicationError, Communicator
from treadle.runtime.comm.loopback import Loopback

P = ParamSpec("P")
R = TypeVar("R")

_LARGE = 1 << 16
"""Bytes from which on memory is worth keeping."""
BACKENDS = ("nccl", "rccl", "cncl", "hccl", "mpi", "auto")
"""Names that MegEngine's programs use. Arrays on the host travel by MPI under each of them, arrays
of GPUs by NCCL under all but "mpi"."""


class Group:
    """Some of the processes, by their ranks.

    Args:
        proc_ranks: distinct ranks; None stands for all processes. The communicator is made at the
            first collective, in which all of them take part.

    Attributes:
        proc_ranks: the ranks.
    """

    def __init__(self, proc_ranks: Sequence[int] | None) -> None:
        self.reset(proc_ranks)

    def reset(self, proc_ranks: Sequence[int] | None) -> None:
        """Make the group consist of other ranks."""
        self._joined: tuple[Any, tuple[str, int]] | None = None
        self.proc_ranks = None if proc_ranks is None else list(proc_ranks)
        self._losses = groups.losses()
        if self.proc_ranks is not None and groups.world() is not None:
            self.check(self.proc_ranks)

    def check(self, proc_ranks: Sequence[int]) -> None:
        """Check the ranks of a group.

        Raises:
            AssertionError: this process is in no group, or is not one of them.
            ValueError: they are not distinct, or do not exist.
        """
        world = require_processes()
        wrong = [r for r in proc_ranks if not 0 <= r < world.size]
        if wrong or len(set(proc_ranks)) != len(proc_ranks) or not proc_ranks:
            raise ValueError(
                f"a group has distinct ranks from 0 to {world.size - 1}, got {list(proc_ranks)}"
            )
        if world.rank not in proc_ranks:
            raise AssertionError(f"rank {world.rank} is not in the group {list(proc_ranks)}")

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self._ranks)

    @property
    def key(self) -> str:
        """The ranks as text."""
        return ",".join(map(str, self._ranks))

    @property
    def _ranks(self) -> list[int]:
        if self.proc_ranks is None:
            return list(range(get_world_size()))
        if self._losses != groups.losses():
            raise CommunicationError(
                "group",
                f"the group of ranks {self.proc_ranks} was made before ranks were lost",
                hint="ranks have other numbers now: make it anew with distributed.new_group",
            )
        return self.proc_ranks

    @property
    def name(self) -> str:
        """Name of the group for ops."""
        everybody = self._ranks == list(range(get_world_size()))
        return groups.WORLD if everybody else groups.name_of(self._ranks)

    @property
    def rank(self) -> int:
        """The place of this process among the ranks."""
        return self._ranks.index(get_rank())

    @property
    def comp_node(self) -> str:
        """The device collectives run on: a GPU where NCCL carries its arrays, else the host."""
        require_processes()
        return str(default_device()) if carrying.carries(self.name) else carrying.HOST

    @property
    def is_single_machine(self) -> bool:
        """True if all processes are on one machine."""
        world = groups.world()
        return world is None or len({world.machines[r] for r in self._ranks}) == 1

    def joined(self) -> tuple[str, int]:
        """Return the name and size by which ops know the group; this process joins it first.

        Raises:
            AssertionError: this process is in no group, or not in this one.
        """
        known, world = self._joined, groups.world()
        if known is None or known[0]() is not world:
            self.communicator()
            self._joined = known = weakref.ref(world), (self.name, self.size)
        return known[1]

    def communicator(self) -> Communicator:
        """Return the communicator of the members; made at the first call, which all of them make.

        Raises:
            AssertionError: this process is in no group, or not in this one.
        """
        require_processes()
        found = groups.find(self.name)
        if found is None:
            raise AssertionError(f"rank {get_rank()} is not in the group {self._ranks}")
        return found


WORLD = Group(None)
"""All processes."""
groups.before_leaving(lambda together: WORLD.reset(None))


def require_processes() -> Communicator:
    """All processes.

    Raises:
        AssertionError: this one is in no group; MegEngine's text.
    """
    world = groups.world()
    if world is None:
        raise AssertionError("please call init_process_group first")
    return world


# -- joining ---------------------------------------------------------------------------------


def job_size() -> int:
    """Return the number of processes of the MPI job that this one was started in, 0 outside of one.

    MPI knows, once it has been initialized. Before, launchers say so in the environment: Open MPI,
    MPICH and its kin, and Slurm's through PMI.
    """
    library = sys.modules.get("mpi4py.MPI")
    if library is not None and library.Is_initialized():
        return int(library.COMM_WORLD.size)
    if foreign("PMIX_RANK") is None and foreign("PMI_RANK") is None:
        return 0
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        count = foreign(name) or ""
        if count.isdecimal():
            return int(count)
    return 0


def server() -> Any:
    """The module of the key-value server, which most programs that use this one do not need."""
    from treadle.distributed import server

    return server


def mpi() -> Any:
    """The module of the MPI communicator.

    Raises:
        CommunicationError: mpi4py, or a library for it, is missing.
    """
    try:
        from treadle.runtime.comm import mpi

        return mpi
    except (ImportError, RuntimeError) as error:
        raise CommunicationError(
            "distributed",
            f"MPI cannot be used: {error}",
            hint='pip install "treadle[mpi]", or mpi4py on top of the MPI of your cluster; '
            "`treadle doctor --mpi` looks at both",
        ) from error


def init_process_group(
    master_ip: str = "localhost",
    port: int = 0,
    world_size: int | None = None,
    rank: int | None = None,
    device: int | None = None,
    backend: str = "auto",
    device_type: str = "xpu",
) -> None:
    """Join the processes of this job; a process that is alone is a group of one.

    Processes that `launcher`, `mpiexec -n 4 python -m mpi4py train.py` or Slurm's `srun` starts
    know of one another, so that no argument is needed. Those that a program starts by itself, as by
    `multiprocessing`, meet at a key-value server, which the program has started there (`Server`) or
    else rank 0 starts. Anybody who reaches that port can read what is in it, so it is for machines
    and networks whose users trust one another.

    Args:
        master_ip, port: where the key-value server listens; in an MPI job rank 0 starts it, and 0
            picks a port.
        world_size: number of processes; the job's if None.
        rank: this process's number; its number in the job if None.
        device: number of its device; that of its place on the machine if None.
        backend: "mpi" takes arrays of GPUs through the host; under "auto" and MegEngine's names,
            such as "nccl", NCCL carries them wherever all ranks of a group have it.
        device_type: kind of its device.

    Raises:
        ValueError: unknown backend, one process, or a rank that does not exist.
        CommunicationError: MPI is missing, the job has another number of processes, or some of them
            do not come within `TREADLE_COMM_TIMEOUT` seconds.
    """
    check_backend(backend)
    ranked = world_size is not None and rank is not None
    if ranked and (world_size <= 1 or not 0 <= rank < world_size):  # type: ignore[operator]
        raise ValueError(f"rank {rank} of {world_size} processes: there must be several")
    if groups.world() is not None:
        raise CommunicationError("init_process_group", "this process is in a group already")
    found = job_size()
    if not found and port and world_size is not None and rank is not None:
        world: Communicator = _met(master_ip, port, world_size, rank)
    elif world_size not in (None, found):
        raise CommunicationError(
            "init_process_group",
            f"there are no {world_size} processes to join",
            saw=f"an MPI job of {found}" if found else "a process that no MPI launcher started",
            hint=f"start with: mpiexec -n {world_size} python -m mpi4py script.py; processes that "
            "you start otherwise meet at a port: init_process_group(master_ip, port, ...)",
        )
    else:
        world = mpi().open_world(rank, memory) if found > 1 else Loopback()
    carrying.prefer(backend)
    _settle(world, device, device_type, port)


def _met(master_ip: str, port: int, size: int, rank: int) -> Communicator:
    """The processes that meet at a key-value server."""
    from treadle.runtime.comm.process_group import Joined
    from treadle.runtime.comm.sockets import own_host

    client = server().join(master_ip, port, first=rank == 0)
    rooms = functools.partial(server().MeetingPlace, client)
    return Joined(rooms, rank, size, float(COMM_TIMEOUT.get()), own_host(master_ip))


_DEVICE: list[Any] = ["", 0]


def own_device() -> tuple[str, int]:
    """Kind and number of the device that this process has joined with; no kind for the host."""
    return _DEVICE[0], _DEVICE[1]


def memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory for a result: large blocks are those that earlier results gave back."""
    if math.prod(shape) * dtype.itemsize < _LARGE:
        return np.empty(shape, dtype)
    return _compiler().empty(shape, dtype)


@functools.cache
def _compiler() -> Compiler:
    return find_compiler(Options())


def _settle(world: Communicator, device: int | None, device_type: str, port: int) -> None:
    """Become part of a world: its server, random numbers, and a device of this process's own."""
    groups.join(world)
    WORLD.reset(range(world.size))
    if world.size > 1 and world.engine == "mpi":
        server().open_for(world, port)
    start = world.broadcast_value(int(time.time()) if world.rank == 0 else None, 0)
    if world.rank:
        leave_notice_to_others()
    if world.size > 1:
        if not isinstance(sys.stderr, RankStream):
            set_log_prefix(f"[rank {world.rank}] ")
        seed(start + world.rank)
        if world.engine == "mpi":
            # An exception on one rank must not leave the others waiting for it, in whichever way
            # the program was started. Connections end with their process.
            mpi().abort_on_exceptions()
    gpus = get_device_count("gpu") if device_type in ("xpu", "gpu") else 0
    index = (get_local_device_id() if device is None else device) % max(gpus, 1)
    if gpus:
        set_default_device(f"gpu{index}")
    _DEVICE[:] = "gpu" if gpus else "", index
    carrying.meet(world, *own_device())


def leave() -> None:
    """Leave all groups, once all processes are here."""
    groups.close_all()
    server().close()


def new_group(proc_ranks: Sequence[int]) -> Group:
    """A group of some of the processes, called by those.

    Raises:
        AssertionError: this process is in no group, or is not one of them.
        ValueError: ranks are not distinct or do not exist.
    """
    require_processes()
    return Group(proc_ranks)


# -- what a process knows ----------------------------------------------------------------------


def is_distributed() -> bool:
    """Return whether this process is in a group."""
    return groups.world() is not None


def get_rank() -> int:
    """The number of this process: 0 outside of a group."""
    world = groups.world()
    return 0 if world is None else world.rank


def get_world_size() -> int:
    """Number of processes: 1 outside of a group."""
    world = groups.world()
    return 1 if world is None else world.size


def get_local_device_id() -> int:
    """The place of this process among those of its machine: 0 outside of a group."""
    world = groups.world()
    if world is None:
        return 0
    return world.machines[: world.rank].count(world.machines[world.rank])


def get_backend() -> str:
    """Return the carrier of messages: "mpi", "loopback" in a group of one, "nccl" for arrays of
    GPUs.

    Raises:
        AssertionError: outside of a group.
    """
    engine = require_processes().engine
    return carriers.NCCL if carrying.carries(groups.WORLD) else engine


def get_py_server_addr() -> tuple[str, int]:
    """Host and port of the key-value server; raises `AssertionError` outside of a group."""
    found: tuple[str, int] = _reachable().address()
    return found


def get_mm_server_addr() -> tuple[str, int]:
    """Host and port of the key-value server, for MPI too; raises as `get_py_server_addr`."""
    return get_py_server_addr()


def get_client() -> Any:
    """A connection to the key-value server; raises `AssertionError` outside of a group."""
    return _reachable().client()


def _reachable() -> Any:
    """The module of the key-value server; in a group of one it starts when somebody asks."""
    world = require_processes()
    if world.size == 1 and not server().address()[1]:
        server().open_for(world)
    return server()


# -- waiting -----------------------------------------------------------------------------------


def group_barrier(group: Group = WORLD) -> None:
    """Wait for all processes of a group; outside of groups there is nothing to wait for."""
    if is_distributed():
        group.communicator().barrier()


def synchronized(func: Callable[P, R]) -> Callable[P, R]:
    """Decorator: wait for all processes after each call."""

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        result = func(*args, **kwargs)
        group_barrier()
        return result

    return wrapper


def check_backend(name: str) -> None:
    """Raise `ValueError` unless it is the name of a library of collectives."""
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")


@contextmanager
def override_backend(new_backend: str) -> Iterator[None]:
    """Use another library of collectives within a block, on all ranks alike.

    "mpi" takes arrays of GPUs through the host. Arrays on the host travel by MPI in any case.

    Raises:
        ValueError: an unknown name.
    """
    check_backend(new_backend)
    package = sys.modules[__package__]
    before, held = package.backend, carrying.prefer(new_backend)
    vars(package)["backend"] = new_backend
    try:
        yield
    finally:
        vars(package)["backend"] = before
        carriers.hold(held)


def group_start() -> None:
    """Begin a batch of sends and receives, which may come in any order: sends never wait."""
    require_processes()


def group_end() -> None:
    """End a batch of sends and receives; raises `AssertionError` outside of a group."""
    require_processes()
