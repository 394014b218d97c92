"""Scratch memory that programs of fixed extents have in turn."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.engine.workloads import f32

from treadle.base import dtype as dt
from treadle.base.errors import IndexRangeError
from treadle.base.types import TensorType
from treadle.engine.execute import Executor
from treadle.engine.execute.arenas import LARGE, SHARED, rest
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.builder import trace_body
from treadle.ops.gather import Take
from treadle.ops.matmul import Matmul

SIDE = 256
Y = np.random.default_rng(1).normal(size=(SIDE, SIDE)).astype("float32") / 16


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nobody else's arenas are there, and none of a test stays."""
    gc.collect()
    SHARED.clear()
    yield
    gc.collect()
    assert free() == []


def free() -> list[int]:
    """Sizes of the arenas that nobody uses."""
    return [a.buffer.nbytes for a in SHARED._free]


def started(body: Any, types: list[TensorType], options: Options | None = None) -> Executor:
    runner = Stages(trace_body(body, types, "body"), options=options).compile()
    assert isinstance(runner, Executor)
    return runner


def products(rows: int, **options: Any) -> Executor:
    """x y y y: two products of so many rows lie in the arena."""

    def body(x: Any, y: Any) -> Any:
        return Matmul()(Matmul()(Matmul()(x, y), y), y)

    return started(body, [f32(rows, SIDE), f32(SIDE, SIDE)], Options(**options))


def operand(rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(rows, SIDE)).astype("float32")


def right(found: list[Any], x: np.ndarray[Any, Any]) -> bool:
    return np.allclose(found[0], x @ Y @ Y @ Y, rtol=1e-3, atol=1e-3)


def test_who_rests_has_none_until_the_next_run() -> None:
    program = products(1024)
    for seed in (0, 1):
        x = operand(1024, seed)
        assert right(program.run([x, Y]), x)
        assert len(free()) == 1
        rest()
        assert free() == []


def test_programs_that_take_turns_have_one_arena_of_the_largest() -> None:
    sizes = (1024, 4096, 2048, 1536, 4096)
    programs = [products(rows) for rows in sizes]
    for program, rows in zip(programs, sizes, strict=True):
        assert right(program.run([operand(rows), Y]), operand(rows))
    most = max(p.peak for p in programs)
    assert len(free()) == 1 and most <= free()[0] <= most + most // 8


def test_small_arenas_stay_with_their_programs() -> None:
    program = products(256)
    assert program.peak < LARGE
    assert right(program.run([operand(256), Y]), operand(256))
    assert free() == [] and program._frames[0].arena is not None


def test_results_are_not_in_what_others_use_next() -> None:
    one, other = products(2048), products(1024)
    found = one.run([operand(2048), Y])
    kept = found[0].copy()
    other.run([operand(1024, 1), Y])
    one.run([operand(2048, 2), Y])
    assert (found[0] == kept).all() and right(found, operand(2048))


def test_threads_that_run_at_once_have_an_arena_each() -> None:
    programs = {rows: products(rows) for rows in (1024, 2048)}
    wrong: list[int] = []

    def work(rows: int, seed: int) -> None:
        x = operand(rows, seed)
        expected = programs[rows].run([x, Y])[0]
        for _ in range(12):
            if not (programs[rows].run([x, Y])[0] == expected).all():
                wrong.append(rows)
        if not right([expected], x):
            wrong.append(rows)

    threads = [threading.Thread(target=work, args=((1024, 2048)[i % 2], i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and 1 <= len(free()) <= 4


def test_arenas_go_with_the_programs_that_needed_them() -> None:
    small, large = products(1024), products(4096)
    large.run([operand(4096), Y])
    assert free()[0] >= large.peak
    del large
    gc.collect()
    assert free() == []
    small.run([operand(1024), Y])
    assert free() == [small.peak]


def test_what_is_kept_of_a_large_arena_goes_where_small_runs_follow() -> None:
    small, large = products(1024), products(8192)
    large.run([operand(8192), Y])
    for _ in range(140):
        small.run([operand(1024), Y])
    assert free() == [small.peak]
    assert right(large.run([operand(8192), Y]), operand(8192))


def test_ops_of_the_host_see_memory_that_nobody_else_has() -> None:
    program = products(2048, engines=("reference",))
    assert program.peak >= LARGE
    assert right(program.run([operand(2048), Y]), operand(2048))
    assert free() == [] and program._frames[0].arena is not None


def test_a_check_reads_the_arena_of_its_own_run() -> None:
    def body(x: Any, y: Any, i: Any) -> Any:
        x = Matmul()(Matmul()(x, y), y)
        return Matmul()(Take(0)(x, i), y)

    index = TensorType(dt.int32, (2048,))
    program = started(body, [f32(2048, SIDE), f32(SIDE, SIDE), index])
    other = products(4096)
    numbers = np.arange(2048, dtype=np.int32)
    x = operand(2048)
    assert program.peak >= LARGE
    for wrong in (2048, 5000, -3000):
        numbers[7] = wrong
        with pytest.raises(IndexRangeError, match=f"index {wrong} is out of range"):
            program.run([x, Y, numbers])
        assert len(free()) == 1
        assert right(other.run([operand(4096), Y]), operand(4096))
    numbers[7] = 7
    assert right(program.run([x, Y, numbers]), x)


def test_a_forked_process_runs_with_a_copy() -> None:
    program = products(1024)
    program.run([operand(1024), Y])
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1) as pool:
        assert pool.apply(_run_there, (program.peak,))


def _run_there(peak: int) -> bool:
    """Run programs in a child, the first of which finds the parent's arena."""
    assert free() == [peak]
    made = products(1024)
    good = right(made.run([operand(1024, 3), Y]), operand(1024, 3))
    return good and free() == [peak]
