"""A board, seen by ranks that take turns in one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.runtime.comm import board
from treadle.runtime.comm.board import Board, SmallReduction


def boards(size: int, move_on: Callable[[], object] = bool) -> list[Board]:
    """The board of a group, as each rank sees it."""
    memory = np.zeros(board.nbytes(size), np.uint8)
    return [Board(memory, rank, size, move_on) for rank in range(size)]


def all_meet(every: list[Board], digests: list[int]) -> None:
    for rank, (one, digest) in enumerate(zip(every, digests, strict=True)):
        last = rank == len(every) - 1
        assert one.meet(digest) == (last and len(set(digests)) == 1)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_last_one_to_come_finds_all(size: int) -> None:
    asked: list[int] = []
    every = boards(size, lambda: asked.append(1))
    for turn in range(1, 6):
        for one in every[:-1]:
            assert not one.meet(turn % 2)
            assert not one.test()
        assert every[-1].meet(turn % 2)
        assert all(one.test() and one.is_unanimous() for one in every)
    assert asked  # MPI moves on while ranks wait.


def test_ranks_that_want_something_else_are_there_and_noticed() -> None:
    every = boards(3)
    all_meet(every, [7, 7, 8])
    assert all(one.test() for one in every)
    assert [one.is_unanimous() for one in every] == [False] * 3
    all_meet(every, [9, 9, 9])  # The group can go on.


def test_a_mark_of_an_earlier_turn_is_not_taken_for_one_of_this() -> None:
    first, second = boards(2)
    all_meet([first, second], [5, 5])
    all_meet([second, first], [5, 5])
    assert not first.meet(5) and not first.test()  # It looks where `second` posted 5 in turn 1.


def reduced(kind: str, operands: list[Any]) -> list[Any]:
    """What each rank gets of arrays that all post, the last one to come first to finish."""
    size = len(operands)
    every, found = boards(size), {}
    x = operands[0]

    def agree(rank: int) -> None:
        # The next rank comes while this one waits.
        every[rank].meet(3)
        if rank + 1 < size:
            found[rank + 1] = one(rank + 1)(operands[rank + 1])
        assert every[rank].test() and every[rank].is_unanimous()

    def one(rank: int) -> SmallReduction:
        made = every[rank].reduction(x.shape, x.dtype, kind, partial(agree, rank))
        assert made is not None
        return made

    for _ in range(3):
        found[0] = one(0)(operands[0])
    return [found[rank] for rank in range(size)]


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4)])
@pytest.mark.parametrize("type_", [dt.float32, dt.float64, dt.int8, dt.uint8, dt.bfloat16])
def test_small_arrays_are_reduced(kind: str, shape: tuple[int, ...], type_: dt.DType) -> None:
    rng = np.random.default_rng(7)
    operands = [np.asarray(rng.integers(0, 40, shape)).astype(type_.numpy) for _ in range(3)]
    exact = np.stack([x.astype(np.float64) for x in operands])
    wanted = {"sum": exact.sum, "mean": exact.mean, "max": exact.max, "min": exact.min}[kind](0)
    if kind == "mean" and not type_.is_float:
        wanted = wanted // 1
    for got in reduced(kind, operands):
        assert isinstance(got, np.ndarray) and (got.dtype, got.shape) == (type_.numpy, shape)
        np.testing.assert_allclose(
            got.astype(np.float64), wanted, rtol=1e-2 if type_ is dt.bfloat16 else 1e-6
        )


def test_all_ranks_get_the_same_bits() -> None:
    """Sums depend on the order of summands, and so do extremes of zeros of both signs."""
    x = np.array([1e8, 0.0, np.nan], np.float32)
    operands = [x, np.array([1.0, -0.0, 2.0], np.float32), -x]
    for kind in ("sum", "max", "min"):
        assert len({got.tobytes() for got in reduced(kind, operands)}) == 1


def test_strided_operands_and_large_ones() -> None:
    x = np.arange(12.0).reshape(3, 4).T
    for got in reduced("sum", [x, x]):
        np.testing.assert_array_equal(got, 2 * x)
    room = boards(2)[0].room
    assert room >= 1 << 14
    for size, fits in ((room, True), (room + 1, False)):
        made = boards(2)[0].reduction((size,), np.dtype(np.int8), "sum", bool)
        assert (made is not None) == fits


def test_memory_that_several_map(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(board, "_FOLDER", tmp_path)
    path = board.published(2)
    first, second = board.mapped(path, 2), board.mapped(path, 2)
    board.withdraw(path)
    assert first is not None and second is not None and not os.listdir(tmp_path)
    all_meet([Board(first, 0, 2), Board(second, 1, 2)], [1, 1])
    assert board.mapped(path, 2) is None  # Another machine has no such file.


def test_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(board, "_FOLDER", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert board.published(2) == "" and not os.listdir(tmp_path)
    monkeypatch.setattr(board, "_FOLDER", tmp_path / "missing")
    assert board.published(2) == ""
    assert board.mapped("", 2) is None


def test_who_may_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert board.is_possible(["a", "a"])
    assert not board.is_possible(["a", "b"])
    assert not board.is_possible(["a"])
    assert not board.is_possible(["a"] * 33)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not board.is_possible(["a", "a"])
