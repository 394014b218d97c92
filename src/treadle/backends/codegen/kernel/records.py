"""Records: one class says which parameters a kernel has, and which arguments a launch gives it.

A record is a `Record`, or a named tuple, over two type variables, for pointers and for numbers. Its
fields are parameters (`Pointer` and `Value` in the kernel, memory and extents at the launch),
tuples of them, other records, or None for what a kernel has not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.language import InstructionOperand, KernelError
from treadle.backends.program import Launch

T = TypeVar("T")
P = TypeVar("P", covariant=True)
S = TypeVar("S", covariant=True)


@dataclass_transform(eq_default=False, frozen_default=True)
class Record(Generic[P, S]):
    """Base of records, which have the fields of their base, and then those of their own.

    Keywords of a class say what fields are made of in every kernel: see `Builder.record`.
    """

    given: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **given: Any) -> None:
        cls.given = {**cls.given, **given}
        cls._fields = (*cls._fields, *inspect.get_annotations(cls))

    # One for all records: to make a class with a constructor of its own takes half a millisecond.
    def __init__(self, *values: Any, **named: Any) -> None:
        self.__dict__.update(zip(self._fields, values, strict=False), **named)
        count = len(values) + len(named)
        if count != len(self._fields) or vars(self).keys() != {*self._fields}:
            raise KernelError(f"{type(self).__name__} has {self._fields}")


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

    kernel: KernelModule
    parameters: Any

    def launch(self, given: Any, *last: Any, **described: Any) -> Launch:
        """Return a launch with these arguments; what has a name is a field of `Launch`."""
        return Launch(self.kernel, self.arguments(given, *last), **described)

    def arguments(self, given: Any, *last: Any) -> tuple[Any, ...]:
        """Return a record of arguments in the order of the kernel's parameters.

        `last` are those of the kernel's last parameters, which its record does not have. Fields
        that are None in its record belong to others of its family; what is given there is unused.

        Raises:
            KernelError: it is another record, or lacks an argument.
        """
        found = {id(p): a for p, a in _pairs(self.parameters, given, type(given).__name__)}
        own = self.kernel.parameters[: len(self.kernel.parameters) - len(last)]
        missing = [p.name for p in own if id(p) not in found]
        if missing or len(own) < len(found):
            raise KernelError(f"{self.kernel.name}: no field of its record is {missing}")
        return (*[found[id(p)] for p in own], *last)


def _pairs(parameters: Any, given: Any, path: str) -> Iterator[tuple[InstructionOperand, Any]]:
    """Every parameter of a record and its argument."""
    if parameters is None:
        return
    if isinstance(parameters, InstructionOperand):
        if given is None:
            raise KernelError(f"{path} is a parameter and has no argument")
        yield parameters, given
        return
    if type(parameters) is not type(given):
        raise KernelError(f"{path}: {type(given).__name__} for {type(parameters).__name__}")
    if isinstance(parameters, tuple):
        for i, pair in enumerate(zip(parameters, given, strict=True)):
            yield from _pairs(*pair, f"{path}[{i}]")
    else:
        for name in parameters._fields:
            yield from _pairs(getattr(parameters, name), getattr(given, name), f"{path}.{name}")
