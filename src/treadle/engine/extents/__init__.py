"""Programs for many extents: a plan whose numbers are expressions, and what a call makes of it.

This is the door to what makes such programs: one that comes out of the cache needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.engine.extents.regime import OpenProgram, SharedGraph

__all__ = ["compile_regime", "refusal"]


def refusal(origin: SharedGraph) -> str:
    """Return what keeps a graph from having programs for many extents, as known beforehand."""
    from treadle.engine.extents import making

    return making.refusal(origin)


def compile_regime(
    origin: SharedGraph, extents: Mapping[str, int], number: int
) -> OpenProgram | str:
    """A program for these extents, and for all that answer alike; or why there is none.

    Args:
        origin: of the program.
        extents: of the call that it is compiled for, by symbol.
        number: of the program among those of its cell, for the cache.
    """
    from treadle.engine.extents import making

    return making.compile_regime(origin, extents, number)
