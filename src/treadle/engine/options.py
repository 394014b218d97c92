"""What a compilation is asked for: one frozen value that every stage reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.base.env import CHECK
from treadle.base.errors import GraphError


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one compilation; equal options and equal graphs give equal programs.

    Attributes:
        level: 0 runs every op as it stands, 1 simplifies and fuses what is plainly better,
            2 chooses fusions by modelled cost, 3 also spends time on what rarely pays.
        fast: allow rewrites that hold in real arithmetic only (another order of summation).
        reuse_memory: values that do not live at the same time may share memory.
        fusion: make groups of ops; without it every op is a kernel of its own.
        disabled: names of passes that are left out.
        engines: engines to choose from, best first; empty means all that serve the device.
        streams: how many streams steps may be spread over, where that is predicted to pay.
        check: verify the graph after every pass, and the plan of memory; between stages the graph
            is verified in any case. On where the environment sets TREADLE_CHECK=1.
    """

    level: int = 2
    fast: bool = False
    reuse_memory: bool = True
    fusion: bool = True
    disabled: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    streams: int = 1
    check: bool = field(default_factory=lambda: CHECK.get() == "1")

    def __post_init__(self) -> None:
        if self.level not in (0, 1, 2, 3):
            raise GraphError(
                "options", f"there is no optimization level {self.level}", hint="use 0, 1, 2 or 3"
            )
        if self.streams < 1:
            raise GraphError("options", f"{self.streams} streams", hint="there is at least one")

    def allows(self, name: str, level: int = 0) -> bool:
        """Whether a pass of this name, which starts at `level`, is to run."""
        return self.level >= level and name not in self.disabled
