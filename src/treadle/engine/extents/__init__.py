"""Programs for many extents: a plan whose numbers are expressions, and what a call makes of it.

This is the door to what makes such programs and looks into them: one that comes out of the cache
needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.base.arithmetic import Rows, Words
    from treadle.engine.execute.frames import At
    from treadle.engine.extents.regime import Origin, Regime
    from treadle.engine.plan import HostTask, Plan
    from treadle.engine.scheme import Registers

__all__ = ["at_extents", "compile_regime", "placed", "prove", "refusal", "task_at"]


def refusal(origin: Origin) -> str:
    """Return what keeps a graph from having programs for many extents, as known beforehand."""
    from treadle.engine.extents import making

    return making.refusal(origin)


def compile_regime(origin: Origin, extents: Mapping[str, int], number: int) -> Regime | str:
    """A program for these extents, and for all that answer alike; or why there is none.

    Args:
        origin: of the program.
        extents: of the call that it is compiled for, by symbol.
        number: of the program among those of its cell, for the cache.
    """
    from treadle.engine.extents import making

    return making.compile_regime(origin, extents, number)


def placed(at: Registers, lives: Sequence[tuple[int, int]], registers: Words) -> Rows:
    """Code that places buffers of any sizes in the order that suits those that registers hold."""
    from treadle.engine.extents import ordering

    return ordering.placed(at, lives, registers)


def at_extents(plan: Plan, extents: Mapping[str, int], at: At) -> Plan:
    """A plan whose numbers are expressions with those of certain extents."""
    from treadle.engine.extents import numbers

    return numbers.at_extents(plan, extents, at)


def prove(plan: Plan) -> None:
    """Hold a plan with numbers against what memory and launches together promise.

    Raises:
        CompileError: it breaks a promise.
    """
    from treadle.engine.extents import numbers

    numbers.prove(plan)


def task_at(task: HostTask, extents: Mapping[str, int]) -> HostTask:
    """A host task whose numbers are expressions with those of certain extents."""
    from treadle.engine.extents import numbers

    return numbers.Numbers(extents).task(task)
