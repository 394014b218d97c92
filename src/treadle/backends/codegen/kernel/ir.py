"""The kernel IR: the small typed language every generated kernel is written in.

A kernel is one function over a range [lo, hi) of work items, which may be run in any order and on
any thread. Its parameters are pointers and 64-bit integers; extents and strides are parameters as
a rule, so that one kernel serves many shapes. Inside there are structured loops and branches whose
results are explicit (no variables, no phis), scalars and vectors of a fixed number of lanes.

Generators write kernels with `Builder`; `interpret.py` runs them in Python, `llvm.py` and
`c.py` print them. Renderers only print: whatever depends on a target is decided before.

Rules of the language:

* integers wrap, also where the smallest one is divided by -1; `div` and `rem` of integers truncate
  and their divisor is not 0, in no lane; `rem` of floats is C's fmod; `shr` keeps the sign of
  signed types; a shift count is inside [0, bits);
* bools have `and`, `or`, `xor`, `min`, `max`, comparisons and select, no other arithmetic;
* 16-bit floats compute in float32 and round after every instruction;
* `min(x, y)` is x where x < y and else y, `max(x, y)` is x where x > y and else y, also where an
  operand is NaN;
* `lt`, `le`, `eq` are false where an operand is NaN, `ne` is true there;
* `cast` from float to integer truncates; what does not fit is unspecified. float32 to a narrower
  float rounds to nearest even;
* only `fma` is fused; no other pair of operations ever is;
* `reduce` combines halves, then halves of the result, and so on: its rounding is defined;
* a masked load gives 0 in the lanes it leaves out, a masked store leaves memory alone there;
* a matrix register holds 16 rows of 64 bytes and is named by its number, from 0 to 7. It is state,
  not a value: `begin_matrices` comes before its first use and `end_matrices` after the last one, in
  the entry; functions that are called in between see the same registers. A `matrix_dot` of bfloat16
  may take subnormal factors and sums for 0, as may a `dot`, and a `cast` that says so;
* bool is one byte in memory, 0 or 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from treadle.backends.codegen.kernel.language import INDEX as INDEX
from treadle.backends.codegen.kernel.language import InstructionOperand as InstructionOperand
from treadle.backends.codegen.kernel.language import KernelError as KernelError
from treadle.backends.codegen.kernel.language import Number as Number
from treadle.backends.codegen.kernel.language import Pointer as Pointer
from treadle.backends.codegen.kernel.language import Reduction as Reduction
from treadle.backends.codegen.kernel.language import Type as Type
from treadle.backends.codegen.kernel.language import Value as Value
from treadle.backends.codegen.kernel.language import pointer as pointer
from treadle.backends.codegen.kernel.language import size as size


@dataclass(slots=True, eq=False)
class Instruction:
    """`result = code(arguments)`; `detail` holds what is not a value, such as a shuffle's order."""

    code: str
    arguments: tuple[InstructionOperand, ...]
    result: InstructionOperand | None
    detail: tuple[Any, ...] = ()


@dataclass(slots=True, eq=False)
class Block:
    """Statements in order."""

    statements: list[Statement] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Loop:
    """`for index in range(start, stop, step)`, carrying values from turn to turn.

    `carried` are what the body sees, `initial` what they are in the first turn, `yielded` what they
    become after each one, `results` what they are after the last. `step` is positive.
    """

    index: Value
    start: Value
    stop: Value
    step: Value
    initial: tuple[InstructionOperand, ...]
    carried: tuple[InstructionOperand, ...]
    body: Block
    yielded: tuple[InstructionOperand, ...]
    results: tuple[InstructionOperand, ...]


@dataclass(slots=True, eq=False)
class Branch:
    """`results = then if condition else otherwise`; only one of the two blocks runs."""

    condition: Value
    then: Block
    then_values: tuple[InstructionOperand, ...]
    otherwise: Block
    otherwise_values: tuple[InstructionOperand, ...]
    results: tuple[InstructionOperand, ...]


@dataclass(slots=True, eq=False)
class Call:
    """A call of another function of the kernel, which returns nothing."""

    function: KernelRoutine
    arguments: tuple[InstructionOperand, ...]


Statement = Instruction | Loop | Branch | Call


@dataclass(slots=True, eq=False)
class KernelRoutine:
    """A body over parameters; a kernel's entry or one of the functions it calls."""

    name: str
    parameters: tuple[InstructionOperand, ...]
    body: Block


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class KernelModule:
    """An entry function and, in `functions`, everything it calls, callees first.

    The last two parameters of the entry are `lo` and `hi`, the range of work items; those before
    are what a launch passes. `features` are the CPU features the kernel needs.
    """

    name: str
    entry: KernelRoutine
    functions: tuple[KernelRoutine, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[InstructionOperand, ...]:
        """The parameters that a launch passes."""
        return self.entry.parameters[:-2]


ARITHMETIC = frozenset(("add", "sub", "mul", "div", "rem", "min", "max", "copysign"))
UNARY = frozenset(("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint"))
COMPARE = frozenset(("eq", "ne", "lt", "le"))
BITWISE = frozenset(("and", "or", "xor", "shl", "shr"))
MATRICES = frozenset(
    ("begin_matrices", "end_matrices", "matrix_zero", "matrix_load", "matrix_store", "matrix_dot")
)
EFFECTS = frozenset(("store", "scatter", "prefetch", "copy", "zero")) | MATRICES
IMPURE = EFFECTS | {"load", "gather", "stack"}
"""Codes whose instructions are never shared: they read or write memory."""
