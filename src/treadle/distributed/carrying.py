"""Choice of arrays that travel between processes without going through the host.

Collectives of arrays on a device are carried by its backend's library where all ranks of the group
have it, each on a device of its own; otherwise by MPI, on copies on the host.
"""

from __future__ import annotations

from treadle.backends import registry
from treadle.backends.api import Carrying
from treadle.runtime.comm import carriers
from treadle.runtime.comm.api import Communicator

HOST = "cpux:0"
DIRECT = ("nccl", "auto", "rccl", "cncl", "hccl")
"""Names of backends under which a library may carry arrays; "mpi" takes them through the host."""


def meet(world: Communicator, kind: str, index: int) -> None:
    """Tell the other ranks what this one has; all of them call this together.

    Args:
        world: all ranks.
        kind: of this rank's device; empty where it has none but the host.
        index: the device's number.
    """
    if world.size > 1:
        carriers.meet(world, _offers(kind, index) if kind else {})


def _offers(kind: str, index: int) -> dict[str, carriers.Offer]:
    entry = registry.for_kind(kind)
    backend = None if entry is None else entry.backend
    if entry is None or not isinstance(backend, Carrying):
        return {}
    number = index if entry.visible is None else entry.visible[index]
    try:
        return dict(backend.offers(number))
    except Exception as error:  # a library that cannot be loaded must not keep anybody from joining
        return {carriers.NCCL: carriers.Offer(refusal=f"{type(error).__name__}: {error}")}


def prefer(backend: str) -> bool:
    """Choose by a backend's name whether libraries carry arrays; returns whether none did."""
    return carriers.hold(backend not in DIRECT)


def carries(group: str) -> bool:
    """Return whether a library carries arrays of this process's device, in a group."""
    return not carriers.held() and not carriers.why_not(carriers.NCCL, group)


def described(group: str) -> str:
    """Return in words how arrays of devices travel in a group."""
    if carriers.held():
        return "through the host: a backend was chosen that does"
    why = carriers.why_not(carriers.NCCL, group)
    return f"through the host: {why}" if why else f"NCCL {carriers.version(carriers.NCCL)}"
