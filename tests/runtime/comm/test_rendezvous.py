"""Who is missing, and who wants something else, on an MPI that is made up."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

mpi4py = pytest.importorskip("mpi4py", reason="needs the mpi extra")
# Names are all that is needed of MPI here; initialized, it would change this process's environment.
mpi4py.rc.initialize = mpi4py.rc.finalize = False

from treadle.runtime.comm.api import CommunicationError  # noqa: E402
from treadle.runtime.comm.rendezvous import Rendezvous, wait_until  # noqa: E402


class Request:
    def __init__(self, done: bool = True) -> None:
        self.done = done

    def Test(self) -> bool:
        return self.done

    def Start(self) -> None:
        pass


class Message:
    def __init__(self, content: Any) -> None:
        self.content = content

    def recv(self) -> Any:
        return self.content


class Comm:
    """Rank 0 of three; `others` are the numbers that ranks 1 and 2 hand in."""

    rank, size = 0, 3

    def __init__(self, come: bool, words: dict[int, Any]) -> None:
        self.come, self.words = come, words
        self.inbox: deque[tuple[int, int, Any]] = deque()
        self.sent: list[tuple[Any, int]] = []

    def Allreduce_init(self, mine: Any, every: Any, op: Any) -> Request:
        every[0], every[1] = 1, -1
        return Request(self.come)

    def Iallreduce(self, mine: Any, every: Any, op: Any) -> Request:
        every[0], every[1] = (1, -1) if not self.words else (1, -2)
        return Request(self.come)

    def isend(self, content: Any, dest: int, tag: int) -> Request:
        self.sent.append((content, dest))
        if dest in self.words and not any(r == dest and t == tag for r, t, _ in self.inbox):
            self.inbox.append((dest, tag, self.words[dest]))
        return Request()

    def improbe(self, source: int, tag: int, status: Any) -> Any:
        for item in list(self.inbox):
            if item[1] == tag:
                self.inbox.remove(item)
                status.Set_source(item[0])
                return Message(item[2])
        return None


def rendezvous(comm: Comm, timeout: float = 0.3) -> Rendezvous:
    made: Any = Rendezvous(comm, "world", (4, 5, 6), timeout)  # type: ignore[arg-type]
    return made


def test_unanimous_ranks_go_on() -> None:
    rendezvous(Comm(True, {})).agree("sum")
    assert rendezvous(Comm(True, {})).start("sum").done()


def test_those_who_say_that_they_wait_are_not_missing() -> None:
    comm = Comm(False, {2: (1, "sum")})
    one = rendezvous(comm)
    with pytest.raises(CommunicationError, match="rank 5 of the group 'world' did not come") as e:
        one.agree("sum")
    assert "rank 4 waits; 2 of 3 ranks are there" in e.value.saw
    assert ((1, "sum"), 1) in comm.sent and ((1, "sum"), 2) in comm.sent
    with pytest.raises(CommunicationError, match="has failed before"):
        one.agree("sum")


def test_one_that_waits_for_something_else_is_found_before_the_time_is_up() -> None:
    one = rendezvous(Comm(False, {1: (1, "max"), 2: (1, "sum")}), timeout=300)
    with pytest.raises(CommunicationError, match="about to run different operations") as caught:
        one.agree("sum")
    assert caught.value.saw == "ranks 4, 6: sum; rank 5: max"


def test_hashes_that_differ() -> None:
    check = rendezvous(Comm(True, {1: (1, "max"), 2: (1, "min")})).start("sum")
    with pytest.raises(CommunicationError, match="about to run different operations") as caught:
        check.wait()
    assert caught.value.saw == "rank 4: sum; rank 5: max; rank 6: min"


def test_waiting_polls_and_reports() -> None:
    turns = iter([False] * 700 + [True])
    late: list[float] = []
    wait_until(lambda: next(turns), late.append)
    assert late == sorted(late)
