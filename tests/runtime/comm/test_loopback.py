"""The communicator of a process that is alone, and the table of groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from treadle.base.dtype import bfloat16
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import CommunicationError, reduction_type
from treadle.runtime.comm.loopback import Loopback

X = np.arange(6, dtype=np.float32).reshape(1, 6)


def test_everything_comes_back() -> None:
    comm = Loopback()
    comm.agree("anything")
    comm.barrier()
    assert comm.exchange(3) == [3] and comm.broadcast_value("x", 0) == "x"
    handle = comm.start_all_reduce(X.copy(), "mean")
    assert handle.done()
    for result, wanted in [
        (comm.all_reduce(X, "sum"), X),
        (handle.wait(), X),
        (comm.reduce(X, 0), X),
        (comm.reduce_scatter(X), X[0]),
        (comm.all_gather(X), X[None]),
        (comm.gather(X, 0), X[None]),
        (comm.scatter(X, 0), X[0]),
        (comm.broadcast(X, 0), X),
        (comm.all_to_all(X), X),
    ]:
        np.testing.assert_array_equal(result, wanted)
        assert not np.shares_memory(result, X)


def test_messages_to_oneself() -> None:
    comm = Loopback()
    comm.send(X, 0)
    comm.send_value("text", 0)
    assert comm.recv_value(0) == "text"
    np.testing.assert_array_equal(comm.recv(X.shape, X.dtype, 0), X)
    with pytest.raises(CommunicationError, match="nothing was sent"):
        comm.recv(X.shape, X.dtype, 0)
    comm.send(X, 0)
    with pytest.raises(CommunicationError, match="another array was sent"):
        comm.recv((2,), X.dtype, 0)


def test_groups_of_one() -> None:
    made = Loopback().group([0], "0")
    assert (made.name, made.size, made.rank) == ("0", 1, 0)
    with pytest.raises(CommunicationError, match="no ranks"):
        made.group([1], "1")
    with pytest.raises(SystemExit):
        made.abort(3)


def test_sums_are_made_in_types_that_can_hold_them() -> None:
    for narrow in (np.dtype(np.float16), bfloat16.numpy):
        assert reduction_type(narrow) == np.float32
    for same in (np.int16, np.uint16, np.float32, np.int8, np.float64):
        assert reduction_type(np.dtype(same)) == same


@pytest.fixture
def world() -> Iterator[Loopback]:
    made = Loopback()
    groups.join(made)
    yield made
    groups.leave()


def test_groups_are_found_by_name(world: Loopback) -> None:
    assert groups.world() is world and groups.find("world") is world
    found = groups.find("0")
    assert found is not None and found is groups.find("0")
    assert groups.find("1,2") is None and groups.find("nobody") is None
    assert groups.name_of([2, 0]) == "2,0"
    groups.close_all()
    assert groups.world() is None and groups.find("0") is None
