"""`Builder`: writes a function, statement by statement."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Any, TypeVar, cast

from treadle.backends.codegen.kernel.ir import (
    IMPURE,
    Block,
    Branch,
    Call,
    Instruction,
    KernelModule,
    KernelRoutine,
    Loop,
)
from treadle.backends.codegen.kernel.language import (
    INDEX,
    Emitter,
    InstructionOperand,
    KernelError,
    Number,
    Pointer,
    Type,
    V,
    Value,
    pointer,
    size,
)
from treadle.base import dtype as dt
from treadle.base.dtype import DType

R = TypeVar("R")
Changing = list[V] | tuple[list[Any], ...]
"""Lists whose items a block may replace: what a loop carries, or a branch decides on."""
Given = DType | str | tuple[str, ...] | type[Any] | Callable[[], Any] | None
"""The making of a field of a record: see `Builder.record`."""


def numbered(name: str, count: int) -> tuple[str, ...]:
    """Names of `count` parameters."""
    return tuple([f"{name}{i}" for i in range(count)])


class Builder(Emitter):
    """Writes one function: what is not an operator of its values.

    Index arithmetic on numbers is folded, equal pure instructions are written once. With `flushes`,
    casts to bfloat16 may take subnormal numbers for 0, as products of bfloat16 do.
    """

    def __init__(self, parameters: Iterable[InstructionOperand] = ()) -> None:
        super().__init__()
        self.block = Block()
        self._known: list[dict[Any, Value]] = [{}]
        self._branch: tuple[Branch, Sequence[list[Any]]] | None = None
        self.parameters: list[InstructionOperand] = [self.adopt(p) for p in parameters]

    def adopt(self, parameter: V) -> V:
        """The parameter, which belongs to this function from now on."""
        parameter.emitter = self
        return parameter

    def pointer(self, dtype: DType, name: str = "") -> Pointer:
        """A further parameter, which points to elements."""
        self.parameters.append(made := self.adopt(pointer(dtype, name)))
        return made

    def size(self, name: str = "") -> Value:
        """A further parameter that is an extent, a stride or any other 64-bit integer."""
        self.parameters.append(made := self.adopt(size(name)))
        return made

    def sizes(self, *names: str) -> list[Value]:
        """Several of these."""
        return [self.size(name) for name in names]

    def record(self, kind: type[R], **given: Given) -> R:
        """Further parameters, one for each field of a record, in order.

        A field for which nothing is given is a size. Others are pointers to elements of a type,
        a size or a tuple of sizes of some names, records, what a function makes, and None.
        """
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        given = {**getattr(kind, "given", {}), **given}
        if unknown := given.keys() - {*names}:
            raise KernelError(f"{kind} has no {sorted(unknown)}")

        def made(name: str) -> Any:
            match given.get(name, name):
                case str() as size_name:
                    return self.size(size_name)
                case DType() as dtype:
                    return self.pointer(dtype, name)
                case tuple() as sizes:
                    return tuple(self.sizes(*sizes))
                case type() as sizes:
                    return self.record(sizes)
                case how:
                    return how and how()

        return kind(*map(made, names))

    # -- instructions ----------------------------------------------------------------------

    def constant(self, value: Number, dtype: DType, lanes: int = 1) -> Value:
        key = ("literal", repr(value), dtype, lanes)
        found = self._known[0].get(key)
        if found is None:
            made = Value(Type(dtype, lanes), literal=value, emitter=self)
            found = self._known[0][key] = made
        return found

    def index(self, value: int | Value) -> Value:
        """An index: a 64-bit integer."""
        return value if isinstance(value, Value) else self.constant(value, dt.int64)

    def emit(
        self,
        code: str,
        arguments: Iterable[InstructionOperand],
        type_: Type | None,
        detail: Any = (),
    ) -> Value:
        args = tuple(arguments)
        key = (code, tuple(map(id, args)), type_, detail)
        if code not in IMPURE:
            for scope in reversed(self._known):
                known: Value | None = scope.get(key)
                if known is not None:
                    return known
        if any(a.emitter is not self for a in args):
            raise KernelError(f"{code} takes a value of another function")
        result: Value | None = None if type_ is None else self._made(type_)
        self.block.statements.append(Instruction(code, args, result, detail))
        if result is None:
            return _NOTHING
        if code not in IMPURE:
            # The instruction keeps its arguments alive, so their ids stay unique.
            self._known[-1][key] = result
        return result

    def _made(self, type_: Type) -> Any:
        return (Pointer if type_.pointer else Value)(type_, emitter=self)

    def iota(self, dtype: DType, lanes: int) -> Value:
        """0, 1, 2, ... by lane."""
        return self.emit("iota", (), Type(dtype, lanes))

    def first_lanes(self, count: Value | int, lanes: int) -> Value:
        """A mask: true in the first `count` lanes (count may exceed the number of lanes)."""
        return self.emit("first_lanes", (self.index(count),), Type(dt.bool_, lanes))

    def stack(self, dtype: DType, count: int) -> Pointer:
        """Scratch memory of this call, aligned to 64 bytes, not initialized; at most 1 MiB.

        Written at the top of a function, never in a loop.
        """
        if count * dtype.itemsize > 1 << 20:
            raise KernelError(f"{count} x {dtype.name} is too much for the stack")
        return cast(Pointer, self.emit("stack", (), Type(dtype, pointer=True), (count,)))

    # -- structure -------------------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        start: Value | int,
        stop: Value | int | None = None,
        step: Value | int = 1,
        *,
        carrying: Changing[Any] = (),
    ) -> Iterator[Value]:
        """A block that is run `for index in range(start, stop, step)`; `step` is positive.

        Items of `carrying` go from turn to turn: in the block they are what the turn before has
        left there, and behind it what the last one has. A loop that is known to turn once is
        written without one, what never runs is not written.
        """
        begin, end = (0, start) if stop is None else (start, stop)
        first, last, stride = self.index(begin), self.index(end), self.index(step)
        lists = carrying if isinstance(carrying, tuple) else (carrying,)
        initial = _items(lists)
        if first.literal is not None and last.literal is not None and stride.literal is not None:
            if first.literal >= last.literal:
                with self._inside():
                    yield first
                _assign(lists, initial)
                return
            if first.literal + stride.literal >= last.literal:
                yield first
                _check(lists, initial)
                return
        index = Value(INDEX, emitter=self)
        carried = tuple(self._made(v.type) for v in initial)
        _assign(lists, carried)
        with self._inside() as block:
            yield index
            yielded = _check(lists, initial)
        results = tuple(self._made(v.type) for v in initial)
        _assign(lists, results)
        self.block.statements.append(
            Loop(index, first, last, stride, initial, carried, block, yielded, results)
        )

    @contextmanager
    def when(self, condition: Value, *, changing: Changing[Any] = ()) -> Iterator[None]:
        """A block that runs where a scalar condition holds.

        Items of `changing` stay what they are where it does not run. `otherwise` may follow.
        """
        lists = changing if isinstance(changing, tuple) else (changing,)
        initial = _items(lists)
        with self._inside() as block:
            yield
            values = _check(lists, initial)
        results = tuple(self._made(v.type) for v in initial)
        branch = Branch(condition, block, values, Block(), initial, results)
        self.block.statements.append(branch)
        self._branch = branch, lists
        _assign(lists, results)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The block that runs where that of the `when` before does not; it changes the same items.

        Raises:
            KernelError: there is no such `when`, or something was written in between.
        """
        if self._branch is None or self.block.statements[-1] is not self._branch[0]:
            raise KernelError("otherwise() follows a when()")
        (branch, lists), self._branch = self._branch, None
        _assign(lists, branch.otherwise_values)
        with self._inside() as branch.otherwise:
            yield
            branch.otherwise_values = _check(lists, branch.results)
        _assign(lists, branch.results)

    def when_all(self, conditions: Iterable[Value | None]) -> AbstractContextManager[None]:
        """A block that runs where every condition that is given holds; always where none is."""
        given = [c for c in conditions if c is not None]
        return self.when(reduce(operator.and_, given)) if given else nullcontext()

    @contextmanager
    def unless(self, condition: Value, *, changing: Changing[Any] = ()) -> Iterator[None]:
        """A block that runs where a scalar condition does not hold; see `when`."""
        with self.when(condition, changing=changing):
            pass
        with self.otherwise():
            yield

    @contextmanager
    def _inside(self) -> Iterator[Block]:
        """A block of its own, in which what is written until the end lands."""
        outer, self.block = self.block, Block()
        self._known.append({})
        try:
            yield self.block
        finally:
            self._known.pop()
            self.block = outer

    def call(self, function: KernelRoutine, *arguments: InstructionOperand | int) -> None:
        """Call another function of the kernel."""
        args = tuple(a if isinstance(a, InstructionOperand) else self.index(a) for a in arguments)
        wanted = [p.type for p in function.parameters]
        if [a.type for a in args] != wanted:
            raise KernelError(f"{function.name} takes {[str(t) for t in wanted]}")
        self.block.statements.append(Call(function, args))

    # -- matrix registers ------------------------------------------------------------------

    def begin_matrices(self) -> None:
        """Make the eight matrix registers 16 rows of 64 bytes each."""
        self.emit("begin_matrices", (), None)

    def end_matrices(self) -> None:
        """Give the matrix registers back."""
        self.emit("end_matrices", (), None)

    def matrix_zero(self, register: int) -> None:
        """Zero bytes."""
        self.emit("matrix_zero", (), None, (register,))

    def matrix_load(
        self,
        register: int,
        pointer: InstructionOperand,
        step: Value | int,
        *,
        streaming: bool = False,
    ) -> None:
        """Row r becomes the 64 bytes from `pointer[r * step]` on.

        `streaming` hints that they are not needed again soon.
        """
        detail = (register, *("streaming",) * streaming)
        self.emit("matrix_load", (pointer, self.index(step)), None, detail)

    def matrix_store(self, register: int, pointer: InstructionOperand, step: Value | int) -> None:
        """The 64 bytes of row r go to `pointer[r * step]` and on."""
        self.emit("matrix_store", (pointer, self.index(step)), None, (register,))

    def matrix_dot(self, total: int, x: int, y: int, a: DType, b: DType) -> None:
        """total[r, j] += the products of the terms in x[r, w] and y[w, j], over all words w.

        A word of 32 bits holds two bfloat16, summed as float32, or four of int8 or uint8, summed as
        int32: the types of the terms in x and y are `a` and `b`.
        """
        self.emit("matrix_dot", (), None, (total, x, y, a.name, b.name))

    # -- the end ---------------------------------------------------------------------------

    def function(self, name: str) -> KernelRoutine:
        """The function; nothing can be written afterwards."""
        made = KernelRoutine(name, tuple(self.parameters), self.block)
        # Values outlive this, and know it: what it remembers would live with them.
        self.block, self._known = Block(), [{}]
        self.widened, self.exact, self.parameters = {}, set(), []
        return made


class KernelBuilder(Builder):
    """Writes a kernel's entry, which runs the work items of [lo, hi)."""

    def __init__(self, parameters: Iterable[InstructionOperand] = ()) -> None:
        super().__init__(parameters)
        self.lo, self.hi = self.adopt(size("lo")), self.adopt(size("hi"))

    def items(self, *, carrying: Changing[Any] = ()) -> AbstractContextManager[Value]:
        """A block that is run for every item."""
        return self.loop(self.lo, self.hi, carrying=carrying)

    def kernel(
        self, name: str, functions: Sequence[KernelRoutine] = (), features: Sequence[str] = ()
    ) -> KernelModule:
        """The kernel; `functions` are what the entry calls, and what those call, callees first."""
        self.parameters += self.lo, self.hi
        return KernelModule(name, self.function(name), tuple(functions), tuple(features))


def builder_of(x: InstructionOperand) -> Builder:
    """The builder of the function that a value belongs to."""
    if not isinstance(x.home, Builder):
        raise KernelError("values are made by builders")
    return x.home


_NOTHING = Value(Type(dt.bool_), "nothing")


def _items(lists: Sequence[list[Any]]) -> tuple[InstructionOperand, ...]:
    return tuple(item for items in lists for item in items)


def _assign(lists: Sequence[list[Any]], values: Sequence[InstructionOperand]) -> None:
    """Other items, as many as there are."""
    left = iter(values)
    for items in lists:
        items[:] = [next(left) for _ in items]


def _check(
    lists: Sequence[list[Any]], like: Sequence[InstructionOperand]
) -> tuple[InstructionOperand, ...]:
    """The items at the end of a block, which have the types they had before."""
    values = _items(lists)
    found, wanted = ([str(v.type) for v in part] for part in (values, like))
    if found != wanted:
        raise KernelError(f"a block leaves {found}, not {wanted}")
    return values
