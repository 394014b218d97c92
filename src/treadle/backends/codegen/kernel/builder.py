"""`Builder`: writes kernels, instruction by instruction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from treadle.backends.codegen.kernel.ir import (
    BITWISE,
    COMPARE,
    IMPURE,
    INDEX,
    UNARY,
    Block,
    Branch,
    Call,
    Function,
    Instruction,
    Kernel,
    KernelError,
    Loop,
    Number,
    Reduction,
    Type,
    Value,
    size,
)
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_FOLDED: dict[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "min": min,
    "max": max,
}


class Writer:
    """Appends statements to blocks: constants, instructions, loops, branches and calls."""

    def __init__(self) -> None:
        self.block = Block()
        self._known: list[dict[Any, Value]] = [{}]
        self._widened: dict[Value, Value] = {}
        self._holding: set[Value] = set()
        self.flushes = False

    # -- constants and operands ------------------------------------------------------------

    def constant(self, value: Number, dtype: DType, lanes: int = 1) -> Value:
        """A literal, the same in every lane."""
        key = ("literal", repr(value), dtype, lanes)
        found = self._known[0].get(key)
        if found is None:
            found = self._known[0][key] = Value(Type(dtype, lanes), literal=value)
        return found

    def index(self, value: int | Value) -> Value:
        """An index: a 64-bit integer."""
        return value if isinstance(value, Value) else self.constant(value, dt.int64)

    def _operands(self, given: Sequence[Value | Number]) -> tuple[Value, ...]:
        """Values of one type; numbers become literals of it, scalars beside vectors are splat."""
        types = [v.type for v in given if isinstance(v, Value)]
        if not types:
            raise KernelError("an instruction needs at least one operand that is no number")
        like = types[0]
        for type_ in types:
            if type_.lanes > like.lanes:
                like = type_
        made: list[Value] = []
        for v in given:
            if not isinstance(v, Value):
                v = self.constant(v, like.dtype, like.lanes)
            elif v.type.lanes != like.lanes and v.type.lanes == 1:
                v = self.splat(v, like.lanes)
            if v.type is not like and v.type != like:
                raise KernelError(f"operands differ in type: {v.type} and {like}")
            made.append(v)
        return tuple(made)

    def emit(
        self, code: str, arguments: Iterable[Value], type_: Type | None, detail: Any = ()
    ) -> Value:
        """Append an instruction, or find the equal one already written; its result."""
        args = tuple(arguments)
        key = (code, tuple(map(id, args)), type_, detail)
        if code not in IMPURE:
            for scope in reversed(self._known):
                known: Value | None = scope.get(key)
                if known is not None:
                    return known
        result = None if type_ is None else Value(type_)
        self.block.statements.append(Instruction(code, args, result, detail))
        if result is None:
            return _NOTHING
        if code not in IMPURE:
            # The instruction keeps its arguments alive, so their ids stay unique.
            self._known[-1][key] = result
        return result

    def splat(self, x: Value, lanes: int) -> Value:
        """A scalar in every lane; x itself where it has that many lanes."""
        if x.lanes == lanes:
            return x
        if x.lanes != 1:
            raise KernelError(f"only scalars are splat, not {x.type}")
        if x.literal is not None:
            return self.constant(x.literal, x.dtype, lanes)
        return self.emit("splat", (x,), Type(x.dtype, lanes))

    # -- structure -------------------------------------------------------------------------

    def loop(
        self,
        start: Value | int,
        stop: Value | int,
        step: Value | int,
        body: Callable[..., Any],
        initial: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """`for index in range(start, stop, step): carried = body(index, *carried)`.

        `body` returns one value per carried one: nothing, a value, or a tuple. A loop that is known
        to turn once, or never, is written without a loop. Returns what is carried at the end.
        """
        first, last, stride = self.index(start), self.index(stop), self.index(step)
        if first.literal is not None and last.literal is not None and stride.literal is not None:
            if first.literal >= last.literal:
                return tuple(initial)
            if first.literal + stride.literal >= last.literal:
                return _values(body(first, *initial), initial)
        index = Value(INDEX)
        carried = tuple(Value(v.type) for v in initial)
        inner, yielded = self._inside(lambda: _values(body(index, *carried), carried))
        results = tuple(Value(v.type) for v in initial)
        self.block.statements.append(
            Loop(index, first, last, stride, tuple(initial), carried, inner, yielded, results)
        )
        return results

    def branch(
        self,
        condition: Value,
        then: Callable[[], Any],
        otherwise: Callable[[], Any] | None = None,
        like: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """Run one of two; each returns values of the types of `like` (nothing, one or a tuple)."""
        first, then_values = self._inside(lambda: _values(then(), like))
        second, else_values = self._inside(
            lambda: _values(otherwise() if otherwise else None, like)
        )
        results = tuple(Value(v.type) for v in like)
        self.block.statements.append(
            Branch(condition, first, then_values, second, else_values, results)
        )
        return results

    def call(self, function: Function, *arguments: Value | int) -> None:
        """Call another function of the kernel."""
        args = tuple(self.index(a) if isinstance(a, int) else a for a in arguments)
        wanted = [p.type for p in function.parameters]
        if [a.type for a in args] != wanted:
            raise KernelError(f"{function.name} takes {[str(t) for t in wanted]}")
        self.block.statements.append(Call(function, args))

    def _inside(self, write: Callable[[], tuple[Value, ...]]) -> tuple[Block, tuple[Value, ...]]:
        """What `write` appends, as a block of its own, and what it returns."""
        outer, self.block = self.block, Block()
        self._known.append({})
        try:
            values = write()
            return self.block, values
        finally:
            self._known.pop()
            self.block = outer


def _held(number: Number, dtype: DType) -> int | float:
    """What is left of a number when an element type holds it."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return float(np.asarray(number, np.float64).astype(dtype.numpy))
    sign = 1 << (dtype.bits - 1) if dtype.kind == "int" else 0
    return (int(number) + sign) % (1 << dtype.bits) - sign


class Builder(Writer):
    """Writes one function, statement by statement.

    Operands may be Python numbers: they take the type of the operand beside them. Index arithmetic
    on numbers is folded, equal pure instructions are written once. With `flushes`, casts to
    bfloat16 may take subnormal numbers for 0, as products of bfloat16 do.
    """

    # -- arithmetic ------------------------------------------------------------------------

    def _binary(self, code: str, x: Value | Number, y: Value | Number) -> Value:
        a, b = self._operands((x, y))
        if code in _FOLDED and a.type == INDEX:
            folded = self._fold(code, a, b)
            if folded is not None:
                return folded
        return self.emit(code, (a, b), a.type)

    def _fold(self, code: str, x: Value, y: Value) -> Value | None:
        """Index arithmetic on literals, and what adds 0 or multiplies by 0 or 1."""
        if x.literal is not None and y.literal is not None:
            return self.index(_FOLDED[code](int(x.literal), int(y.literal)))
        if code in ("add", "mul") and x.literal is not None:
            x, y = y, x
        if y.literal == 0 and code in ("add", "sub"):
            return x
        if code == "mul" and y.literal in (0, 1):
            return x if y.literal == 1 else y
        return None

    def add(self, x: Value | Number, y: Value | Number) -> Value:
        return self._binary("add", x, y)

    def sub(self, x: Value | Number, y: Value | Number) -> Value:
        return self._binary("sub", x, y)

    def mul(self, x: Value | Number, y: Value | Number) -> Value:
        return self._binary("mul", x, y)

    def div(self, x: Value | Number, y: Value | Number) -> Value:
        return self._binary("div", x, y)

    def rem(self, x: Value | Number, y: Value | Number) -> Value:
        return self._binary("rem", x, y)

    def min(self, x: Value | Number, y: Value | Number) -> Value:
        return self._binary("min", x, y)

    def max(self, x: Value | Number, y: Value | Number) -> Value:
        return self._binary("max", x, y)

    def copysign(self, x: Value | Number, y: Value | Number) -> Value:
        """Magnitude of x, sign of y."""
        return self._binary("copysign", x, y)

    def fma(self, x: Value | Number, y: Value | Number, z: Value | Number) -> Value:
        """x * y + z, rounded once; floating types."""
        args = self._operands((x, y, z))
        return self.emit("fma", args, args[0].type)

    def unary(self, code: str, x: Value) -> Value:
        """One of `UNARY`; the rounding ones, and sqrt, of floats only."""
        if code not in UNARY:
            raise KernelError(f"{code} is no unary instruction")
        return self.emit(code, (x,), x.type)

    def neg(self, x: Value) -> Value:
        return self.unary("neg", x)

    def abs(self, x: Value) -> Value:
        return self.unary("abs", x)

    def sqrt(self, x: Value) -> Value:
        return self.unary("sqrt", x)

    def bitwise(self, code: str, x: Value | Number, y: Value | Number) -> Value:
        """One of `BITWISE`, on integers, or (and, or, xor) on bools."""
        if code not in BITWISE:
            raise KernelError(f"{code} is no bitwise instruction")
        return self._binary(code, x, y)

    def invert(self, x: Value) -> Value:
        """Every bit, or the truth value, inverted."""
        return self.bitwise("xor", x, True if x.dtype is dt.bool_ else -1)

    def compare(self, code: str, x: Value | Number, y: Value | Number) -> Value:
        """One of `COMPARE`: bool, with the operands' lanes."""
        if code not in COMPARE:
            raise KernelError(f"{code} is no comparison")
        a, b = self._operands((x, y))
        return self.emit(code, (a, b), Type(dt.bool_, a.lanes))

    def select(self, condition: Value, x: Value | Number, y: Value | Number) -> Value:
        """x where the condition holds, else y, lane by lane."""
        a, b = self._operands((x, y))
        if condition.lanes != a.lanes:
            lanes = max(condition.lanes, a.lanes)
            condition, a, b = (self.splat(v, lanes) for v in (condition, a, b))
        return self.emit("select", (condition, a, b), a.type)

    # -- types and lanes -------------------------------------------------------------------

    def cast(self, x: Value, dtype: DType) -> Value:
        """The value converted to another element type; x itself where it has it.

        What a 16-bit float was widened to becomes that one again, without an instruction.
        """
        if x.dtype is dtype:
            return x
        narrow = self._widened.get(x)
        if narrow is not None and narrow.dtype is dtype:
            return narrow
        if dtype is dt.bfloat16 and x in self._holding:
            high = self.bitwise("shr", self.bitcast(x, dt.uint32), 16)
            return self.bitcast(self.cast(high, dt.uint16), dtype)
        if x.literal is not None and not (dtype is dt.bool_ or x.dtype is dt.bool_):
            number = _held(x.literal, x.dtype)
            if dtype.is_float or math.isfinite(number):
                number = float(number) if dtype.is_float else int(number)
                return self.constant(number, dtype, x.lanes)
        detail = ("flush",) if dtype is dt.bfloat16 and self.flushes else ()
        result = self.emit("cast", (x,), Type(dtype, x.lanes), detail)
        if x.dtype.is_float and x.dtype.itemsize == 2:
            self._widened[result] = x
        return result

    def holding(self, x: Value, dtype: DType) -> Value:
        """x, which is known to hold a value of a 16-bit float: it becomes one without rounding."""
        if dtype is dt.bfloat16:
            self._holding.add(x)
        return x

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another element type, which need not have the same size."""
        bits = x.lanes * x.dtype.bits
        if bits % dtype.bits:
            raise KernelError(f"{x.type} has no whole number of {dtype.name}")
        return self.emit("bitcast", (x,), Type(dtype, bits // dtype.bits))

    def iota(self, dtype: DType, lanes: int) -> Value:
        """0, 1, 2, ... by lane."""
        return self.emit("iota", (), Type(dtype, lanes))

    def first_lanes(self, count: Value | int, lanes: int) -> Value:
        """A mask: true in the first `count` lanes (count may exceed the number of lanes)."""
        return self.emit("first_lanes", (self.index(count),), Type(dt.bool_, lanes))

    def shuffle(self, x: Value, y: Value, order: Sequence[int]) -> Value:
        """Lanes of x followed by y, picked by number; -1 leaves a lane undefined."""
        if x.type != y.type:
            raise KernelError(f"shuffle of {x.type} and {y.type}")
        return self.emit("shuffle", (x, y), Type(x.dtype, len(order)), tuple(order))

    def extract(self, x: Value, lane: int) -> Value:
        """One lane as a scalar."""
        return self.emit("extract", (x,), Type(x.dtype), (lane,))

    def insert(self, x: Value, lane: int, scalar: Value) -> Value:
        """x with one lane replaced."""
        return self.emit("insert", (x, scalar), x.type, (lane,))

    def reduce(self, code: Reduction, x: Value) -> Value:
        """All lanes combined, halves first; the number of lanes is a power of two."""
        return x if x.lanes == 1 else self.emit("reduce", (x,), Type(x.dtype), (code,))

    def dot(self, total: Value, x: Value, y: Value, *, narrow: bool = False) -> Value:
        """total + the products of neighbours: four uint8 by int8 or two int16 by int16 into int32,
        or two bfloat16 into float32. x and y have four (two) times as many lanes as `total`.

        `narrow` claims, for bytes, that the sums of the first two and of the last two products
        fit in int16: that is faster where nothing multiplies four bytes at once."""
        return self.emit("dot", (total, x, y), total.type, ("narrow",) * narrow)

    def lookup(self, x: Value, table: Sequence[int]) -> Value:
        """For every byte of x, below 16, the entry of a table of 16 bytes; others: unspecified."""
        if x.dtype is not dt.uint8 or len(table) != 16 or not all(0 <= n < 256 for n in table):
            raise KernelError(f"lookup of {x.type} in a table of {len(table)}")
        return self.emit("lookup", (x,), x.type, tuple(table))

    # -- memory ----------------------------------------------------------------------------

    def load(
        self,
        pointer: Value,
        index: Value | int,
        lanes: int = 1,
        mask: Value | None = None,
        aligned: bool = False,
    ) -> Value:
        """`lanes` elements from `pointer[index]` on.

        `aligned`: the address is a multiple of the vector's bytes, or of 64 where those are more.
        """
        args = (pointer, self.index(index)) if mask is None else (pointer, self.index(index), mask)
        return self.emit("load", args, Type(pointer.dtype, lanes), (aligned,))

    def store(
        self,
        pointer: Value,
        index: Value | int,
        value: Value,
        mask: Value | None = None,
        aligned: bool = False,
        streaming: bool = False,
    ) -> None:
        """Write to `pointer[index]` and on; `streaming` (aligned ones only) bypasses the cache."""
        if value.dtype is not pointer.dtype:
            raise KernelError(f"store of {value.type} through {pointer.type}")
        args = (pointer, self.index(index), value)
        self.emit("store", args if mask is None else (*args, mask), None, (aligned, streaming))

    def gather(self, pointer: Value, indices: Value, mask: Value | None = None) -> Value:
        """One element per lane, from `pointer[indices]`; indices are int32 or int64."""
        args = (pointer, indices) if mask is None else (pointer, indices, mask)
        return self.emit("gather", args, Type(pointer.dtype, indices.lanes))

    def scatter(
        self, pointer: Value, indices: Value, value: Value, mask: Value | None = None
    ) -> None:
        """One element per lane; where indices repeat, the last lane wins."""
        args = (pointer, indices, value)
        self.emit("scatter", args if mask is None else (*args, mask), None)

    def offset(self, pointer: Value, index: Value | int) -> Value:
        """The pointer moved by `index` elements."""
        place = self.index(index)
        if place.literal == 0:
            return pointer
        return self.emit("offset", (pointer, place), pointer.type)

    def reinterpret(self, pointer: Value, dtype: DType) -> Value:
        """The same address as a pointer to elements of another type."""
        if pointer.dtype is dtype:
            return pointer
        return self.emit("reinterpret", (pointer,), Type(dtype, pointer=True))

    def address(self, pointer: Value) -> Value:
        """The address of a pointer, in bytes, as an index."""
        return self.emit("address", (pointer,), INDEX)

    def stack(self, dtype: DType, count: int) -> Value:
        """Scratch memory of this call, aligned to 64 bytes, not initialized; at most 1 MiB.

        Written at the top of a function, never in a loop.
        """
        if count * dtype.itemsize > 1 << 20:
            raise KernelError(f"{count} x {dtype.name} is too much for the stack")
        return self.emit("stack", (), Type(dtype, pointer=True), (count,))

    def prefetch(self, pointer: Value, index: Value | int, *, write: bool = False) -> None:
        """A hint that the line at `pointer[index]` will be read (written) soon."""
        self.emit("prefetch", (pointer, self.index(index)), None, (write,))

    def copy(self, target: Value, source: Value, count: Value | int) -> None:
        """`count` elements from one place to another that does not overlap."""
        self.emit("copy", (target, source, self.index(count)), None)

    def zero(self, target: Value, count: Value | int) -> None:
        """`count` elements set to zero bytes."""
        self.emit("zero", (target, self.index(count)), None)

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
        self, register: int, pointer: Value, step: Value | int, *, streaming: bool = False
    ) -> None:
        """Row r becomes the 64 bytes from `pointer[r * step]` on.

        `streaming` hints that they are not needed again soon.
        """
        detail = (register, *("streaming",) * streaming)
        self.emit("matrix_load", (pointer, self.index(step)), None, detail)

    def matrix_store(self, register: int, pointer: Value, step: Value | int) -> None:
        """The 64 bytes of row r go to `pointer[r * step]` and on."""
        self.emit("matrix_store", (pointer, self.index(step)), None, (register,))

    def matrix_dot(self, total: int, x: int, y: int, a: DType, b: DType) -> None:
        """total[r, j] += the products of the terms in x[r, w] and y[w, j], over all words w.

        A word of 32 bits holds two bfloat16, summed as float32, or four of int8 or uint8, summed as
        int32: the types of the terms in x and y are `a` and `b`.
        """
        self.emit("matrix_dot", (), None, (total, x, y, a.name, b.name))


_NOTHING = Value(Type(dt.bool_), "nothing")


def _values(given: Any, like: Sequence[Value]) -> tuple[Value, ...]:
    """What a body returned, as a tuple of the expected types."""
    values = () if given is None else given if isinstance(given, tuple) else (given,)
    if [v.type for v in values] != [v.type for v in like]:
        found = [str(v.type) for v in values]
        raise KernelError(f"a body yields {found}, not {[str(v.type) for v in like]}")
    return values


def function(name: str, parameters: Sequence[Value], write: Callable[[Builder], None]) -> Function:
    """A function whose body `write` builds."""
    builder = Builder()
    write(builder)
    return Function(name, tuple(parameters), builder.block)


def kernel(
    name: str,
    parameters: Sequence[Value],
    write: Callable[[Builder, Value, Value], None],
    functions: Sequence[Function] = (),
    features: Sequence[str] = (),
) -> Kernel:
    """A kernel whose entry `write(builder, lo, hi)` builds."""
    lo, hi = size("lo"), size("hi")
    entry = function(name, (*parameters, lo, hi), lambda b: write(b, lo, hi))
    return Kernel(name, entry, tuple(functions), tuple(features))
