"""Random functions over tensors, made by running them: eager results decide what fits.

A function is a list of steps on a growing list of values. Whether a value is exact (the same in any
order of rounding) is known, so that what jumps, such as comparisons and sorting, is applied to
exact values only, and results can be compared with a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.errors import TreadleError

Array = np.ndarray[Any, Any]
Run = Callable[..., Any]

TOLERANCE = {"float64": 1e-9, "float32": 5e-4, "float16": 4e-2, "bfloat16": 3e-1}
_PRECISION = ("exact", "float64", "float32", "float16", "bfloat16")
SHAPES = ((), (1,), (3,), (7,), (16,), (33,), (2, 3), (4, 1), (1, 5), (5, 8), (3, 3), (17, 4),
          (2, 3, 4), (3, 1, 5), (2, 8, 8), (1, 3, 6, 6), (2, 4, 5, 5), (2, 3, 4, 5),
          (0,), (0, 3), (2, 0, 4))  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One call: the values it takes, by number, and what runs.

    Attributes:
        name: for people.
        inputs: numbers of values.
        run: takes tensors, returns one or a tuple of them.
        jumps: whether a little change of its operands can change much.
        rounds: whether its result is rounded even where the operands are exact.
    """

    name: str
    inputs: tuple[int, ...]
    run: Run
    jumps: bool = False
    rounds: bool = False


@dataclass
class Function:
    """Steps over arguments and states; a call returns values and leaves states behind."""

    arguments: list[Array] = field(default_factory=list)
    states: list[Array] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    updates: list[tuple[int, int, str]] = field(default_factory=list)
    precision: list[str] = field(default_factory=list)

    def bound(self) -> tuple[Run, list[mge.Tensor]]:
        """A callable of the arguments, and the states it reads and rebinds."""
        states = [mge.tensor(a, dtype=a.dtype) for a in self.states]

        def function(*arguments: mge.Tensor) -> tuple[mge.Tensor, ...]:
            values = self.run([*arguments, *states])
            self.update(values, states)
            return tuple(values[i] for i in self.results)

        return function, states

    def gradients(self, twice: bool = False) -> Run:
        """A callable of the arguments that returns a loss and its gradients.

        Args:
            twice: also those of the sum of squares of the gradients.
        """
        chosen = [i for i, a in enumerate(self.arguments) if a.dtype.kind not in "biu"]

        def function(*arguments: mge.Tensor) -> tuple[mge.Tensor, ...]:
            given = list(arguments)
            leaves = [given[i] * 1 for i in chosen]
            for i, leaf in zip(chosen, leaves, strict=True):
                given[i] = leaf
            outer, inner = (GradManager().attach(leaves) for _ in range(2))
            with outer if twice else nullcontext():
                with inner:
                    loss = self._loss(given)
                    inner.backward(loss)
                first = [leaf.grad for leaf in leaves]
                for leaf in leaves:
                    leaf.grad = None
                known = [g.astype("float32") for g in first if g is not None]
                if twice and known:
                    outer.backward(sum(((g * g).sum() for g in known), loss * 0))
            second = [leaf.grad for leaf in leaves]
            return (loss, *[g for g in (*first, *second) if g is not None])

        return function

    def _loss(self, arguments: list[mge.Tensor]) -> mge.Tensor:
        values = self.run([*arguments, *[mge.tensor(a, dtype=a.dtype) for a in self.states]])
        total = mge.tensor(0.0)
        for i in self.results:
            kind = values[i]._kind.dtype
            if kind.is_float and values[i].size:
                total = total + F.tanh(values[i].astype("float32")).sum()
        return total

    def run(self, values: list[mge.Tensor]) -> list[mge.Tensor]:
        """All values."""
        held = list(values)
        for step in self.steps:
            made = step.run(*[held[i] for i in step.inputs])
            held += made if isinstance(made, (tuple, list)) else [made]
        return held

    def update(self, values: Sequence[mge.Tensor], states: Sequence[mge.Tensor]) -> None:
        """Rebind states."""
        for state, value, how in self.updates:
            if how == "reset":
                states[state]._reset(values[value])
            elif how == "whole":
                states[state][...] = values[value]
            else:
                states[state]._reset(states[state] * 0.5 + values[value])

    def __str__(self) -> str:
        lines = [f"v{i}: {a.dtype.name}{a.shape}" for i, a in enumerate(self.arguments)]
        n = len(lines)
        lines += [f"v{n + i}: state {a.dtype.name}{a.shape}" for i, a in enumerate(self.states)]
        lines += [f"{s.name}{tuple(f'v{i}' for i in s.inputs)}" for s in self.steps]
        return "\n".join([*lines, f"return {self.results}", f"update {self.updates}"])


class Generator:
    """Makes one function from a seed.

    Args:
        seed: of everything.
        special: put NaN, infinities and negative zeros into the arguments.
    """

    def __init__(self, seed: int, special: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.function = Function()
        self.values: list[mge.Tensor] = []
        self.special = special
        self.most = 3000
        """Elements of the largest value."""
        self.narrow = True
        """Whether 16-bit floats, and loops that have no gradient, are wanted."""
        self.floats: tuple[str, ...] = ()

    def array(self, shape: tuple[int, ...], kind: str) -> Array:
        """Data of small exact numbers."""
        rng = self.rng
        if kind == "bool":
            return np.asarray(rng.integers(0, 2, shape)).astype(bool)
        if kind.startswith(("int", "uint")):
            low = 0 if kind.startswith("u") else -6
            return np.asarray(rng.integers(low, 9, shape)).astype(kind)
        data = np.asarray(rng.integers(-12, 13, shape) / 4.0)
        if self.special:
            odd = np.array([np.nan, np.inf, -np.inf, -0.0])[rng.integers(0, 4, shape)]
            data = np.where(rng.random(shape) < 0.12, odd, data)
        return data.astype(mge.tensor(0.0).astype(kind).dtype)

    def add_input(self, array: Array, state: bool = False) -> None:
        """One more argument or, after all of those, state."""
        (self.function.states if state else self.function.arguments).append(array)
        self.values.append(mge.tensor(array, dtype=array.dtype))
        self.function.precision.append("exact")

    def pick(self, test: Callable[[mge.Tensor], bool], exact: bool = False) -> int | None:
        """The number of a value that passes, recent ones first of all."""
        found = [
            i
            for i, v in enumerate(self.values)
            if test(v) and (not exact or self.function.precision[i] == "exact")
        ]
        if not found:
            return None
        recent = found[-4:] if self.rng.random() < 0.6 else found
        return int(self.rng.choice(recent))

    def chance(self, p: float = 0.5) -> bool:
        """True with a probability."""
        return bool(self.rng.random() < p)

    def choice(self, items: Sequence[Any]) -> Any:
        """One of several."""
        return items[int(self.rng.integers(len(items)))]

    def add(self, step: Step | None) -> bool:
        """Keep a step if it runs and its results are small and tame."""
        if step is None:
            return False
        if step.jumps and any(self.function.precision[i] != "exact" for i in step.inputs):
            return False
        operands = [self.values[i] for i in step.inputs]
        try:
            with np.errstate(all="ignore"):
                made = step.run(*operands)
        except (TreadleError, AssertionError, IndexError):
            return False
        results = made if isinstance(made, (tuple, list)) else [made]
        if not all(self._tame(r) for r in results):
            return False
        precision = [self._precision(step, i, r) for i, r in enumerate(results)]
        self.function.steps.append(step)
        self.values += results
        self.function.precision += precision
        return True

    def _tame(self, x: mge.Tensor) -> bool:
        data = x.numpy()
        if data.size > self.most or data.dtype.kind == "c":
            return False
        if self.special or not x.size or data.dtype.kind == "b":
            return True
        wide = data.astype(np.float64)
        return bool(np.isfinite(wide).all() and np.abs(wide).max() < 300)

    def _precision(self, step: Step, number: int, result: mge.Tensor) -> str:
        """The coarsest rounding that a value has seen."""
        kind = result._kind.dtype.name
        seen = max((_PRECISION.index(self.function.precision[i]) for i in step.inputs), default=0)
        if "float" not in kind:
            return _PRECISION[seen]
        rounded = step.rounds or not self._exact(step, number, result)
        mine = _PRECISION.index(kind) if rounded or seen else 0
        return _PRECISION[max(seen, mine)]

    def _exact(self, step: Step, number: int, result: mge.Tensor) -> bool:
        """Whether the result is what float64 gives on the same operands."""
        wide = [
            v.astype("float64") if "float" in v._kind.dtype.name else v
            for v in (self.values[i] for i in step.inputs)
        ]
        try:
            with np.errstate(all="ignore"):
                made = step.run(*wide)
        except (TreadleError, AssertionError):
            return False
        best = made[number] if isinstance(made, (tuple, list)) else made
        x, y = result.numpy().astype(np.float64), best.numpy().astype(np.float64)
        return bool(x.shape == y.shape and np.array_equal(x, y, equal_nan=True))


def assert_close(got: Array, want: Array, precision: str, note: str) -> None:
    """Hold a result against the expected one.

    Raises:
        AssertionError: they differ in type, shape or value.
    """
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{note}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    )
    if precision == "exact" or want.dtype.kind in "biu":
        same = np.array_equal(got, want, equal_nan=want.dtype.kind not in "biu")
        assert same, f"{note}: not equal\n{got}\n{want}"
        return
    x, y = got.astype(np.float64), want.astype(np.float64)
    tolerance = TOLERANCE[precision]
    finite = y[np.isfinite(y)]
    scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0
    close = np.allclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    assert close, f"{note}: {precision}, largest difference {np.nanmax(np.abs(x - y))}\n{x}\n{y}"


__all__ = ["SHAPES", "Function", "Generator", "Step", "assert_close"]
