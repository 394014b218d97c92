"""Groups of processes. There is one process so far: what MegEngine answers outside of a group."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

from treadle.base.errors import UnsupportedOp
from treadle.device import get_device_count

P = ParamSpec("P")
R = TypeVar("R")

_BACKENDS = ("nccl", "rccl", "cncl", "hccl", "auto")


class Group:
    """Some of the processes, by their ranks.

    Args:
        proc_ranks: distinct ranks; None stands for all processes.

    Attributes:
        proc_ranks: the ranks.
    """

    def __init__(self, proc_ranks: Sequence[int] | None) -> None:
        self.reset(proc_ranks)

    def reset(self, proc_ranks: Sequence[int] | None) -> None:
        """Make the group consist of other ranks."""
        self.proc_ranks = None if proc_ranks is None else list(proc_ranks)

    def check(self, proc_ranks: Sequence[int]) -> None:
        """Raise unless ranks are distinct, exist, and include this process."""
        require_processes()

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1 if self.proc_ranks is None else len(self.proc_ranks)

    @property
    def key(self) -> str:
        """The ranks as text."""
        return ",".join(map(str, [0] if self.proc_ranks is None else self.proc_ranks))

    @property
    def rank(self) -> int:
        """The place of this process among the ranks."""
        return 0

    @property
    def comp_node(self) -> NoReturn:
        """The device collectives run on."""
        require_processes()

    @property
    def is_single_machine(self) -> bool:
        """Whether all processes are on one machine."""
        return True


WORLD = Group(None)
"""All processes."""


def require_processes() -> NoReturn:
    """Say that this process is alone.

    Raises:
        AssertionError: always, with MegEngine's text.
    """
    raise AssertionError("please call init_process_group first")


def init_process_group(
    master_ip: str,
    port: int,
    world_size: int,
    rank: int,
    device: int,
    backend: str = "auto",
    device_type: str = "xpu",
) -> NoReturn:
    """Join the processes that call this with one address.

    Raises:
        ValueError: a CPU as device type, an unknown backend, or a single process.
        UnsupportedOp: else: several processes are not supported yet.
    """
    if device_type == "cpu":
        raise ValueError("processes cannot be joined on CPUs: device_type is 'cpu'")
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}, got {backend!r}")
    if world_size <= 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size} processes: there must be several")
    raise _unsupported("init_process_group", f"{world_size} processes at {master_ip}:{port}")


def _unsupported(name: str, saw: str) -> UnsupportedOp:
    return UnsupportedOp(
        name,
        "several processes are not supported yet",
        saw=saw,
        hint="run in one process, which may use all cores",
    )


def new_group(proc_ranks: Sequence[int]) -> NoReturn:
    """A subgroup; raises `AssertionError`, as this process is in no group."""
    require_processes()


def is_distributed() -> bool:
    """Whether this process is in a group."""
    return False


def get_rank() -> int:
    """The number of this process: 0 outside of a group."""
    return 0


def get_world_size() -> int:
    """Number of processes: 1 outside of a group."""
    return 1


def get_local_device_id() -> int:
    """The number of this process's device: 0 outside of a group."""
    return 0


def get_backend() -> str:
    """The library of collectives; raises `AssertionError` outside of a group."""
    require_processes()


def get_py_server_addr() -> tuple[str, int]:
    """Address of the rendezvous; raises `AssertionError` outside of a group."""
    require_processes()


def get_mm_server_addr() -> tuple[str, int]:
    """Address of the collectives' server; raises `AssertionError` outside of a group."""
    require_processes()


def get_client() -> NoReturn:
    """The connection to the rendezvous; raises `AssertionError` outside of a group."""
    require_processes()


def group_barrier(group: Group = WORLD) -> None:
    """Wait for all processes of a group: nothing to wait for in one process."""


def synchronized(func: Callable[P, R]) -> Callable[P, R]:
    """Decorator: wait for all processes after each call."""

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        result = func(*args, **kwargs)
        group_barrier()
        return result

    return wrapper


@contextmanager
def override_backend(new_backend: str) -> Iterator[None]:
    """Use another library of collectives within a block.

    Raises:
        ValueError: an unknown name.
    """
    if new_backend not in _BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}, got {new_backend!r}")
    yield


def group_start() -> NoReturn:
    """Begin a batch of sends and receives; raises `AssertionError` outside of a group."""
    require_processes()


def group_end() -> NoReturn:
    """End a batch of sends and receives; raises `AssertionError` outside of a group."""
    require_processes()


class launcher:
    """Decorator: call a function in one process per device, and return the list of results.

    With one device, or none, the function is called in this process.

    Raises:
        UnsupportedOp: at the call, where there would be several processes.
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
    ) -> None:
        self.func = func
        self.device_type = device_type
        found = get_device_count("gpu") if device_type == "xpu" else get_device_count(device_type)
        self.n_gpus = n_gpus if n_gpus is not None else max(found, 1)
        self.world_size = world_size if world_size is not None else self.n_gpus
        self.options = {"rank_start": rank_start, "master_ip": master_ip, "port": port}
        self.backend = backend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The list of results; the decorator itself where it was made without a function."""
        if self.func is None:
            self.func = args[0]
            return self
        if self.world_size > 1:
            raise _unsupported("launcher", f"{self.world_size} processes")
        return [self.func(*args, **kwargs)]
