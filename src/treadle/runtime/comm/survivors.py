"""Survivors of a group when ranks are gone: MPI's user-level fault mitigation (ULFM).

Bland, Bouteiller, Herault, Bosilca, Dongarra: Post-failure recovery of MPI communication
capability (2013). In a job that was started for it, a call that needs a lost rank returns an
error. Ranks that do not need it would wait for those that gave up, so whoever finds out revokes
all groups, which ends their calls, too. The rest then agree on who is left, and shrink the world.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np
from mpi4py import MPI

from treadle.base.env import foreign
from treadle.runtime.comm.api import CommunicationError, RankLost

T = TypeVar("T")

_LOSSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
ENDING = "start it with mpiexec --with-ft ulfm --mca async_mpi_finalize 1"
_YES = ("1", "true", "yes", "on")
_NEWS = 2.0
"""Seconds in which a rank hears who is lost that only knows that somebody is."""
_NAP = 0.001
_SPINS = 2000
"""Number of turns in which an agreement is asked for before the rank sleeps in between."""


def is_resilient() -> bool:
    """Return whether this job outlives ranks: `mpiexec --with-ft ulfm` of Open MPI 5 says so."""
    return (foreign("OMPI_MCA_mpi_ft_enable") or "").lower() in _YES


def ends_alone() -> bool:
    """Return whether a rank of this job ends without waiting for others, some of which
    may be lost.
    """
    return (foreign("OMPI_MCA_async_mpi_finalize") or "").lower() in _YES


def is_loss(error: MPI.Exception) -> bool:
    """Return whether an error of MPI says that ranks are lost."""
    return is_resilient() and error.Get_error_class() in _LOSSES


def has_lost(comm: MPI.Comm) -> bool:
    """Return whether ranks are known to be lost; in a job that outlives them."""
    MPI.COMM_SELF.Iprobe()  # News come while MPI is called.
    return bool(comm.Get_failed().size)


def loss(where: str, comm: MPI.Comm, ranks: Sequence[int]) -> RankLost:
    """The error for a loss, with the ranks that are gone; `ranks` are those of `comm`."""
    deadline = time.monotonic() + _NEWS
    while not (failed := comm.Get_failed()).size and time.monotonic() < deadline:
        MPI.COMM_SELF.Iprobe()  # News come while MPI is called.
        time.sleep(_NAP)
    places = failed.Translate_ranks(list(range(failed.size)), comm.Get_group())
    lost = tuple(sorted(ranks[p] for p in places))
    named = f"rank{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}" if lost else "a rank"
    error = RankLost(
        where,
        f"{named} of {comm.size} {'are' if len(lost) > 1 else 'is'} lost",
        hint="go on without: distributed.shrink(), which trainer.Elastic calls for you",
    )
    error.ranks = lost
    return error


def unanimous(comm: MPI.Comm, fine: bool, timeout: float) -> bool:
    """Return whether nobody is lost and all are fine: the same answer on all ranks that are left.

    Works in groups that have been revoked.

    Args:
        comm: of the group; all ranks that are left call this.
        fine: what this rank says.
        timeout: in seconds.

    Raises:
        CommunicationError: a rank is there, but does not come.
    """
    said = np.array([fine], np.int32)
    request = comm.Iagree(said)
    began = time.monotonic()
    try:
        spins = 0
        while not request.Test():
            spins += 1
            if spins > _SPINS:
                time.sleep(_NAP)
            if time.monotonic() - began > timeout:
                raise _nobody_comes(timeout)
    except MPI.Exception as error:
        if not is_loss(error):
            raise
        return False
    return bool(said[0])


def rest_of(
    comm: MPI.Comm, make: Callable[[MPI.Intracomm], T], timeout: float, met: bool = False
) -> T:
    """Make something of the ranks that are left; all of them call this together.

    Args:
        comm: revoked.
        make: makes it; may fail where another rank is lost meanwhile, and is then called again.
        timeout: in seconds.
        met: whether they have come together already, in `unanimous`.
    """
    if not met:
        # MPI's own call waits without a clock.
        unanimous(comm, False, timeout)
    while True:
        left = cast(MPI.Intracomm, comm.Shrink())
        made = None
        try:
            made = make(left)
        except MPI.Exception as error:
            if not is_loss(error):
                raise
            left.Revoke()
        if unanimous(left, made is not None, timeout) and made is not None:
            return made
        left.Revoke()
        comm = left


def _nobody_comes(timeout: float) -> CommunicationError:
    return CommunicationError(
        "shrink",
        f"not all ranks that are left came within {timeout:g} s",
        hint="all of them call shrink(), or trainer.Elastic.step; see what the others do; "
        "TREADLE_COMM_TIMEOUT sets the time",
    )
