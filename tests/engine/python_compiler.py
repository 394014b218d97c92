"""A compiler whose kernels are the oracles of the ops: it shows what the engine plans, and runs it.

It interprets programs step by step on raw memory, so wrong addresses, orders and overlaps show as
wrong results.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.api import Support, no
from treadle.backends.program import (
    Host,
    Jump,
    Launch,
    Lowered,
    Program,
    Ref,
    Run,
    Together,
    runs_of,
)
from treadle.base.types import TensorType
from treadle.ops.control import ControlFlow
from treadle.ops.families import Elementwise
from treadle.ops.movement import Reshape
from treadle.ops.op import Op, as_tuple
from treadle.ops.transfer import Identity


@dataclass(frozen=True, eq=False)
class PythonKernel:
    """An op on memory: arguments are the addresses of its inputs, then of its outputs."""

    op: Op
    types: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    @property
    def name(self) -> str:
        return self.op.name

    def __call__(self, addresses: Sequence[int]) -> None:
        ins = [array_at(a, t) for a, t in zip(addresses, self.types, strict=False)]
        outs = addresses[len(self.types) :]
        made = as_tuple(self.op.reference(*[x.copy() for x in ins]))
        for result, address, type_ in zip(made, outs, self.results, strict=True):
            array_at(address, type_)[...] = result


def array_at(address: int, type_: TensorType) -> npt.NDArray[Any]:
    """The array of a type in memory."""
    if not type_.nbytes:
        return np.empty(type_.shape, type_.dtype.numpy)
    raw = (ctypes.c_uint8 * type_.nbytes).from_address(address)
    return np.frombuffer(raw, type_.dtype.numpy).reshape(type_.shape)


class PythonExecutable:
    """Runs a program of `PythonKernel`s."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.runs = 0

    def run(self, bases: npt.NDArray[np.int64], start: int = 0, /) -> int:
        self.runs += 1
        at = start
        if not start:
            for base, x, y in self.program.sums:
                bases[base] = bases[x] + bases[y]
        steps = self.program.steps
        while at < len(steps):
            step = steps[at]
            if isinstance(step, Host):
                return at
            if isinstance(step, Run | Together):
                # Members from the last to the first: their order must not matter.
                for run in reversed(tuple(runs_of((step,)))):
                    self.launch(run, bases)
                at += 1
            elif isinstance(step, Jump):
                taken = (
                    step.unless is None
                    or not ctypes.c_uint8.from_address(
                        int(bases[step.unless.base]) + step.unless.offset
                    ).value
                )
                at = step.target if taken else at + 1
        return -1

    def launch(self, run: Run, bases: npt.NDArray[np.int64]) -> None:
        """Run a kernel once."""
        run.kernel(
            [a if isinstance(a, int) else int(bases[a.base]) + int(a.offset) for a in run.arguments]
        )

    def stored(self) -> bytes:
        return b""

    def call(self, bases: Any, arrays: Any, given: int, at: int, watch: Any, /) -> int:
        return -4  # objects look changed to whoever cannot look at them

    def repeat(
        self, bases: npt.NDArray[np.int64], varying: npt.NDArray[np.int64], /
    ) -> tuple[int, int]:
        for made, row in enumerate(varying):
            bases[: len(row)] = row
            reached = self.run(bases)
            if reached >= 0:
                return made, reached
        return len(varying), -1

    def profile(
        self, bases: npt.NDArray[np.int64], times: npt.NDArray[np.int64], start: int = 0, /
    ) -> int:
        began = time.monotonic_ns()
        reached = self.run(bases, start)
        for i, step in enumerate(self.program.steps):
            if isinstance(step, Run | Together):
                times[i] = began + i, began + i + 1, times[i, 2] + 1, times[i, 3] + 1
        return reached


class PythonCompiler:
    """Lowers every op to its oracle, views and in-place results included.

    Args:
        refused: names of ops that are left to the host.
    """

    target = "python"

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.refused = frozenset(refused)
        self.built: list[PythonExecutable] = []

    def keeps(self, name: str, /) -> bool:
        return name in ("attention", "attention_grad")

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        if op.name in self.refused or isinstance(op, ControlFlow):
            return no("op", "refused by the test")
        if isinstance(op, (Reshape, Identity)):
            return Lowered(views=((0, 0, 0),))
        results = op.infer(*types)
        kernel = PythonKernel(op, tuple(types), results)
        refs = [Ref("input", i) for i in range(len(types))]
        refs += [Ref("output", i) for i in range(len(results))]
        in_place = ()
        if isinstance(op, Elementwise):
            in_place = tuple(
                (i, 0)
                for i, t in enumerate(types)
                if (t.dtype, t.shape) == (results[0].dtype, results[0].shape)
            )
        return Lowered((Launch(kernel, tuple(refs)),), in_place=in_place)

    def build(self, program: Program, /) -> PythonExecutable:
        self.built.append(PythonExecutable(program))
        return self.built[-1]

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any], /) -> npt.NDArray[Any]:
        return np.empty(tuple(shape), dtype)

    def restore(self, stored: bytes, /) -> None:
        return None

    def save(self, key: str, data: bytes, /) -> None:
        """Nothing is kept."""

    def saved(self, key: str, /) -> None:
        return None

    def inspect(self, launch: Launch, form: str, /) -> str:
        return repr(launch.kernel)
