"""Wrapping of launches on a device: time is counted, waits are added, failures name the op."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from treadle.backends.api import Support, no
from treadle.base.env import REPLAY
from treadle.base.errors import DeviceError, DeviceLost, OutOfMemory, TreadleError
from treadle.base.loc import user_location
from treadle.engine.eager import fallback, tally
from treadle.engine.eager.choice import Decision
from treadle.runtime.opened import OpenDevice
from treadle.runtime.synchronous import SYNCHRONOUS


class Launchable(Protocol):
    """A launch with the decision that it came of."""

    decision: Decision

    def __call__(self, *payloads: Any) -> Any:
        """Run the op."""
        ...


class Guarded:
    """A launch on a device, counted.

    Args:
        plan: what launches.
        device: where.
        again: a launch of the same op on the host, for the reason given.
    """

    __slots__ = ("_again", "_device", "_name", "_plan", "_recent", "_row", "decision")

    def __init__(
        self, plan: Launchable, device: OpenDevice, again: Callable[[Support], Launchable]
    ) -> None:
        self.decision = plan.decision
        self._plan = plan.__call__  # Bound once, since every launch comes by here.
        self._device = device
        self._recent = device.recent.append
        self._again = again
        self._name = plan.decision.op.name
        self._row = tally.ran(self._name, plan.decision.device)

    def __call__(self, *payloads: Any) -> Any:
        """Run the op."""
        began = perf_counter()
        try:
            made = self._plan(*payloads)
            self._recent(self._name)
            if SYNCHRONOUS.on:
                self._device.synchronize()
        except (DeviceError, OutOfMemory) as error:
            return self._failed(error, payloads)
        seconds, row = perf_counter() - began, self._row
        # Without a lock, which takes its time: threads change places at calls, not between these.
        row.calls += 1
        row.seconds += seconds
        return made

    def _failed(self, error: TreadleError, payloads: tuple[Any, ...]) -> Any:
        """Raise, or run the op on the host where the user asks for that."""
        explained = self._explained(error)
        lost = isinstance(explained, DeviceLost)
        if fallback.retries() and (not lost or all(p.on_host for p in payloads)):
            return self._again(no("failure", explained.problem))(*payloads)
        hint = "" if lost else self._replay(payloads, explained.problem)
        if hint:
            explained.add_note(f"  {hint}")
        try:
            if explained is error:
                raise error
            raise explained from error
        finally:
            del explained, error  # or they and this frame would hold each other, and the operands

    def _replay(self, payloads: tuple[Any, ...], why: str) -> str:
        """Return where a script is that runs the op again, if one is asked for."""
        if not REPLAY.get():
            return ""
        decision = self.decision
        try:
            arrays = [p.host() for p in payloads]
        except TreadleError:
            return ""
        # Graphs and their text are not for programs in which nothing fails.
        from treadle.graph.replay import graph_of, write_if_asked

        graph = graph_of(decision.op, decision.types)
        return write_if_asked(graph, arrays, decision.device, why)

    def _explained(self, error: TreadleError) -> TreadleError:
        """The error with the op's name and operands, and the device out of use if it is gone."""
        decision, device = self.decision, self._device
        if error.where == self._name and not isinstance(error, DeviceLost):
            return error
        saw = "; ".join(s for s in (decision.op.saw(decision.types), error.saw) if s)
        problem = error.problem
        if isinstance(error, DeviceLost) and not device.lost:
            told = device.failed(error)
            error, problem = told, told.problem
        problem = problem if device.name in problem else f"{device.name}: {problem}"
        return type(error)(self._name, problem, saw=saw, hint=error.hint, at=user_location())
