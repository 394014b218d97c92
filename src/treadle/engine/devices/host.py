"""Programs without kernels: every step returns to Python, where some engine's op runs.

That is what is left where the options name no engine that compiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from treadle.backends.api import Support, no
from treadle.backends.program import Host, Launch, Lowered, Program
from treadle.base.array import Array
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.ops.op import Op


class HostCompiler:
    """Compiles nothing, so that all ops of a program are left to the host."""

    target = "host"

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        """Refuse every op."""
        return no("policy", "no engine that compiles is among those to choose from")

    def keeps(self, name: str, /) -> bool:
        """Return True: composites run whole, as the user wrote them."""
        return True

    def build(self, program: Program, /) -> HostExecutable:
        """Return an executable of the program's host tasks.

        Raises:
            CompileError: it has kernels.
        """
        if not all(isinstance(step, Host) for step in program.steps):
            raise CompileError("host", "a program for the host alone has a kernel")
        return HostExecutable(len(program.steps))

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any], /) -> Array:
        """Memory for a result."""
        return np.empty(shape, dtype)

    def restore(self, stored: bytes, /) -> HostExecutable | None:
        """Return None: nothing is kept."""
        return None

    def save(self, key: str, data: bytes, /) -> None:
        """Save nothing: such programs are made anew."""

    def saved(self, key: str, /) -> bytes | None:
        """Return None: nothing is saved."""
        return None

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        """Return an empty text: there are no launches."""
        return ""


class HostExecutable:
    """So many host tasks, one after the other."""

    def __init__(self, count: int) -> None:
        self._count = count

    def run(self, bases: npt.NDArray[np.int64], start: int = 0, /) -> int:
        """The next task, -1 after the last."""
        return start if start < self._count else -1

    def call(
        self,
        bases: npt.NDArray[np.int64],
        arrays: tuple[Any, ...],
        given: int,
        at: int,
        watch: npt.NDArray[np.int64],
        /,
    ) -> int:
        """Run nothing, since nothing here looks at objects."""
        return -2

    def repeat(
        self, bases: npt.NDArray[np.int64], varying: npt.NDArray[np.int64], /
    ) -> tuple[int, int]:
        """Return the number of runs, and -1: programs without host tasks do nothing in each."""
        return len(varying), -1

    def profile(
        self, bases: npt.NDArray[np.int64], times: npt.NDArray[np.int64], start: int = 0, /
    ) -> int:
        """Run as `run` does; the host tasks' runner measures them."""
        return self.run(bases, start)

    def stored(self) -> bytes:
        """Return no bytes: such programs are made anew."""
        return b""
