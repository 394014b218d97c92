"""Several threads that call one function at once."""

import itertools
import threading

import pytest

from treadle.engine.execute.callers import call_together


def test_callers_call_at_the_same_time() -> None:
    both, calls = threading.Barrier(2), itertools.count()

    def call() -> None:
        both.wait(300)  # breaks where one calls after the other
        next(calls)

    assert call_together(call, 2, 3) > 0
    assert next(calls) == 6


def test_what_a_call_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        call_together(lambda: 1 / 0, 2, 1)
