"""Sink mode: many iterations per native call, with the results of single calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.engine.python_compiler import PythonCompiler

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.base.errors import CompileError
from treadle.jit import Compiled, TraceError, sink
from treadle.optimizer import Adam


def batches(n: int) -> Iterator[tuple[mge.Tensor, mge.Tensor]]:
    rng = np.random.default_rng(0)
    for _ in range(n):
        yield (
            mge.tensor(rng.standard_normal((4, 5), "float32")),
            mge.tensor(rng.integers(0, 3, 4).astype("int32")),
        )


def training() -> tuple[M.Module, Compiled]:
    mge.random.seed(1)
    net = M.Sequential(M.Linear(5, 8), M.ReLU(), M.Dropout(0.3), M.Linear(8, 3))
    gm, optimizer = GradManager().attach(net.parameters()), Adam(net.parameters(), 0.01)

    @mge.jit.compile
    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(net(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    return net, step


@pytest.mark.parametrize("k", [1, 3, 4, 10])
def test_sink_equals_single_calls_bit_for_bit(k: int, compiler: PythonCompiler) -> None:
    one, step = training()
    losses = [step(x, y).item() for x, y in batches(10)]
    other, again = training()
    sunk = [t.item() for t in sink(again, batches(10), k)]
    assert sunk == [losses[min(i + k, 10) - 1] for i in range(0, 10, k)]
    for mine, theirs in zip(other.parameters(), one.parameters(), strict=True):
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()


def test_batches_of_other_shapes_are_other_programs() -> None:
    total = mge.tensor(0.0)

    @mge.jit.compile
    def add(x: mge.Tensor) -> mge.Tensor:
        total._reset(total + x.sum())
        return total * 1

    data = [mge.tensor(np.ones(n, "float32")) for n in (2, 2, 3, 3, 2)]
    assert [t.item() for t in sink(add, data, 5)] == [12.0]
    assert len(add.variants) == 2


def test_what_cannot_be_sunk_says_why(compiler: PythonCompiler) -> None:
    w = mge.Parameter([1.0])
    gm = GradManager().attach(w)

    @mge.jit.compile
    def accumulate(x: mge.Tensor) -> None:
        with gm:
            gm.backward((w * x).sum())

    accumulate(mge.tensor([1.0]))
    with pytest.raises(TraceError, match="gradients that accumulate"):
        list(sink(accumulate, [mge.tensor([1.0])] * 2, 2))
    compiler.refused = frozenset(("sort",))
    sort = mge.jit.compile(lambda x: F.sort(x)[0])
    with pytest.raises(CompileError, match="ops left to the host: sort"):
        list(sink(sort, [mge.tensor([2.0, 1.0])], 1))
    with pytest.raises(TraceError, match="takes a compiled function"):
        list(sink(len, [], 1))  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="0 iterations"):
        list(sink(sort, [], 0))


def test_an_error_in_the_data_is_raised_where_it_is_used() -> None:
    def broken() -> Iterator[mge.Tensor]:
        yield mge.tensor([1.0])
        raise OSError("the disk is gone")

    double = mge.jit.compile(lambda x: x * 2)
    found = sink(double, broken(), 1)
    assert next(found).item() == 2.0
    with pytest.raises(OSError, match="disk is gone"):
        next(found)


def test_stopping_early_ends_the_reader() -> None:
    double, read = mge.jit.compile(lambda x: x * 2), [0]

    def batches() -> Iterator[mge.Tensor]:
        for i in range(10**6):
            read[0] = i
            yield mge.tensor([float(i)])

    before = threading.active_count()
    found = sink(double, batches(), 2)
    assert [next(found).item() for _ in range(3)] == [2.0, 6.0, 10.0]
    found.close()
    for _ in range(1000):
        if threading.active_count() <= before:
            break
        time.sleep(0.02)
    assert threading.active_count() <= before, "the reader goes on"
    assert read[0] < 100
