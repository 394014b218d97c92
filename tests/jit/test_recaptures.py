"""Functions that are captured again and again say so, and captures look at young objects only."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle.base.log import get_logger
from treadle.jit.compiled import signature
from treadle.jit.recaptures import MANY, changed


def calls(make: Callable[[int], tuple[Any, ...]]) -> None:
    """More calls than programs pass in silence, each with arguments of its own."""
    made = mge.jit.compile(lambda x, *rest: x * 2 + (rest[0] if rest else 0))
    for i in range(MANY + 4):
        made.lower(*make(i))


@contextmanager
def listening(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What the package logs arrives, whatever it does with it besides."""
    logger = get_logger("jit")
    logger.addHandler(caplog.handler)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)


X = np.ones((2, 3), "float32")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda i: (mge.tensor(X), 0.1 * i), r"another Python number, argument 1: .*mge.tensor\("),
        (lambda i: (mge.tensor(X), i), "another Python number, argument 1: 7, then 8"),
        (lambda i: (mge.tensor(np.ones((1,) * i)),), r"another shape, .*, 1\); .*dynamic="),
        (lambda i: (mge.tensor(X), *[1.0] * i), "another structure"),
    ],
)
def test_many_programs(
    make: Callable[[int], tuple[Any, ...]], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(caplog):
        calls(make)
    told = {r.getMessage() for r in caplog.records if "program number" in r.getMessage()}
    assert len(told) == 1 and re.search(says, told.pop())


def test_shapes_that_stay_numbers_by_wish(caplog: pytest.LogCaptureFixture) -> None:
    made = mge.jit.compile(dynamic=False)(lambda x: x * 2)
    with listening(caplog):
        for n in range(MANY + 4):
            made.lower(mge.tensor(np.ones(n + 1)))
    (told,) = {r.getMessage() for r in caplog.records if "program number" in r.getMessage()}
    assert re.search(r"another shape, .*\(9,\); .*dynamic=", told)


def test_extents_whose_number_is_asked_for_are_told_with_the_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = mge.jit.compile(lambda x: x * len(range(x.shape[0])))
    with listening(caplog):
        for n in range(MANY + 4):
            made.lower(mge.tensor(np.ones((n + 1, n + 2))))
    (told,) = {r.getMessage() for r in caplog.records if "program number" in r.getMessage()}
    assert re.search(r"another shape, .*arg0_0 at .*test_recaptures\.py:\d+", told), told
    assert "arg0_1" not in told


def test_extents_with_programs_of_their_own_are_told_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = mge.jit.compile(dynamic=True)(lambda x: x * 2)
    with listening(caplog):
        for n in range(2, MANY + 6):
            made.lower(mge.tensor(np.ones(n)))
    (told,) = {r.getMessage() for r in caplog.records if "one for each set" in r.getMessage()}
    assert "because one for many of them could not be: its compiler takes numbers" in told


def test_a_few_programs_pass_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    made = mge.jit.compile(lambda x, a: x * a)
    with listening(caplog):
        for _ in range(3):
            for i in range(MANY):
                made.lower(mge.tensor(X), 0.5 * i)
    assert not [r for r in caplog.records if "program number" in r.getMessage()]


def test_what_changed() -> None:
    x, half = mge.tensor(X), mge.tensor(X, "float16")
    keys = [signature(args, {})[0] for args in ((x,), (half,), (x, x), (x, half))]
    assert changed(keys[0], keys[1])[0] == "element type"
    assert changed(keys[2], keys[3])[0] == "tensor"
    assert changed(keys[0], keys[2])[0] == "structure"
    assert changed(keys[0], keys[0])[0] == "state"
    assert changed(("cast", "bfloat16", keys[0]), ("cast", "bfloat16", keys[1]))[0] != "state"
    assert changed(("recorded", keys[0]), ("recorded", keys[1]))[0] == "element type"


def test_a_trace_with_a_cycle_collects_what_is_young() -> None:
    """It went through all objects of the process in every call."""

    @mge.jit.trace
    def traced(x: Any) -> Any:
        y = x * 2
        ring: list[Any] = [y]
        ring.append(ring)
        return y + 1

    x, seen = mge.tensor(X), []
    traced(x)

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.collect()
    gc.callbacks.append(watch)
    try:
        result = traced(x)
    finally:
        gc.callbacks.remove(watch)
    assert seen and max(seen) < 2
    np.testing.assert_array_equal(result.numpy(), X * 2 + 1)
