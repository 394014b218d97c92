"""Dialects of C: the words around kernels in which they differ.

`Dialect` itself says what C11 says. A dialect for a device derives from it and writes what its
compiler wants otherwise; expressions for one lane (`c_values.py`) and the structure of functions
(`c_printer.py`) are the same everywhere, so a prelude that defines their few names (`int64_t`,
`INT64_C`, `fmaf`, `NAN`, `from_bfloat16`, ...) is most of the work. A dialect with vectors of its
own replaces handlers of `c_instructions.py` as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backends.codegen.kernel.c_values import PRELUDE, c_type
from treadle.backends.codegen.kernel.language import InstructionOperand, Type
from treadle.base.dtype import DType


class Dialect:
    """C11: kernels take a table of 8-byte slots; vectors are structs around arrays.

    Attributes:
        name: for people.
        prelude: what every source begins with.
        function: what stands before the name of a function, its result included.
        body: the same for what an entry calls, where it differs; empty where it does not.
        unroll: a line before loops over the lanes of a vector; empty for none.
        carried: what every function takes before its parameters: how it is declared, and how it is
            passed on; empty for nothing.
    """

    name = "C11"
    prelude = PRELUDE
    function = "static void"
    body = ""
    unroll = ""
    carried = "", ""

    # -- types ---------------------------------------------------------------------------------

    def pointer(self, dtype: DType) -> str:
        """A pointer to elements, of memory that a launch passes or that `stack` makes."""
        return f"{c_type(dtype)} *"

    def vector(self, type_: Type) -> str:
        """Name of a type of several lanes."""
        return f"{type_.dtype.name}x{type_.lanes}"

    def definition(self, type_: Type) -> str:
        """Return the definition of the vector type; empty where the language has it."""
        return f"typedef struct {{ {c_type(type_.dtype)} v[{type_.lanes}]; }} {self.vector(type_)};"

    def has(self, type_: Type) -> bool:
        """True if the language has the vector type itself, with operators and lanes by name."""
        return False

    def lane(self, vector: str, lane: str, type_: Type) -> str:
        """One lane of a vector, to be read or written; `lane` is a number or a variable."""
        return f"{vector}.v[{lane}]"

    # -- functions -----------------------------------------------------------------------------

    def entry(self, symbol: str, body: str, parameters: Sequence[InstructionOperand]) -> list[str]:
        """Lines of the function that a launch starts.

        `body` is the name of a function printed before. It takes the kernel's parameters, pointers
        or 64-bit integers, and the range `lo`, `hi` of work items that it does.
        """
        slots = [f"args[{position}]" for position in range(len(parameters))]
        passed = [
            f"({self.pointer(p.dtype)})(intptr_t){slot}" if p.type.pointer else slot
            for p, slot in zip(parameters, slots, strict=True)
        ]
        return [
            f"void {symbol}(const int64_t *args, int64_t lo, int64_t hi) {{",
            f"  {body}({', '.join((*passed, 'lo', 'hi'))});",
            "}",
            "",
        ]

    # -- memory --------------------------------------------------------------------------------

    def stack(self, dtype: DType, declared: str, name: str, count: int) -> list[str]:
        """Memory of this call, aligned to 64 bytes, and a pointer to it, `declared` as `name`."""
        own = f"{name}_memory"
        return [f"_Alignas(64) {c_type(dtype)} {own}[{count}];", f"{declared} = {own};"]

    def load(self, name: str, type_: Type, place: str) -> str:
        """Fill a declared variable from a place of any alignment."""
        return f"memcpy(&{name}, {place}, sizeof {name});"

    def bitcast(self, name: str, type_: Type, value: str, source: Type) -> str:
        """Fill a declared variable with the bits of a value of another type."""
        of = c_type(source.dtype) if source.lanes == 1 else self.vector(source)
        return f"{{ {of} bits = {value}; memcpy(&{name}, &bits, sizeof {name}); }}"

    def copy(self, target: str, source: str, count: str, dtype: DType) -> str:
        """Copy `count` elements."""
        return f"memcpy({target}, {source}, (size_t){count} * sizeof *{target});"

    def zero(self, target: str, count: str, dtype: DType) -> str:
        """Set `count` elements to zero bytes."""
        return f"memset({target}, 0, (size_t){count} * sizeof *{target});"


C11 = Dialect()
