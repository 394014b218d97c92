"""Records: one class says which parameters a kernel has, and which arguments a launch gives it.

A record is a named tuple or a dataclass over two type variables, for pointers and for numbers. Its
fields are parameters (`Pointer` and `Value` in the kernel, memory and extents at the launch),
tuples of them, other records, or None for what a kernel has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

from treadle.backends.codegen.kernel.ir import Kernel
from treadle.backends.codegen.kernel.language import KernelError, Operand
from treadle.backends.program import Launch

T = TypeVar("T")


def required(given: T | None) -> T:
    """Return a field that this kernel has, of a record that may lack it.

    Raises:
        KernelError: it is None.
    """
    if given is None:
        raise KernelError("a kernel lacks a parameter that it uses")
    return given


@dataclass(frozen=True, slots=True, eq=False)
class RecordedKernel:
    """A kernel and the record of its parameters."""

    kernel: Kernel
    parameters: Any

    def launch(self, given: Any, **described: Any) -> Launch:
        """A launch with a record of arguments; the rest are fields of `Launch`."""
        return Launch(self.kernel, self.arguments(given), **described)

    def arguments(self, given: Any) -> tuple[Any, ...]:
        """Return a record of arguments in the order of the kernel's parameters.

        Raises:
            KernelError: it is another record, or lacks an argument.
        """
        found = {id(p): a for p, a in _pairs(self.parameters, given, type(given).__name__)}
        missing = [p.name for p in self.kernel.parameters if id(p) not in found]
        if missing:
            raise KernelError(f"{self.kernel.name}: no field of its record is {missing}")
        return tuple([found[id(p)] for p in self.kernel.parameters])


def _pairs(parameters: Any, given: Any, path: str) -> Iterator[tuple[Operand, Any]]:
    """Every parameter of a record and its argument."""
    if parameters is None:
        return
    if isinstance(parameters, Operand):
        if given is None:
            raise KernelError(f"{path} is a parameter and has no argument")
        yield parameters, given
        return
    if type(parameters) is not type(given):
        raise KernelError(f"{path}: {type(given).__name__} for {type(parameters).__name__}")
    if isinstance(parameters, tuple):
        for i, pair in enumerate(zip(parameters, given, strict=True)):
            yield from _pairs(*pair, f"{path}[{i}]")
    elif is_dataclass(parameters):
        for name in (f.name for f in fields(parameters)):
            yield from _pairs(getattr(parameters, name), getattr(given, name), f"{path}.{name}")
