"""Random streams by handle, as definitions of random ops name them.

A definition's `seed` is that of its stream in MegEngine, which only compares the two; here it says
nothing.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import treadle.random as rand
from treadle.random import RNG

_STREAMS: dict[int, RNG] = {}
_HANDLES = itertools.count(1)


def new_rng_handle(comp_node: Any, seed: int) -> int:
    """A stream of its own, on a device; its number."""
    handle = next(_HANDLES)
    _STREAMS[handle] = RNG(seed, str(comp_node))
    return handle


def delete_rng_handle(handle: int) -> None:
    """Forget a stream."""
    _STREAMS.pop(handle, None)


def stream_of(definition: SimpleNamespace) -> Any:
    """Functions that draw from the stream of a definition, or from that of the program.

    Raises:
        ValueError: there is no stream with its handle.
    """
    if not definition.handle:
        return rand
    if definition.handle not in _STREAMS:
        problem = f"there is no random stream {definition.handle}"
        raise ValueError(f"{problem}; new_rng_handle makes one, and delete_rng_handle ends it")
    return _STREAMS[definition.handle]


__all__ = ["delete_rng_handle", "new_rng_handle", "stream_of"]
