"""What ranks that are left agree on, with a library that loses them on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

mpi4py = pytest.importorskip("mpi4py", reason="needs the mpi extra")
from mpi4py import MPI  # noqa: E402

from treadle.runtime.comm import survivors  # noqa: E402
from treadle.runtime.comm.api import CommunicationError  # noqa: E402


class Loss(MPI.Exception):
    """MPI's error for a lost rank."""

    def Get_error_class(self) -> int:
        return int(MPI.ERR_PROC_FAILED)


class Request:
    """An agreement that is over, fails, or never ends."""

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome

    def Test(self) -> bool:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return bool(self.outcome)


class Comm:
    """A group; each communicator that it shrinks to agrees as told."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes = list(outcomes)
        self.said: list[int] = []
        self.calls: list[str] = []

    def Iagree(self, said: Any) -> Request:
        self.said.append(int(said[0]))
        return Request(self.outcomes.pop(0))

    def Shrink(self) -> Comm:
        self.calls.append("shrink")
        return self

    def Revoke(self) -> None:
        self.calls.append("revoke")


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Any:
    """MPI's error for a loss, in a job that outlives ranks."""
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    return Loss()


def test_an_agreement(lost: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    comm: Any = Comm(True, True, lost, False)
    assert survivors.unanimous(comm, True, 1.0)
    assert not survivors.unanimous(comm, False, 1.0)
    assert not survivors.unanimous(comm, True, 1.0)
    assert comm.said == [1, 0, 1]
    with pytest.raises(CommunicationError, match="not all ranks that are left came within 0 s"):
        survivors.unanimous(comm, True, 0.0)
    monkeypatch.delenv("OMPI_MCA_mpi_ft_enable")
    assert not survivors.is_resilient() and not survivors.is_loss(lost)
    comm.outcomes = [lost]
    with pytest.raises(MPI.Exception):
        survivors.unanimous(comm, True, 1.0)


def test_another_rank_is_lost_meanwhile(lost: Any) -> None:
    comm: Any = Comm(lost, lost, True)
    fails = [lost, None]

    def make(left: Any) -> str:
        error = fails.pop(0)
        if error is not None:
            raise error
        return "made"

    assert survivors.rest_of(comm, make, 1.0) == "made"
    assert comm.said == [0, 0, 1]  # to come together, the first attempt, the second
    assert comm.calls == ["shrink", "revoke", "revoke", "shrink"]


def test_ranks_that_have_met_do_not_meet_again() -> None:
    comm: Any = Comm(True)
    assert survivors.rest_of(comm, lambda left: np.pi, 1.0, met=True) == np.pi
    assert comm.said == [1]
