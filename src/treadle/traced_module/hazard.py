"""Reports of what a trace cannot replay."""

from __future__ import annotations

from typing import Any

from treadle.base.loc import user_location
from treadle.base.log import get_logger
from treadle.tensor import Tensor


class Hazards:
    """Logs each line of the user's program once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, source: Any, name: str) -> None:
        """A method of a tensor or random generator gave Python a value, which is now fixed."""
        place = str(user_location())
        if place in self._reported:
            return
        self._reported.add(place)
        what = "a tensor was read" if isinstance(source, Tensor) else "an RNG object was called"
        get_logger("traced_module").warning(
            "%s: %s() of %s while tracing; branches and numbers that depend on it are fixed as "
            "they were taken",
            place,
            name.strip("_"),
            what,
        )
