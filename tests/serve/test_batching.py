from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

import numpy as np
import pytest
from tests.serve.running import Array, double, doubling

from treadle.serve.batching import BatchRows, Outcome, Worker
from treadle.serve.metrics import Metrics, ModelMetrics
from treadle.serve.protocol import Disconnected, RequestRefusal

Sizes = [(n, 3) for n in (1, 2, 3, 4)]


class Model:
    """Doubles, notes its batches, and waits at each run until it is let go."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.fails: Callable[[Array], bool] = lambda x: False
        self.gate.set()
        self.served = doubling(Sizes, most=4, program=self.program)
        self.batches.clear()

    def program(self, arrays: Sequence[Array]) -> list[Array]:
        self.batches.append(len(arrays[0]))
        self.entered.set()
        assert self.gate.wait(300)
        if self.fails(arrays[0]):
            raise RuntimeError("on purpose")
        return double(arrays)


class Asked:
    """A worker, and the outcomes of what was put to it."""

    def __init__(self, model: Model, delay: float = 0.0, most_waiting: int = 64) -> None:
        metrics = ModelMetrics(Metrics(), "m", "1")
        self.worker = Worker(model.served, metrics, delay, most_waiting)
        self.outcomes: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        self.count = 0

    def submit(self, x: Array, gone: bool = False, alone: bool = False) -> None:
        number = self.count
        rows = 0 if alone else len(x)
        done = lambda outcome: self.outcomes.put((number, outcome))  # noqa: E731
        self.worker.submit(BatchRows([x], rows, done, lambda: gone))
        self.count += 1

    def take(self) -> tuple[int, Outcome]:
        return self.outcomes.get(timeout=300)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def asked(model: Model) -> Iterator[Asked]:
    made = Asked(model)
    yield made
    model.gate.set()
    made.worker.close(20)


def rows(n: int, value: float) -> Array:
    return np.full((n, 3), value, np.float32)


def hold(model: Model, asked: Asked) -> None:
    """Have the worker in a run, which request 0 is alone in."""
    model.gate.clear()
    model.entered.clear()
    asked.submit(rows(1, 0))
    assert model.entered.wait(300)


def test_what_comes_during_a_run_is_joined_after_it(model: Model, asked: Asked) -> None:
    hold(model, asked)
    for n, value in ((1, 1), (2, 2), (1, 3), (3, 4)):
        asked.submit(rows(n, value))
    model.gate.set()
    for number, n in ((0, 1), (1, 1), (2, 2), (3, 1), (4, 3)):
        found, outcome = asked.take()
        assert found == number and isinstance(outcome, list)
        assert (outcome[0] == rows(n, 2 * number)).all()
    assert model.batches == [1, 4, 3]


def test_a_request_that_runs_alone_is_not_joined_and_keeps_its_turn(
    model: Model, asked: Asked
) -> None:
    hold(model, asked)
    asked.submit(rows(1, 1))
    asked.submit(rows(1, 2), alone=True)
    asked.submit(rows(1, 3))
    model.gate.set()
    assert [asked.take()[0] for _ in range(4)] == [0, 1, 2, 3]
    assert model.batches == [1, 1, 1, 1]


def test_a_request_waits_for_others_no_longer_than_the_delay(model: Model) -> None:
    asked = Asked(model, delay=0.05)
    asked.submit(rows(1, 1))
    assert asked.take()[0] == 0
    patient = Asked(model, delay=60)
    for number in range(4):  # Four fill the batch, so that nobody waits for a minute.
        patient.submit(rows(1, number))
    assert sorted(patient.take()[0] for _ in range(4)) == [0, 1, 2, 3]
    assert model.batches == [1, 4]
    asked.worker.close(20)
    patient.worker.close(20)


def test_one_request_that_fails_does_not_fail_those_beside_it(model: Model, asked: Asked) -> None:
    model.fails = lambda x: bool((x == 2).any())
    hold(model, asked)
    for value in (1, 2, 3):
        asked.submit(rows(1, value))
    model.gate.set()
    outcomes = dict(asked.take() for _ in range(4))
    assert isinstance(outcomes[2], RuntimeError)
    assert all(isinstance(outcomes[i], list) for i in (0, 1, 3))


def test_nothing_is_run_for_those_who_have_gone(model: Model, asked: Asked) -> None:
    hold(model, asked)
    asked.submit(rows(1, 1), gone=True)
    asked.submit(rows(1, 2))
    model.gate.set()
    assert asked.take()[0] == 0
    number, outcome = asked.take()
    assert number == 1 and isinstance(outcome, Disconnected)
    assert asked.take()[0] == 2
    assert model.batches == [1, 1]


def test_a_full_queue_refuses(model: Model) -> None:
    asked = Asked(model, most_waiting=2)
    hold(model, asked)
    asked.submit(rows(1, 1))
    asked.submit(rows(1, 2))
    with pytest.raises(RequestRefusal, match="2 requests wait") as caught:
        asked.submit(rows(1, 3))
    assert caught.value.status == 429 and caught.value.headers
    model.gate.set()
    assert [asked.take()[0] for _ in range(3)] == [0, 1, 2]
    asked.worker.close(20)


def test_closing_runs_what_was_submitted(model: Model) -> None:
    asked = Asked(model)
    hold(model, asked)
    asked.submit(rows(1, 1))
    threading.Timer(0.05, model.gate.set).start()
    asked.worker.close(20)
    assert [asked.take()[0] for _ in range(2)] == [0, 1]
