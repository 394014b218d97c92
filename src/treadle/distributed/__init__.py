"""Several processes that train together, over MPI: MegEngine's names.

Outside of a group there is one process, and collectives raise MegEngine's `AssertionError`.
"""

import typing

from treadle.distributed import functional, helper
from treadle.distributed.gradients import AllreduceCallback, make_allreduce_cb
from treadle.distributed.group import (
    WORLD,
    Group,
    get_backend,
    get_client,
    get_local_device_id,
    get_mm_server_addr,
    get_py_server_addr,
    get_rank,
    get_world_size,
    group_barrier,
    group_end,
    group_start,
    init_process_group,
    is_distributed,
    new_group,
    override_backend,
    synchronized,
)
from treadle.distributed.helper import bcast_list_
from treadle.distributed.launcher import launcher
from treadle.distributed.shrinking import can_shrink, shrink
from treadle.runtime.comm.api import CommunicationError, RankFailed, RankLost

__all__ = [
    "WORLD",
    "AllreduceCallback",
    "Client",
    "CommunicationError",
    "Group",
    "RankFailed",
    "RankLost",
    "Server",
    "bcast_list_",
    "can_shrink",
    "functional",
    "get_backend",
    "get_client",
    "get_local_device_id",
    "get_mm_server_addr",
    "get_py_server_addr",
    "get_rank",
    "get_world_size",
    "group_barrier",
    "group_end",
    "group_start",
    "helper",
    "init_process_group",
    "is_distributed",
    "launcher",
    "make_allreduce_cb",
    "new_group",
    "override_backend",
    "shrink",
    "synchronized",
]

backend = "auto"
"""The library of collectives; `override_backend` checks names."""


def __getattr__(name: str) -> typing.Any:
    if name in ("Client", "Server"):  # with Python's HTTP, which takes longer than all the rest
        from treadle.distributed import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
