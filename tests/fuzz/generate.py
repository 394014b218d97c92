"""Random programs: each line is tried as it is added, so that what is left is valid."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.fuzz.families import FAMILIES
from tests.fuzz.makers import MAKERS, ROUNDING, floats
from tests.fuzz.program import SCOPE, Leaf, Program, is_exact, is_float

import treadle as mge
from treadle.base.errors import IndexRangeError, TreadleError

EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17)
DTYPES = ("float32",) * 9 + ("float16", "bfloat16", "float64", "int32", "int32", "int8", "uint8")
MORE = (*DTYPES, "int64", "bool")
MOST = (6000,) * 14 + (50_000,) * 4 + (400_000,) * 2
"""Elements of the largest value of a program; few have work for several threads."""
LONG = (1, 2, 3, 7, 8, 16, 31, 33, 64, 100, 130)
"""Extents of what is larger."""
OPTIMIZERS = (
    "mge.optimizer.SGD(params, lr=0.05)",
    "mge.optimizer.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01)",
    "mge.optimizer.Adam(params, lr=0.01)",
    "mge.optimizer.AdamW(params, lr=0.01)",
)
COARSENESS = ("float64", "float32", "float16", "bfloat16")


class Foreign(Exception):
    """A line that ends in an error that is not Treadle's."""


class Generator:
    """Makes one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.leaves: dict[str, Leaf] = {}
        self.lines: list[str] = []
        self.scope: dict[str, Any] = dict(SCOPE)
        self.names: list[str] = []
        self.count = 0
        self.narrow = self.chance(0.3)
        """Whether 16-bit floats and float64 appear."""
        self.most = int(self.one(MOST))
        self.random = self.stateful = False
        self.only = str(self.one(("float16", "bfloat16"))) if self.chance(0.08) else ""
        """The type of all numbers of a program whose results are compared bit by bit."""
        families = [self.one(FAMILIES) for _ in range(6)]
        """Makers that this program has besides the usual ones, so that they meet often."""
        self.makers = [*MAKERS, *families * 4] if not self.only else ROUNDING

    # -- choices ---------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < p)

    def one(self, items: Sequence[Any]) -> Any:
        """One of them."""
        return items[int(self.rng.integers(len(items)))]

    def shape(self) -> tuple[int, ...]:
        """Extents of an input; rarely an empty axis."""
        rank = self.one((0, 1, 1, 2, 2, 2, 3, 3, 4))
        big = self.most > min(MOST) and self.chance(0.6)
        extents = [self.one(LONG if big else EXTENTS) for _ in range(rank)]
        if extents and self.chance(0.05):
            extents[self.one(range(rank))] = 0
        while math.prod(extents) > self.most // 3:
            extents[int(np.argmax(extents))] = 3
        return tuple(extents)

    def leaf(
        self,
        kind: str,
        shape: tuple[int, ...],
        dtype: str = "float32",
        low: int = -4,
        high: int = 5,
        source: str = "",
    ) -> str:
        """A new input or parameter."""
        dtype = self.only or dtype
        prefix = "x" if kind == "input" else "p"
        name = f"{prefix}{len([n for n in self.leaves if n[0] == prefix])}"
        made = Leaf(kind, dtype, shape, int(self.rng.integers(1 << 30)), low, high, source)
        self.leaves[name] = made
        self.scope[name] = made.tensor()
        self.names.append(name)
        return name

    def pick(self, test: Callable[[Any], bool] = lambda t: True) -> str | None:
        """The name of a value that passes, recent ones first of all."""
        found = [n for n in self.names if test(self.scope[n])]
        if not found:
            return None
        recent = found[-3:] if self.chance(0.55) else found
        return str(self.one(recent))

    def float(self, rank: int = 0) -> str | None:
        """The name of a value with fractions."""
        return self.pick(lambda t: floats(t) and t.ndim >= rank)

    # -- lines -----------------------------------------------------------------------------

    def add(self, line: str, targets: Sequence[str]) -> bool:
        """Try a line, and keep it if it gives values worth having."""
        scope = dict(self.scope)
        if self.only and not is_exact(line):
            return False
        try:
            exec(line, scope)
            values = [scope[t] for t in targets]
            arrays = [v.numpy() for v in values]
        except (TreadleError, MemoryError):
            return False
        except Exception as error:
            raise Foreign(f"{line}: {type(error).__name__}: {error}") from error
        for array in arrays:
            if array.size > self.most or array.dtype.kind == "c":
                return False
            wide = array.astype("float64")
            most = 1000 if array.dtype.kind not in "iu" else 1_000_000
            if not np.isfinite(wide).all() or (array.size and np.abs(wide).max() > most):
                return False
        self.lines.append(line)
        for name, value in zip(targets, values, strict=True):
            self.scope[name] = value
            if name not in self.names:
                self.names.append(name)
        return True

    def fresh(self) -> str:
        """A name for a result."""
        self.count += 1
        return f"v{self.count}"

    def step(self) -> None:
        """One more line, if its maker finds operands."""
        made = self.one(self.makers)(self)
        if made is None:
            return
        if isinstance(made, str):
            name = self.fresh()
            self.add(f"{name} = {made}", [name])
        else:
            line, targets = made
            self.add(line, targets)

    def program(self, steps: int) -> Program:
        """The program."""
        for _ in range(self.one((1, 1, 2, 2, 3))):
            self.leaf("input", self.shape(), self.dtype())
        for _ in range(self.one((0, 1, 2))):
            self.leaf("param", self.shape(), self.dtype() if self.chance(0.2) else "float32")
        for _ in range(steps):
            self.step()
        made = [n for n in self.names if n not in self.leaves]
        others = [self.one(made) for _ in range(self.one((1, 1, 2, 4)))] if made else []
        outputs = list(dict.fromkeys([*made[-2:], *others]))
        if not outputs:
            outputs = [self.names[0]]
        params = [n for n, leaf in self.leaves.items() if leaf.kind == "param"]
        loops = any("while_loop" in line for line in self.lines)  # Have no gradient in programs.
        grads = (
            bool(params) and not loops and not self.only and not self.stateful and self.chance(0.4)
        )
        casting = (
            str(self.one(("float16", "bfloat16"))) if self.chance(0.05) and not self.only else ""
        )
        kinds = {str(v.dtype) for v in self.scope.values() if isinstance(v, mge.Tensor)}
        kinds = {k for k in map(_name, kinds) if k in COARSENESS}
        kinds |= {k for k in COARSENESS for line in (*self.lines, casting) if k in line}
        coarse = max(kinds, key=COARSENESS.index, default="float32")
        steps_too = grads and self.chance(0.4)
        optimizer = str(self.one(OPTIMIZERS)) if steps_too else ""
        lines, leaves = tuple(self.lines), dict(self.leaves)
        found = Program(leaves, lines, tuple(outputs), grads, coarse, optimizer, casting)
        return sliced(found)

    def dtype(self) -> str:
        """An element type of an input."""
        found = self.one(MORE)
        narrow = ("float16", "bfloat16", "float64", "int64")
        return "float32" if found in narrow and not self.narrow else str(found)


def _name(dtype: str) -> str:
    return next((k for k in ("bfloat16", "float16", "float64") if k in dtype), dtype)


def generate(seed: int) -> Program:
    """The program of a seed.

    Raises:
        Foreign: a line ends in an error that is not Treadle's.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = Generator(seed)
        return made.program(int(made.rng.integers(2, 20)) + 12 * bool(made.only))


def work_of(program: Program) -> int:
    """Elements of its largest leaf."""
    return max((math.prod(leaf.shape) for leaf in program.leaves.values()), default=0)


def sliced(program: Program) -> Program:
    """The program without lines and leaves that its results do not need."""
    names = set(program.leaves) | {t for line in program.lines for t in targets(line)}
    needed, lines = set(program.outputs), []
    for line in reversed(program.lines):
        if needed.isdisjoint(targets(line)):
            continue
        lines.append(line)
        needed |= read(line) & names
    leaves = {n: leaf for n, leaf in program.leaves.items() if n in needed}
    if not any(leaf.kind == "param" and is_float(leaf.dtype) for leaf in leaves.values()):
        program = program.without(grads=False, optimizer="")
    return program.without(leaves=leaves, lines=tuple(reversed(lines)))


def targets(line: str) -> list[str]:
    """The names that a line gives values to."""
    left = line.split(" = ", 1)[0]
    return [name.strip(" ()") for name in left.split(",") if name.strip(" ()")]


def read(line: str) -> set[str]:
    """Names in a line."""
    words = "".join(c if c.isalnum() or c == "_" else " " for c in line).split()
    return {w for w in words if w[0] in "vxp" and w[1:].isdigit()}


def out_of_range(program: Program, seed: int) -> Program:
    """The program with an index that no axis has, or itself where it has nothing to index."""
    rng = np.random.default_rng(seed)
    program = program.without(grads=False, optimizer="")
    names = [n for n in program.inputs if program.leaves[n].dtype == "int32" and n[0] == "x"]
    if names and rng.random() < 0.5:
        name = names[int(rng.integers(len(names)))]
        old = program.leaves[name]
        leaf = Leaf(old.kind, old.dtype, old.shape, old.seed, old.low - 9, old.high + 9)
        return program.without(leaves={**program.leaves, name: leaf})
    rows = [n for n, leaf in program.leaves.items() if leaf.shape]
    if not rows:
        return program
    name = rows[int(rng.integers(len(rows)))]
    extent = program.leaves[name].shape[0]
    leaves = {**program.leaves, "x99": Leaf("input", "int32", (3,), seed, -extent - 2, extent + 2)}
    lines, outputs = (*program.lines, f"v99 = {name}[x99]"), (*program.outputs, "v99")
    return program.without(leaves=leaves, lines=lines, outputs=outputs)


__all__ = ["Foreign", "Generator", "IndexRangeError", "generate", "out_of_range", "sliced"]
