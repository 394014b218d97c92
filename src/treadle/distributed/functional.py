"""Collectives, under MegEngine's names: `F.distributed`.

Outside of a group of processes they raise MegEngine's `AssertionError`. Groups of several processes
are not supported yet, so that is all they do; the ops they will be (`ops/collective.py`) exist.
"""

from __future__ import annotations

from typing import Any

from treadle.distributed.group import WORLD, Group, require_processes
from treadle.tensor import Tensor

__all__ = [
    "all_gather",
    "all_reduce_max",
    "all_reduce_min",
    "all_reduce_sum",
    "all_to_all",
    "broadcast",
    "collective_comm",
    "gather",
    "reduce_scatter_sum",
    "reduce_sum",
    "remote_recv",
    "remote_send",
    "scatter",
]


def collective_comm(inp: Tensor, mode: Any, group: Group, device: Any) -> Tensor:
    """A collective by its mode; raises `AssertionError` outside of a group."""
    require_processes()


def reduce_sum(inp: Tensor, group: Group = WORLD, device: Any = None) -> Tensor | None:
    """The sum on the first rank, None on the others; `AssertionError` outside of a group."""
    require_processes()


def broadcast(inp: Tensor | None, group: Group = WORLD, device: Any = None) -> Tensor:
    """The first rank's tensor on every rank; `AssertionError` outside of a group."""
    require_processes()


def all_gather(inp: Tensor, group: Group = WORLD, device: Any = None, axis: int = 0) -> Tensor:
    """Every rank's tensor, joined along an axis; `AssertionError` outside of a group."""
    require_processes()


def reduce_scatter_sum(
    inp: Tensor, group: Group = WORLD, device: Any = None, axis: int = 0
) -> Tensor:
    """This rank's part of the sum, cut along an axis; `AssertionError` outside of a group."""
    require_processes()


def all_reduce_sum(inp: Tensor, group: Group = WORLD, device: Any = None) -> Tensor:
    """The sum on every rank; `AssertionError` outside of a group."""
    require_processes()


def all_reduce_max(inp: Tensor, group: Group = WORLD, device: Any = None) -> Tensor:
    """The largest elements on every rank; `AssertionError` outside of a group."""
    require_processes()


def all_reduce_min(inp: Tensor, group: Group = WORLD, device: Any = None) -> Tensor:
    """The smallest elements on every rank; `AssertionError` outside of a group."""
    require_processes()


def gather(inp: Tensor, group: Group = WORLD, device: Any = None, axis: int = 0) -> Tensor | None:
    """Every rank's tensor, joined on the first one; `AssertionError` outside of a group."""
    require_processes()


def scatter(inp: Tensor | None, group: Group = WORLD, device: Any = None, axis: int = 0) -> Tensor:
    """This rank's part of the first one's tensor; `AssertionError` outside of a group."""
    require_processes()


def all_to_all(
    inp: Tensor,
    group: Group = WORLD,
    device: Any = None,
    split_axis: int = 0,
    concat_axis: int = 0,
) -> Tensor:
    """Parts of every rank's tensor exchanged; `AssertionError` outside of a group."""
    require_processes()


def remote_send(inp: Tensor, dest_rank: int) -> None:
    """Send a tensor to another rank; `AssertionError` outside of a group."""
    require_processes()


def remote_recv(src_rank: int, device: Any = None, inp: Tensor | None = None) -> Tensor:
    """A tensor from another rank; `AssertionError` outside of a group."""
    require_processes()
