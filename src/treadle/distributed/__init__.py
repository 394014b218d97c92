"""Several processes: MegEngine's names, with what they answer in a single process.

Several processes are not supported yet; joining some raises `UnsupportedOp`, and collectives raise
MegEngine's `AssertionError` outside of a group.
"""

from treadle.distributed import functional, helper
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
    launcher,
    new_group,
    override_backend,
    synchronized,
)
from treadle.distributed.helper import bcast_list_, make_allreduce_cb
from treadle.distributed.server import Client, Server

__all__ = [
    "WORLD",
    "Client",
    "Group",
    "Server",
    "bcast_list_",
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
    "synchronized",
]

backend = "auto"
"""The library of collectives; `override_backend` checks names."""
