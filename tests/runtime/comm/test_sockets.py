"""Arrays between ranks that are connected by sockets: here threads, with a store of their own."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from treadle.runtime.comm.api import CommunicationError
from treadle.runtime.comm.sockets import Sockets, own_host

Array = np.ndarray[Any, Any]


class Keys:
    """A store that threads share."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._news = threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        with self._news:
            self.known[key] = value
            self._news.notify_all()

    def get(self, key: str, /) -> bytes:
        with self._news:
            if not self._news.wait_for(lambda: key in self.known, 20):
                raise TimeoutError(key)
            return self.known[key].encode()


def on_all(
    size: int, work: Callable[[Sockets], Any], timeout: float = 20.0, keys: Keys | None = None
) -> list[Any]:
    """What `work` gives on each rank; an exception is a result."""
    store = keys or Keys()

    def run(rank: int) -> Any:
        try:
            group = Sockets(store, rank, size, timeout)
            try:
                return work(group)
            finally:
                group.close()
        except CommunicationError as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def numbers(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    made: Array = np.random.default_rng(rank).integers(1, 9, shape).astype(dtype)
    return made


TYPES = [np.float32, np.float64, np.int64, np.uint8, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (7, 4099)], ids=str)
def test_reductions(size: int, dtype: Any, shape: tuple[int, ...]) -> None:
    given = [numbers(r, shape, dtype) for r in range(size)]
    every = np.stack(given).astype(np.float64)
    kinds = "sum", "mean", "max", "min"
    found = on_all(size, lambda g: [g.all_reduce(given[g.rank], kind) for kind in kinds])
    mean = every.mean(0) if np.dtype(dtype).kind not in "iu" else every.sum(0) // size
    wanted = [x.astype(dtype) for x in (every.sum(0), mean, every.max(0), every.min(0))]
    for mine in found:
        for ours, theirs in zip(mine, wanted, strict=True):
            assert ours.dtype == dtype and ours.shape == shape
            np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=1e-6)
    for mine in found[1:]:  # All ranks have the same bits.
        assert all(a.tobytes() == b.tobytes() for a, b in zip(mine, found[0], strict=True))


@pytest.mark.parametrize("count", [3, 300_000])
def test_movement(count: int) -> None:
    size = 3
    x = [np.arange(count) + 10 * r for r in range(size)]
    rows = [np.stack([x[r] + 100 * i for i in range(size)]) for r in range(size)]

    def work(g: Sockets) -> list[Any]:
        mine = rows[g.rank]
        return [
            g.all_gather(x[g.rank]),
            g.gather(x[g.rank], 1),
            g.scatter(mine, 2),
            g.broadcast(x[g.rank], 1),
            g.all_to_all(mine),
            g.reduce_scatter(mine),
            g.reduce(x[g.rank], 0),
        ]

    for r, found in enumerate(on_all(size, work)):
        wanted = [
            np.stack(x),
            np.stack(x) if r == 1 else None,
            rows[2][r],
            x[1],
            np.stack([rows[i][r] for i in range(size)]),
            sum(rows)[r],
            sum(x) if r == 0 else None,
        ]
        for ours, theirs in zip(found, wanted, strict=True):
            assert (ours is None) is (theirs is None)
            assert ours is None or np.array_equal(ours, theirs)


def test_messages_and_collectives_do_not_mix() -> None:
    """A rank may take what was sent to it long after collectives of all."""
    large = np.arange(500_000.0)

    def work(g: Sockets) -> bool:
        other = 1 - g.rank
        g.send(large + g.rank, other)  # Both send before either receives.
        g.send(np.array([g.rank]), other)
        total = g.all_reduce(np.ones(3), "sum")
        first = g.recv(large.shape, large.dtype, other)
        second = g.recv((1,), np.dtype(np.int64), other)
        g.barrier()
        return bool(total[0] == 2 and np.array_equal(first, large + other) and second[0] == other)

    assert on_all(2, work) == [True, True]


def test_sends_never_wait_for_their_receiver() -> None:
    """Both ranks send more than a connection holds, in pieces that may just fill it."""

    def work(g: Sockets) -> list[float]:
        other, count = 1 - g.rank, 200
        for i in range(count):
            g.send(np.full(10_000, i, np.float32), other)
        g.barrier()
        return [float(g.recv((10_000,), np.dtype(np.float32), other)[-1]) for _ in range(count)]

    assert on_all(2, work) == [list(range(200))] * 2


def test_ranks_out_of_step_are_told() -> None:
    found = on_all(2, lambda g: g.all_reduce(np.ones(3 + g.rank), "sum"))
    assert all(isinstance(f, CommunicationError) for f in found)
    assert any("is about to run another operation" in str(f) for f in found)


def test_a_rank_that_leaves_is_named() -> None:
    found = on_all(2, lambda g: None if g.rank else g.all_reduce(np.ones(3), "sum"))
    assert "rank 1 has left" in str(found[0])


def test_a_rank_that_does_not_come_is_named() -> None:
    def work(g: Sockets) -> Any:
        return time.sleep(1.5) if g.rank else g.all_reduce(np.ones(3), "sum")

    found = on_all(2, work, timeout=0.5)
    assert "rank 1 did not come within 0.5 s" in str(found[0])
    with pytest.raises(CommunicationError, match=r"ranks \[1\] did not come"):
        Sockets(Keys(), 0, 2, 0.2)


def test_strangers_get_no_place() -> None:
    keys = Keys()

    def stranger() -> None:
        host, port, _ = keys.get("at/0").decode().split(" ")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"x" * 32 + (1).to_bytes(8, "little"))
            connection.settimeout(5)
            assert connection.recv(1) == b""
        keys.set("tried", "yes")

    def work(rank: int) -> Any:
        if rank:
            keys.get("tried")
        group = Sockets(keys, rank, 2, 20.0)
        total = group.all_reduce(np.ones(2), "sum")
        group.close()
        return total[0]

    with ThreadPoolExecutor(3) as pool:
        tried = pool.submit(stranger)
        assert list(pool.map(work, range(2))) == [2, 2]
        tried.result()


def test_own_host() -> None:
    assert own_host("localhost") == "127.0.0.1"
