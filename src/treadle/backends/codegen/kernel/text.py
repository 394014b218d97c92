"""Kernels as readable text, and their digests.

The text is canonical: values are numbered in the order of definition, so equal kernels give equal
text whoever built them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

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
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError

_INDENT = "  "
_NOT_IN_SYMBOLS = re.compile(r"\W", re.ASCII)
_DIGESTS: WeakKeyDictionary[KernelModule, str] = WeakKeyDictionary()


def kernel_text(kernel: KernelModule) -> str:
    """The kernel as text: functions first, then the entry.

    Raises:
        KernelError: a value is used where it is not defined.
    """
    numbers: dict[KernelRoutine, str] = {}
    lines: list[str] = []
    for position, function in enumerate(kernel.functions):
        numbers[function] = f"{position}.{function.name}"
        lines += _Printer(kernel.name, numbers).function("function", numbers[function], function)
    features = "".join(f" +{f}" for f in kernel.features)
    lines += _Printer(kernel.name, numbers).function("kernel", kernel.name + features, kernel.entry)
    return "\n".join(lines) + "\n"


def digest(kernel: KernelModule) -> str:
    """SHA-256 of the text, whatever the kernel's name; kept while the kernel lives."""
    found = _DIGESTS.get(kernel)
    if found is None:
        text = kernel_text(replace(kernel, name=""))
        found = _DIGESTS[kernel] = hashlib.sha256(text.encode()).hexdigest()
    return found


def symbol_of(kernel: KernelModule) -> str:
    """The name of the kernel's function: equal kernels share it, others never do."""
    return f"{_NOT_IN_SYMBOLS.sub('_', kernel.name)}_{digest(kernel)[:16]}"


class _Printer:
    """Prints one function."""

    def __init__(self, kernel: str, functions: dict[KernelRoutine, str]) -> None:
        self._kernel = kernel
        self._functions = functions
        self._names: dict[InstructionOperand, str] = {}
        self._defined: list[InstructionOperand] = []
        self._count = 0
        self._lines: list[str] = []

    def function(self, kind: str, name: str, function: KernelRoutine) -> list[str]:
        """The function's lines."""
        inner = ", ".join(
            f"{self._define(p)}{f' {p.name}' if p.name else ''}: {p.type}"
            for p in function.parameters
        )
        self._block(function.body, _INDENT)
        return [f"{kind} {name}({inner}) {{", *self._lines, "}"]

    def _define(self, value: InstructionOperand) -> str:
        if value in self._names:
            raise KernelError(f"{self._kernel}: a value of type {value.type} is defined twice")
        name = self._names[value] = f"%{self._count}"
        self._count += 1
        self._defined.append(value)
        return name

    def _use(self, value: InstructionOperand) -> str:
        if value.literal is not None:
            return f"{value.type}({value.literal!r})"
        try:
            return self._names[value]
        except KeyError:
            raise KernelError(
                f"{self._kernel}: a value of type {value.type} is used where it is not defined"
            ) from None

    def _uses(self, values: Iterable[InstructionOperand]) -> str:
        return ", ".join(map(self._use, values))

    def _inner(
        self, block: Block, values: Iterable[InstructionOperand], indent: str, before: int
    ) -> None:
        """A block with what it yields; what was defined since `before` is gone afterwards."""
        self._block(block, indent + _INDENT)
        yielded = self._uses(values)
        if yielded:
            self._lines.append(f"{indent}{_INDENT}yield {yielded}")
        for value in self._defined[before:]:
            del self._names[value]
        del self._defined[before:]

    def _block(self, block: Block, indent: str) -> None:
        for statement in block.statements:
            if isinstance(statement, Instruction):
                self._instruction(statement, indent)
            else:
                self._structure(statement, indent)

    def _instruction(self, instruction: Instruction, indent: str) -> None:
        arguments = self._uses(instruction.arguments)
        detail = instruction.detail
        text = f"{instruction.code}({arguments})" + (f" {list(detail)}" if detail else "")
        result = instruction.result
        if result is not None:
            text = f"{self._define(result)} = {text}: {result.type}"
        self._lines.append(indent + text)

    def _structure(self, statement: Statement, indent: str) -> None:
        if isinstance(statement, Loop):
            self._loop(statement, indent)
        elif isinstance(statement, Branch):
            self._branch(statement, indent)
        elif isinstance(statement, Call):
            name = self._functions.get(statement.function)
            if name is None:
                raise KernelError(
                    f"{self._kernel}: {statement.function.name} is called before it is listed"
                )
            self._lines.append(f"{indent}call {name}({self._uses(statement.arguments)})")

    def _loop(self, loop: Loop, indent: str) -> None:
        start, stop, step = (self._use(v) for v in (loop.start, loop.stop, loop.step))
        initial = [self._use(v) for v in loop.initial]
        before = len(self._defined)
        index = self._define(loop.index)
        carried = ", ".join(
            f"{self._define(value)} = {first}"
            for value, first in zip(loop.carried, initial, strict=True)
        )
        carrying = f" carrying {carried}" if carried else ""
        self._lines.append(f"{indent}for {index} = {start} to {stop} step {step}{carrying} {{")
        self._inner(loop.body, loop.yielded, indent, before)
        self._close(loop.results, indent)

    def _branch(self, branch: Branch, indent: str) -> None:
        self._lines.append(f"{indent}if {self._use(branch.condition)} {{")
        before = len(self._defined)
        self._inner(branch.then, branch.then_values, indent, before)
        if branch.otherwise.statements or branch.otherwise_values:
            self._lines.append(f"{indent}}} else {{")
            self._inner(branch.otherwise, branch.otherwise_values, indent, before)
        self._close(branch.results, indent)

    def _close(self, results: Iterable[InstructionOperand], indent: str) -> None:
        made = ", ".join(f"{self._define(v)}: {v.type}" for v in results)
        self._lines.append(f"{indent}}}" + (f" -> {made}" if made else ""))
