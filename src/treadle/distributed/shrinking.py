"""Going on without ranks that are lost: `shrink`, and what has to be made anew then."""

from __future__ import annotations

from typing import Any

from treadle.base.log import get_logger, set_log_prefix
from treadle.distributed import carrying, group
from treadle.distributed.group import WORLD, require_processes
from treadle.distributed.streams import rename_lines
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import CommunicationError, Communicator, RankLost

__all__ = [
    "after_meeting",
    "can_shrink",
    "is_whole",
    "leave",
    "require_all_ranks",
    "require_resilience",
    "shrink",
]


def can_shrink() -> bool:
    """Return whether this job was started so that it outlives ranks, by Open MPI 5 with
    its ULFM.
    """
    world = groups.world()
    if world is None or world.engine != "mpi":
        return False
    found: bool = group.mpi().is_resilient()
    return found


def shrink() -> tuple[int, ...]:
    """Go on without ranks that are lost; all ranks that are left call this, after `RankLost`.

    Ranks are numbered anew in their order, `WORLD` is what is left, and `get_rank` and
    `get_world_size` say so. Groups of other ranks raise from now on: make them anew. The key-value
    server starts again, empty, on the first rank. Compiled functions are captured anew, links are
    measured anew, and samplers deal out their next epoch to the ranks that there are.

    Parameters are as the failed step left them, on each rank; `trainer.Elastic` sees to them, too.

    Returns:
        The ranks that are lost, as they were numbered before.

    Raises:
        AssertionError: outside of a group.
        CommunicationError: the job was not started to outlive ranks, or a rank that is left does
            not come in time.
    """
    return _shrunk(met=False)


def is_whole(fine: bool) -> bool:
    """Return whether no rank is lost, and all of them are fine: the same answer on all that are
    left.

    Ranks that call `shrink` in place of this count as not fine. After False, all go on with
    `after_meeting`.
    """
    answer: bool = group.mpi().is_whole(require_processes(), fine)
    return answer


def after_meeting() -> tuple[int, ...]:
    """`shrink`, by ranks that have just been told that they are not whole."""
    return _shrunk(met=True)


def _shrunk(met: bool) -> tuple[int, ...]:
    before = require_processes().size
    numbers = list(range(before))
    while True:
        require_resilience("shrink")
        world, gone = group.mpi().shrunk(require_processes(), met)
        numbers = [n for i, n in enumerate(numbers) if i not in gone]
        met = False
        try:
            _settle(world)
            break
        except RankLost:  # One more, meanwhile.
            continue
    lost = tuple(sorted(set(range(before)).difference(numbers)))
    if world.rank == 0:
        get_logger().warning(
            "lost %s of %d ranks (%s), going on with %d",
            len(lost), before, ", ".join(map(str, lost)), world.size,
        )  # fmt: skip
    return lost


def require_resilience(where: str) -> None:
    """Raise `CommunicationError` unless this job outlives ranks."""
    if not can_shrink():
        raise CommunicationError(
            where,
            "this job cannot continue when ranks are lost",
            saw=f"engine {require_processes().engine!r}",
            hint="start it with launcher(on_failure='shrink'), or by Open MPI 5 with "
            "mpiexec --with-ft ulfm --mca async_mpi_finalize 1; other jobs resume from their last "
            "checkpoint",
        )


def _settle(world: Communicator) -> None:
    """Tell everything that knows the world about the new one."""
    groups.shrink_to(world)
    WORLD.reset(range(world.size))
    set_log_prefix(f"[rank {world.rank}] " if not rename_lines(world.rank) else "")
    server: Any = group.server()
    server.close()
    server.open_for(world)
    carrying.meet(world, *group.own_device())


def leave() -> None:
    """Leave all groups, once all processes that are left are here."""
    while True:
        try:
            group.leave()
            return
        except RankLost:
            shrink()


def require_all_ranks(what: str, losses: int) -> None:
    """Raise if ranks have been lost that had parts of something.

    Args:
        what: is in parts.
        losses: `groups.losses()` when it was divided.

    Raises:
        CommunicationError: they have.
    """
    if groups.losses() != losses:
        raise CommunicationError(
            what,
            "its parts on ranks that are lost are gone",
            saw=f"{groups.losses() - losses} losses since it was made",
            hint="start the job again: it resumes from its last checkpoint, on fewer ranks, too",
        )
