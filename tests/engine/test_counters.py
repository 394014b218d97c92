"""Counters: what runs cost at the border to Python, one by one and in sink mode."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
from treadle.engine import Session, finalize, initialize
from treadle.engine.execute.counters import Counters
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.parser import parse
from treadle.inspect import Inspected
from treadle.jit import Compiled, sink

LINE = "graph(%x: float32[4]) { %0 = exp(%x) : float32[4] return %0 }"


def step_of() -> Compiled[Any, Any]:
    w = mge.Parameter(np.ones((8, 4), "float32"))
    gm = mge.autodiff.GradManager().attach(w)
    opt = mge.optimizer.SGD([w], lr=0.1)

    @mge.jit.compile
    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.exp(F.matmul(x, w)).mean()
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    return step


def test_python_is_entered_less_often_per_iteration_in_sink_mode() -> None:
    batches = [mge.tensor(np.full((2, 8), i / 10, "float32")) for i in range(6)]
    single, sunk = step_of(), step_of()
    one_by_one = [single(x).item() for x in batches]
    assert [loss.item() for loss in sink(sunk, batches, 3)] == [one_by_one[2], one_by_one[5]]
    alone, together = single.counters, sunk.counters
    assert alone.iterations == together.iterations == 6
    assert (alone.entries, together.entries) == (6, 2)
    assert together.transfers < alone.transfers
    assert alone.launches == together.launches > 0


def test_inputs_that_stay_are_not_given_again() -> None:
    w = mge.Parameter(np.ones((8, 4), "float32"))

    @mge.jit.compile
    def apply(x: mge.Tensor) -> mge.Tensor:
        return F.matmul(x, w)

    assert apply.counters == Counters()
    apply(F.ones((2, 8)))
    first = apply.counters
    assert (first.transfers, first.entries, first.launches) == (3, 1, 1)
    apply(F.ones((2, 8)))
    again = apply.counters - first
    assert (again.transfers, again.entries, again.iterations) == (2, 1, 1)


def test_an_op_on_the_host_is_one_more_entry() -> None:
    program = Inspected(Stages(parse(LINE), options=Options(engines=("reference",))))
    executor = program.compile()
    for _ in range(3):
        executor.run([np.zeros(4, np.float32)])
    assert executor.counters == Counters(3, 6, 6, 0)


def test_threads_lose_no_count() -> None:
    executor = Stages(parse(LINE)).running

    def many() -> None:
        for _ in range(200):
            executor.run([np.zeros(4, np.float32)])

    threads = [threading.Thread(target=many) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert executor.counters == Counters(800, 800, 1600, 800)


def test_programs_from_the_cache_count_launches_too() -> None:
    for _ in range(2):
        executor = Stages(parse(LINE)).running
        executor.run([np.zeros(4, np.float32)])
        assert executor.counters == Counters(1, 1, 2, 1)
    assert executor.loaded.plan.steps == ()  # The second one passed no stage.


def test_a_session_counts_by_graph() -> None:
    initialize()
    with Session() as session:
        session.add_graph(0, parse(LINE))
        assert session.counters(0) == Counters()
        session.run_graph(0, [np.zeros(4)])
        assert session.counters(0).iterations == 1
    finalize()


def test_text_is_per_iteration() -> None:
    text = str(Counters(4, 2, 10, 8))
    assert text == "4 iterations; per iteration 0.5 entries, 2.5 transfers, 2 launches"
