"""Rare collections: what the collector is set to inside and after."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from treadle.base.garbage import rare_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back_after_the_outermost_block() -> None:
    with rare_collections():
        rare = gc.get_threshold()
        with rare_collections():
            assert gc.get_threshold() == rare
        assert gc.get_threshold() == rare
    assert rare[0] > 700
    assert gc.get_threshold() == (700, 10, 10)


def test_thresholds_come_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), rare_collections():
        raise ValueError("inside")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("usual", [(0, 10, 10), (10**6, 5, 5)])
def test_collectors_that_are_off_or_rarer_stay_so(usual: tuple[int, int, int]) -> None:
    gc.set_threshold(*usual)
    with rare_collections():
        assert gc.get_threshold() == usual
    assert gc.get_threshold() == usual


def test_thresholds_set_inside_stay() -> None:
    with rare_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
