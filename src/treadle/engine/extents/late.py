"""Parts that a program for many extents needs late, or never: numbers of a plan, other orders.

A program that comes out of the cache runs without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.base.arithmetic import Rows, Words
    from treadle.engine.execute.frames import At
    from treadle.engine.plan import HostTask, Plan
    from treadle.engine.scheme import Registers


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
