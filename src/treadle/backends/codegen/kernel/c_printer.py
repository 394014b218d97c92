"""Functions of the kernel IR as C: names, declarations, loops, branches and calls.

How an instruction is printed is a function in a table of handlers: those of `c_instructions.py`,
or, for a dialect with vectors of its own, others in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from treadle.backends.codegen.kernel.c_dialect import Dialect
from treadle.backends.codegen.kernel.c_values import c_type, literal
from treadle.backends.codegen.kernel.ir import (
    Block,
    Branch,
    Call,
    Instruction,
    KernelModule,
    KernelRoutine,
    Loop,
    Statement,
)
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError, Type

Handler = Callable[["Printer", Instruction], None]
_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)


@dataclass
class TranslationUnit:
    """A translation unit in the making: definitions of vectors, and functions, callees first."""

    dialect: Dialect
    handlers: Mapping[str, Handler]
    fused: bool
    vectors: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def kernel(self, kernel: KernelModule, symbol: str) -> str:
        """Print a kernel's functions and body; the name of the body."""
        known = {function: number for number, function in enumerate(kernel.functions)}
        names = _Names(self, symbol, known)
        return names.of(kernel.entry, len(known))


@dataclass
class _Names:
    """The functions of one kernel that are printed, which they are when they are called."""

    unit: TranslationUnit
    symbol: str
    known: dict[KernelRoutine, int]
    printed: dict[KernelRoutine, str] = field(default_factory=dict)

    def of(self, function: KernelRoutine, before: int) -> str:
        """The function's name, printed first if it was not yet; its caller is number `before`."""
        position = self.known.get(function, before)
        if position > before or (position == before and before < len(self.known)):
            raise KernelError(f"{function.name} is called before it is listed")
        found = self.printed.get(function)
        if found is None:
            own = _NOT_IN_NAMES.sub("_", function.name)
            found = self.printed[function] = f"{self.symbol}_{len(self.printed)}_{own}"
            self.unit.lines += Printer(self, position).function(found, function)
        return found


class Printer:
    """Prints one function."""

    def __init__(self, names: _Names, position: int) -> None:
        self.unit = names.unit
        self.dialect = names.unit.dialect
        self.fused = names.unit.fused
        self._functions = names
        self._position = position
        self._names: dict[InstructionOperand, str] = {}
        self._lines: list[str] = []
        self._indent = "  "
        self._count = 0

    # -- names and lines -------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One statement."""
        self._lines.append(self._indent + text)

    def type(self, type_: Type) -> str:
        """C's type of a value."""
        if type_.pointer:
            return self.dialect.pointer(type_.dtype)
        if type_.lanes == 1:
            return c_type(type_.dtype)
        name = self.dialect.vector(type_)
        if name not in self.unit.vectors:
            self.unit.vectors[name] = self.dialect.definition(type_)
        return name

    def fresh(self) -> str:
        """A name that nothing has yet."""
        self._count += 1
        return f"v{self._count}"

    def declare(self, value: InstructionOperand) -> str:
        """A declaration that names the value."""
        name = self._names[value] = self.fresh()
        return f"{self.type(value.type)} {name}"

    def lane(self, value: InstructionOperand, lane: str = "i") -> str:
        """One lane of the value, as an expression; a scalar as it is."""
        if value.literal is not None:
            return literal(value.literal, value.dtype)
        name = self._names.get(value)
        if name is None:
            raise KernelError(f"a value of type {value.type} is used where it is not defined")
        return name if value.lanes == 1 else self.dialect.lane(name, lane, value.type)

    def whole(self, value: InstructionOperand) -> str:
        """The value as an expression; a literal vector becomes a variable."""
        if value.lanes == 1:
            return self.lane(value)
        if value.literal is None:
            self.lane(value, "0")  # for its complaint
            return self._names[value]
        if self.dialect.has(value.type):
            return f"({self.type(value.type)})({self.lane(value)})"
        name = self.fresh()
        self.line(f"{self.type(value.type)} {name};")
        for lane in self.each(value.type):
            self.line(f"{self.loop(value.lanes)}{name}.v[{lane}] = {self.lane(value)};")
        return name

    # -- lanes -----------------------------------------------------------------------------

    def each(self, *types: Type) -> list[str]:
        """Yield the names of lanes: `i`, in a loop; or, where the language names them, numbers."""
        if any(self.dialect.has(t) for t in types):
            return [str(lane) for lane in range(types[0].lanes)]
        return ["i"]

    def loop(self, lanes: int) -> str:
        """The head of a loop over lanes."""
        unroll = f"{self.dialect.unroll}\n{self._indent}" if self.dialect.unroll else ""
        return f"{unroll}for (int i = 0; i < {lanes}; i++) "

    def lanewise(
        self,
        result: InstructionOperand,
        expression: Callable[[str], str],
        *operands: InstructionOperand,
    ) -> None:
        """Define the result lane by lane; `operands` are the values that the expression reads."""
        if result.lanes == 1:
            self.line(f"{self.declare(result)} = {expression('0')};")
            return
        lanes = self.each(result.type, *(v.type for v in operands))
        texts = [expression(lane) for lane in lanes]
        self.line(f"{self.declare(result)};")
        head = self.loop(result.lanes) if lanes == ["i"] else ""
        for lane, text in zip(lanes, texts, strict=True):
            self.line(f"{head}{self.lane(result, lane)} = {text};")

    # -- statements ------------------------------------------------------------------------

    def function(self, name: str, function: KernelRoutine) -> list[str]:
        """The function's lines."""
        taken = self.dialect.carried[0], *map(self.declare, function.parameters)
        inner = ", ".join(filter(None, taken))
        self.block(function.body)
        before = self.dialect.function
        if self._position == len(self._functions.known):
            before = self.dialect.body or before
        return [f"{before} {name}({inner}) {{", *self._lines, "}", ""]

    def block(self, block: Block) -> None:
        """Statements in order."""
        for statement in block.statements:
            if isinstance(statement, Instruction):
                handler = self.unit.handlers.get(statement.code)
                if handler is None:
                    raise KernelError(f"no instruction called {statement.code}")
                handler(self, statement)
            else:
                self._structure(statement)

    def _structure(self, statement: Statement) -> None:
        if isinstance(statement, Loop):
            self._loop(statement)
        elif isinstance(statement, Branch):
            self._branch(statement)
        elif isinstance(statement, Call):
            name = self._functions.of(statement.function, self._position)
            passed = self.dialect.carried[1], *map(self.whole, statement.arguments)
            self.line(f"{name}({', '.join(filter(None, passed))});")

    def _enter(self, header: str) -> set[InstructionOperand]:
        """Open a block; what was known before it."""
        self.line(header)
        self._indent += "  "
        return set(self._names)

    def _leave(self, known: set[InstructionOperand]) -> None:
        self._indent = self._indent[:-2]
        self._names = {v: n for v, n in self._names.items() if v in known}

    def _loop(self, loop: Loop) -> None:
        initial = [self.whole(v) for v in loop.initial]
        for value, first in zip(loop.carried, initial, strict=True):
            self.line(f"{self.declare(value)} = {first};")
        start, stop, step = (self.lane(v) for v in (loop.start, loop.stop, loop.step))
        index = self.declare(loop.index)
        name = self._names[loop.index]
        known = self._enter(f"for ({index} = {start}; {name} < {stop}; {name} += {step}) {{")
        self.block(loop.body)
        # All of them are read before any is written: they may swap places.
        after = [(self.whole(v), self.type(v.type)) for v in loop.yielded]
        for position, (text, of) in enumerate(after):
            self.line(f"{of} next{position} = {text};")
        for position, value in enumerate(loop.carried):
            self.line(f"{self._names[value]} = next{position};")
        self._leave(known)
        self.line("}")
        for result, value in zip(loop.results, loop.carried, strict=True):
            self._names[result] = self._names.pop(value)
        del self._names[loop.index]

    def _branch(self, branch: Branch) -> None:
        for result in branch.results:
            self.line(f"{self.declare(result)};")
        sides = (branch.then, branch.then_values), (branch.otherwise, branch.otherwise_values)
        headers = f"if ({self.lane(branch.condition)}) {{", "} else {"
        for header, (block, values) in zip(headers, sides, strict=True):
            known = self._enter(header)
            self.block(block)
            for result, value in zip(branch.results, values, strict=True):
                self.line(f"{self._names[result]} = {self.whole(value)};")
            self._leave(known)
        self.line("}")
