"""A random program: lines of Python, and the tensors that they are about."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base import dtype as dt
from treadle.base.blocks.formats import FORMATS
from treadle.base.blocks.panels import to_panels
from treadle.ops import REGISTRY
from treadle.ops.border import Border
from treadle.ops.check import CheckIndices
from treadle.ops.collective import Collective
from treadle.ops.control import ControlFlow
from treadle.ops.custom import Custom
from treadle.ops.fused import Fused
from treadle.ops.op import Op, Sample
from treadle.ops.printing import PrintingOp
from treadle.ops.quant import Dequantize, Quantize

Array = Any

SAMPLED: dict[str, list[Sample]] = {
    name: found
    for name, made in REGISTRY.items()
    if not issubclass(
        made, (Border, CheckIndices, Collective, ControlFlow, Custom, Fused, PrintingOp)
    )
    and (found := [s for s in made.samples() if s.args])
}
"""Ops of the table by name, with their samples; not those that need other processes, foreign code
or captured regions, print, or are made by the engine itself (checks of indices among them, whose
result tells what is wrong in place of an error)."""


def sampled_op(name: str, number: int) -> Op:
    """The op of a sample."""
    return SAMPLED[name][number].op


def rounded(x: mge.Tensor, step: float) -> mge.Tensor:
    """Numbers as a grid of integers has them, by way of these integers."""
    scale, zero = mge.tensor(step), mge.tensor(0, dtype="int32")
    return Dequantize()(Quantize(dt.int8, -128, 127)(x, scale, zero), scale, zero)


@functools.cache
def blocks(name: str, rows: int, terms: int, seed: int) -> Array:
    """Panels of a matrix [rows, terms] of small numbers in quantized blocks of a format."""
    values = np.random.default_rng(seed).integers(-16, 17, (rows, terms)) / 8.0
    return to_panels(name, FORMATS[name].quantize(values.astype(np.float32)))


SCOPE: dict[str, Any] = {
    "blocks": blocks,
    "mge": mge,
    "F": F,
    "np": np,
    "op": lambda name, **attributes: REGISTRY[name](**attributes),
    "sample": sampled_op,
    "rounded": rounded,
}
"""What lines may name besides values."""


@dataclass(frozen=True)
class Leaf:
    """A tensor that a program is given.

    Attributes:
        kind: "input", or "param" for one that it reaches from outside.
        dtype: its element type.
        shape: its extents.
        seed: of its contents.
        low, high: of integers.
        source: "op/sample/element type/argument", whose contents it has instead.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    seed: int
    low: int = -4
    high: int = 5
    source: str = ""

    def array(self) -> Array:
        """Its contents: numbers of few digits, which many ops keep exact."""
        if self.source:
            name, number, kind, at = self.source.split("/")
            return SAMPLED[name][int(number)].arrays(dt.as_dtype(kind))[int(at)]
        rng = np.random.default_rng(self.seed)
        if self.dtype == "bool":
            return np.asarray(rng.integers(0, 2, self.shape)).astype(bool)
        if self.dtype.startswith(("int", "uint")):
            low = max(self.low, 0) if self.dtype.startswith("u") else self.low
            return np.asarray(rng.integers(low, self.high, self.shape)).astype(self.dtype)
        return np.asarray(rng.integers(-16, 17, self.shape) / 8.0 + 1 / 64)

    def tensor(self, nudge: int = 0) -> mge.Tensor:
        """A handle with these contents, each float off by some units in the last place."""
        array = self.array()
        if nudge and array.dtype.kind == "f":
            rng = np.random.default_rng(nudge)
            array = array * (1 + NUDGES[self.dtype] * rng.choice([-1.0, 1.0], array.shape))
        made = mge.tensor(array, dtype=self.dtype)
        return mge.Parameter(made) if self.kind == "param" and is_float(self.dtype) else made

    def __str__(self) -> str:
        text = f"Leaf({self.kind!r}, {self.dtype!r}, {self.shape}, {self.seed}"
        if self.source:
            return f"{text}, source={self.source!r})"
        return text + (f", {self.low}, {self.high})" if (self.low, self.high) != (-4, 5) else ")")


NUDGES = {"float64": 1e-12, "float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def is_float(dtype: str) -> bool:
    """Whether an element type, by name, has fractions."""
    return dtype in NUDGES


EXACT = {
    "abs", "broadcast_to", "ceil", "clip", "concat", "expand_dims", "flatten",
    "floor", "maximum", "minimum", "pad", "relu", "relu6", "repeat",
    "reshape", "roll", "sign", "square", "stack", "tile", "transpose",
    "where", "zeros_like", "T",
}  # fmt: skip
"""Functions and methods with one right result for 16-bit numbers."""


def is_exact(line: str) -> bool:
    """Whether a line has arithmetic, comparisons, movement and these only."""
    called = set(re.findall(r"([A-Za-z]\w*)\(|\.([A-Z])\b", line))
    names = {a or b for a, b in called} - {"F"}
    return names <= EXACT and not re.search(r"\*\*|//|%|mge|float|int|None", line)


@dataclass(frozen=True)
class Program:
    """Lines of code over leaves.

    Attributes:
        leaves: by name.
        lines: (name of the result, expression or statement) in order.
        outputs: what it returns.
        grads: return gradients of the parameters as well.
        coarse: the least exact element type that it goes through.
        optimizer: with gradients: what steps the parameters, which are returned then.
        casting: the 16-bit type of mixed precision, or nothing.
    """

    leaves: Mapping[str, Leaf]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    grads: bool = False
    coarse: str = "float32"
    optimizer: str = ""
    casting: str = ""

    @property
    def changes(self) -> bool:
        """Whether it changes its parameters by itself, or draws random numbers."""
        return bool(self.optimizer) or any(
            "mge.random" in line or "dropout" in line or "; p" in line for line in self.lines
        )

    @property
    def exact(self) -> bool:
        """Whether it rounds to 16 bits at every step, and every step has one right result."""
        kinds = {leaf.dtype for leaf in self.leaves.values()}
        plain = not self.grads and not self.casting and all(map(is_exact, self.lines))
        return plain and len(kinds) == 1 and kinds <= {"float16", "bfloat16"}

    @property
    def inputs(self) -> list[str]:
        """Names of the arguments."""
        return [name for name, leaf in self.leaves.items() if leaf.kind == "input"]

    @property
    def params(self) -> list[str]:
        """Names of what the program reaches from outside."""
        return [name for name, leaf in self.leaves.items() if leaf.kind == "param"]

    def source(self, nudged: bool = False) -> str:
        """The function as text; nudged, each value that a line gives is blurred."""
        lines = (*map(_blurring, self.lines),) if nudged and not self.exact else self.lines
        body = "\n".join(f"    {line}" for line in lines) or "    pass"
        returned = ", ".join(self.outputs)
        plain = f"def plain({', '.join(self.inputs)}):\n{body}\n    return ({returned},)\n"
        if self.casting:
            plain += f"plain = mge.amp.autocast(low_prec_dtype={self.casting!r})(plain)\n"
        if self.optimizer:
            return plain + f"optimizer = {self.optimizer}\n" + GRADS + STEP
        return plain + (GRADS + GIVEN if self.grads else "f = plain\n")

    def bound(self, nudge: int = 0) -> Bound:
        """The function with parameters of its own, and arguments."""
        mge.random.seed(11)
        scope: dict[str, Any] = {**SCOPE, "GradManager": GradManager}
        made = {
            name: leaf.tensor(nudge and nudge * 1000 + i)
            for i, (name, leaf) in enumerate(self.leaves.items())
        }
        scope.update({name: made[name] for name in self.params})
        floats = [made[n] for n in self.params if is_float(self.leaves[n].dtype)]
        scope["params"] = floats
        scope["weights"] = functools.partial(_weights, nudge and NUDGES[self.coarse], nudge)
        scope["blurred"] = functools.partial(_blurred, np.random.default_rng(nudge))
        exec(compile(self.source(bool(nudge)), "<program>", "exec"), scope)
        return Bound(scope["f"], [made[n] for n in self.inputs], floats)

    def script(self, mode: str, note: str = "") -> str:
        """A file that shows the difference by itself."""
        leaves = "\n".join(f"    {name!r}: {leaf}," for name, leaf in self.leaves.items())
        lines = "\n".join(f"    {line!r}," for line in self.lines)
        return (
            f'"""{note or "A difference."}"""\n\n'
            "from tests.fuzz.modes import differences\n"
            "from tests.fuzz.program import Leaf, Program\n\n"
            f"program = Program(\n    {{\n{leaves}\n    }},\n    (\n{lines}\n    ),\n"
            f"    {self.outputs!r},\n    grads={self.grads},\n    coarse={self.coarse!r},\n"
            f"    optimizer={self.optimizer!r},\n    casting={self.casting!r},\n)\n"
            f"print(program.source())\n"
            f"print(differences(program, [{mode!r}]))\n"
        )

    def without(self, **changes: Any) -> Program:
        """The same with other fields."""
        return replace(self, **changes)


GRADS = """
gm = GradManager().attach(params)
def f(*inputs):
    for p in params:
        p.grad = None
    with gm:
        made = plain(*inputs)
        loss = mge.tensor(0.0)
        for y in made:
            if y.dtype.kind == "f" or "float" in str(y.dtype):
                loss = loss + (F.sin(y.astype("float32")) * weights(y)).sum()
        gm.backward(loss)
"""
GIVEN = """    grads = [p.grad if p.grad is not None else mge.tensor(0.0) for p in params]
    for p in params:
        p.grad = None
    return (*made, *grads)
"""
STEP = """    optimizer.step().clear_grad()
    return (*made, *[p * 1 for p in params])
"""


def _blurring(line: str) -> str:
    """The line, and its values with other last digits, as another order of sums leaves them."""
    left = line.split(" = ", 1)[0]
    names = [n for n in re.findall(r"\w+", left) if n[0] == "v"]
    plain = re.fullmatch(r"[\s(),]*(v\d+[\s(),]*)+", left)
    return "\n    ".join([line, *(f"{n} = blurred({n})" for n in names)]) if plain else line


def _blurred(rng: np.random.Generator, x: Any) -> Any:
    """A float tensor with other last digits."""
    if not isinstance(x, mge.Tensor) or x.dtype.name not in NUDGES:
        return x
    step = NUDGES[x.dtype.name] * (1.0 if x.dtype.itemsize == 2 else 0.2)
    signs = rng.choice([-1.0, 1.0], tuple(int(d) for d in x.shape))
    return x * mge.tensor(1 + step * signs, dtype=x.dtype)


def _weights(step: float, seed: int, result: mge.Tensor) -> mge.Tensor | float:
    """What a result counts in the sum that is differentiated: 1, or nearly, number by number.

    Gradients that cancel exactly stay 0 for every nudge of the inputs, and an optimizer that
    divides them by their size makes a whole step of the last digits of another order.
    """
    if not step:
        return 1.0
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], tuple(result.shape))
    return mge.tensor((1 + step * signs).astype("float32"))


@dataclass
class Bound:
    """A function with the tensors that it reads."""

    function: Any
    inputs: list[mge.Tensor]
    params: list[mge.Tensor] = field(default_factory=list)

    def change(self) -> None:
        """Rebind every parameter to another value, some as a whole and some in part."""
        for i, p in enumerate(self.params):
            if i % 2 and p.size and p.ndim:
                p[0] = p[0] * 0.5 + 0.25
            else:
                p[...] = p * 0.75 - 0.125
