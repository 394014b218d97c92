"""Names in dumped models: of ops and parameters, after the modules that ran them.

`net.fc.MatrixMul` is what the module `fc` of `net` applied, `net.fc.weight` its parameter. Modules
are called by their own names, or by where they lie in the module around them.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import bool_
from treadle.base.observer import OBSERVER, observe
from treadle.base.symbol import Decisions
from treadle.base.tree import Tree
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode, default_device
from treadle.graph.builder import GraphOperand
from treadle.graph.ir import Value
from treadle.jit.capture import Capture
from treadle.jit.captured import CapturedCall, Source, State
from treadle.jit.ops_table import BY_OP, MODES
from treadle.ops.check import AssertEqual
from treadle.ops.families import Elementwise, Reduce
from treadle.ops.op import Op
from treadle.ops.select import Where
from treadle.runtime.array import to_host
from treadle.tensor import Tensor


def mode_of(op: Op) -> str:
    """The mode of an elementwise function or a reduction, as MegEngine spells it."""
    return MODES.get(op.name, op.name.upper())


def kind_of(op: Op) -> str:
    """Return the name of an op in names of values."""
    if op.name in BY_OP:
        return BY_OP[op.name].removesuffix("Forward")
    if isinstance(op, Reduce):
        return "Reduce"
    return mode_of(op) if isinstance(op, Elementwise) else op.name


class Scopes:
    """An observer that knows which modules run, from the outermost on."""

    def __init__(self) -> None:
        self._stack: list[tuple[Any, str]] = []
        self._below: dict[int, dict[int, str]] = {}
        self.parameters: dict[int, str] = {}

    @property
    def scope(self) -> str:
        """Names of the running modules, joined by dots."""
        return ".".join(name for _, name in self._stack if name)

    def launch(self, op: Op, launch: Callable[..., Any], /) -> Callable[..., Any]:
        """Return the launch: ops are not looked at."""
        return launch

    def program(self, name: str, run: Callable[[], Any], /) -> Any:
        """Run a program: programs are not observed."""
        return run()

    def module(self, module: Any, inputs: tuple[Any, ...], forward: Callable[[], Any], /) -> Any:
        """Run a module inside of its scope."""
        self._stack.append((module, self._called(module)))
        for name, tensor in module.named_parameters(recursive=False):
            path = ".".join(part for part in (self.scope, tensor.name or name) if part)
            self.parameters.setdefault(id(tensor), path)
        try:
            return forward()
        finally:
            self._stack.pop()

    def _called(self, module: Any) -> str:
        own = getattr(module, "name", None)
        if own or not self._stack:
            return str(own or "")
        around = self._stack[-1][0]
        if id(around) not in self._below:
            names: dict[int, str] = {}
            for path, found in around.named_modules():
                names.setdefault(id(found), path)
            self._below[id(around)] = names
        return self._below[id(around)].get(id(module), "")


class ReadableShape(tuple[Any, ...]):
    """A shape that has MegEngine's `numpy()`: inside of a trace it is a tensor there."""

    __slots__ = ()

    def numpy(self) -> Any:
        """The extents as an int32 array."""
        return np.array(self, np.int32)


class Traced(Capture):
    """A capture of `trace`."""

    shape_seen = ReadableShape


class Named(Traced):
    """A capture that names what it appends."""

    for_file = True

    def __init__(self, name: str, scopes: Scopes) -> None:
        super().__init__(name)
        self._scopes = scopes
        self._given = ""

    @contextmanager
    def called(self, name: str) -> Iterator[None]:
        """Place ops of the block at a node of another format, whose name goes before all others."""
        before, self._given = self._given, name
        try:
            with super().called(name):
                yield
        finally:
            self._given = before

    def apply(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[Tensor, ...]:
        """Append an op."""
        made = ".".join(part for part in (self._scopes.scope, kind_of(op)) if part)
        name = self._given or made
        with self._builder.at(self._builder.loc, self._builder.group, name):
            return super().apply(op, inputs)

    def finish(self, results: list[Any], shape: Tree, decisions: Decisions) -> CapturedCall:
        """Collect outputs, and what the program calls them."""
        named = {self._output(r): r.name for r in results if isinstance(r, Tensor) and r.name}
        return replace(super().finish(results, shape, decisions), named=named)

    def _input(
        self, type_: TensorType, source: Source, name: str = "", at: CompNode | None = None
    ) -> GraphOperand:
        if isinstance(source, State):
            name = self._scopes.parameters.get(id(source.tensor), name)
        return super()._input(type_, source, name, at)


class Fixing(Named):
    """A capture of one call for a dump: what the function reads becomes a constant.

    The program compares it with what it computes, and ends where the two differ.
    """

    def __init__(self, name: str, scopes: Scopes) -> None:
        super().__init__(name, scopes)
        self._fixed: dict[Value, Array] = {}

    def _fold(self, value: Value, known: dict[Value, Array]) -> bool:
        known |= {b.symbol.operand.value: to_host(b.payload) for b in self._bound.values()}
        return value in known or super()._fold(value, known)

    def read(self, value: Value) -> Array:
        """The array a value has in this call."""
        self._fixed[value] = array = super().read(value)
        return array

    def finish(self, results: list[Any], shape: Tree, decisions: Decisions) -> CapturedCall:
        """Collect outputs, behind the comparison of everything that was read."""
        differ = [self._differs(*item) for item in self._fixed.items() if item[1].size]
        if differ:
            some = reduce(operator.or_, differ)
            for i, result in enumerate(results):
                if isinstance(result, Tensor):
                    results[i] = Where()(some, result.constant(0, result.type.dtype), result)
                    results[i].name = result.name
        return super().finish(results, shape, decisions)

    def _differs(self, value: Value, array: Array) -> Tensor:
        """False, out of a check that a value is the array: outputs that need it need the check."""
        (read,) = self._wrapped([GraphOperand(self._builder, value)], default_device())
        if read.type.dtype is bool_:
            read, array = read.astype("uint8"), array.astype("uint8")
        most = 1e-6 if read.type.dtype.is_float else 0.0
        same = AssertEqual(most)(read, read.constant(array)).astype("float32")
        beyond = same.constant((2 * np.abs(array.astype("float32")) + 1).astype("float32"))
        return (same - beyond).max() > 0.0


@contextmanager
def scoped(named: type[Named] = Named) -> Iterator[Callable[[str], Capture]]:
    """Yield a maker of captures that name what they append, for the time of the block."""
    scopes = Scopes()
    free = OBSERVER.now is None
    if free:
        observe(scopes)
    try:
        yield lambda name: named(name, scopes)
    finally:
        if free:
            observe(None)


def numbered(names: Sequence[str]) -> list[str]:
    """The names, those that are there several times with numbers behind them."""
    total, seen = Counter(names), Counter[str]()
    found = []
    for name in names:
        found.append(f"{name}[{seen[name]}]" if name and total[name] > 1 else name)
        seen[name] += 1
    return found


__all__ = [
    "Fixing",
    "Named",
    "ReadableShape",
    "Scopes",
    "Traced",
    "kind_of",
    "mode_of",
    "numbered",
    "scoped",
]
