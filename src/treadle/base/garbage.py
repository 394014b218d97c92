"""Python's garbage collector, held back while many objects are made that live on for a while."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RARE = 50_000, 10, 100
"""New objects per collection of the young, and so on: what a large program's stages make in a pass.
Graphs that a pass has replaced are cycles, so that switching the collector off would keep all."""
_LOCK = threading.Lock()
_inside = 0
_usual = gc.get_threshold()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage seldom inside the block; blocks of several threads may overlap.

    The stages make objects by the ten thousand. With the usual thresholds a tenth of their time
    goes into looking, again and again, at objects that are still in use.
    """
    global _inside, _usual
    with _LOCK:
        if not _inside:
            _usual = gc.get_threshold()
            if 0 < _usual[0] < _RARE[0]:  # Zero stands for a collector that is off.
                gc.set_threshold(*_RARE)
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            # Whoever has set other thresholds meanwhile meant it.
            if not _inside and gc.get_threshold() == _RARE:
                gc.set_threshold(*_usual)


def promotions() -> int:
    """Return how often the collector has moved young objects to its oldest generation."""
    return sum(g["collections"] for g in gc.get_stats()[1:])


def collect_young(since: int) -> None:
    """Collect the garbage that was made since `promotions()` gave a number.

    That takes time in proportion to what was made; all objects are looked at only where some of
    these may have been moved meanwhile.
    """
    if promotions() == since:
        gc.collect(1)
    else:
        gc.collect()
