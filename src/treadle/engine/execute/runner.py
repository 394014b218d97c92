"""The interface of runners of programs, whatever they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from treadle.engine.execute.counters import Counters


class Runner(Protocol):
    """A program that is ready to be executed on payloads."""

    @property
    def counters(self) -> Counters:
        """Cost of all runs so far at the program's border."""
        ...

    def run(self, inputs: Sequence[Any], varying: int = 0, version: object = None) -> list[Any]:
        """Run once.

        Args:
            inputs: payloads of the program's input types, on its device; small ones that Python
                makes may be on the host.
            varying: how many of the first ones may be others than those of the last run.
            version: names the rest: as long as it is the same object, so are they. None: all may
                be others.

        Returns:
            New payloads, one per result.
        """
        ...

    def close(self) -> None:
        """Give memory back that is kept between runs; running again makes it anew."""
        ...
