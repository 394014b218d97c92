"""The kernel IR: the small typed language every generated kernel is written in.

A kernel is one function over a range [lo, hi) of work items, which may be run in any order and on
any thread. Its parameters are pointers and 64-bit integers; extents and strides are parameters as
a rule, so that one kernel serves many shapes. Inside there are structured loops and branches whose
results are explicit (no variables, no phis), scalars and vectors of a fixed number of lanes.

Generators write kernels with `Builder`; `interpret.py` runs them in Python, `llvm_text.py` and
`c_text.py` print them. Renderers only print: whatever depends on a target is decided before.

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
* bool is one byte in memory, 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from treadle.base import dtype as dt
from treadle.base.dtype import DType

Number = bool | int | float
Reduction = Literal["add", "mul", "min", "max", "and", "or"]


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar (`lanes` 1), a vector, or a pointer to elements of `dtype`."""

    dtype: DType
    lanes: int = 1
    pointer: bool = False

    def __str__(self) -> str:
        if self.pointer:
            return f"*{self.dtype.name}"
        return f"{self.dtype.name}x{self.lanes}" if self.lanes > 1 else self.dtype.name


INDEX = Type(dt.int64)
"""Type of extents, strides, indices and loop counters."""


@dataclass(slots=True, eq=False)
class Value:
    """A result, a parameter, or (`literal` not None) a constant, splat over the lanes."""

    type: Type
    name: str = ""
    literal: Number | None = None

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def lanes(self) -> int:
        """Number of lanes; 1 for scalars."""
        return self.type.lanes


@dataclass(slots=True, eq=False)
class Instruction:
    """`result = code(arguments)`; `detail` holds what is no value, such as a shuffle's order."""

    code: str
    arguments: tuple[Value, ...]
    result: Value | None
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
    initial: tuple[Value, ...]
    carried: tuple[Value, ...]
    body: Block
    yielded: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Branch:
    """`results = then if condition else otherwise`; only one of the two blocks runs."""

    condition: Value
    then: Block
    then_values: tuple[Value, ...]
    otherwise: Block
    otherwise_values: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class Call:
    """A call of another function of the kernel, which returns nothing."""

    function: Function
    arguments: tuple[Value, ...]


Statement = Instruction | Loop | Branch | Call


@dataclass(slots=True, eq=False)
class Function:
    """A body over parameters; a kernel's entry or one of the functions it calls."""

    name: str
    parameters: tuple[Value, ...]
    body: Block


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Kernel:
    """An entry function and, in `functions`, everything it calls, callees first.

    The last two parameters of the entry are `lo` and `hi`, the range of work items; those before
    are what a launch passes. `features` are the CPU features the kernel needs.
    """

    name: str
    entry: Function
    functions: tuple[Function, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[Value, ...]:
        """What a launch passes."""
        return self.entry.parameters[:-2]


class KernelError(TypeError):
    """A generator wrote a kernel that the language does not allow: a defect of Treadle."""


ARITHMETIC = frozenset(("add", "sub", "mul", "div", "rem", "min", "max", "copysign"))
UNARY = frozenset(("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint"))
COMPARE = frozenset(("eq", "ne", "lt", "le"))
BITWISE = frozenset(("and", "or", "xor", "shl", "shr"))
EFFECTS = frozenset(("store", "scatter", "prefetch", "copy", "zero"))
IMPURE = EFFECTS | {"load", "gather", "stack"}
"""Codes whose instructions are never shared: they read or write memory."""

_FOLDED: dict[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "min": min,
    "max": max,
}


class Builder:
    """Writes one function, statement by statement.

    Operands may be Python numbers: they take the type of the operand beside them. Index arithmetic
    on numbers is folded, equal pure instructions are written once.
    """

    def __init__(self) -> None:
        self.block = Block()
        self._known: list[dict[Any, Value]] = [{}]

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
        values = [v for v in given if isinstance(v, Value)]
        if not values:
            raise KernelError("an instruction needs at least one operand that is no number")
        like = max(values, key=lambda v: v.lanes)
        made: list[Value] = []
        for v in given:
            if not isinstance(v, Value):
                made.append(self.constant(v, like.dtype, like.lanes))
            elif v.lanes != like.lanes and v.lanes == 1:
                made.append(self.splat(v, like.lanes))
            else:
                made.append(v)
        if any(v.type != like.type for v in made):
            raise KernelError(f"operands differ in type: {[str(v.type) for v in made]}")
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

    # -- arithmetic ------------------------------------------------------------------------

    def _binary(self, code: str, x: Value | Number, y: Value | Number) -> Value:
        a, b = self._operands((x, y))
        if a.type == INDEX and code in _FOLDED:
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
        """The value converted to another element type; x itself where it has it."""
        if x.dtype is dtype:
            return x
        if x.literal is not None and not (dtype is dt.bool_ or x.dtype is dt.bool_):
            number = _held(x.literal, x.dtype)
            if dtype.is_float or math.isfinite(number):
                number = float(number) if dtype.is_float else int(number)
                return self.constant(number, dtype, x.lanes)
        return self.emit("cast", (x,), Type(dtype, x.lanes))

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another element type, which need not have the same size."""
        bits = x.lanes * x.dtype.bits
        if bits % dtype.bits:
            raise KernelError(f"{x.type} has no whole number of {dtype.name}")
        return self.emit("bitcast", (x,), Type(dtype, bits // dtype.bits))

    def splat(self, x: Value, lanes: int) -> Value:
        """A scalar in every lane; x itself where it has that many lanes."""
        if x.lanes == lanes:
            return x
        if x.lanes != 1:
            raise KernelError(f"only scalars are splat, not {x.type}")
        if x.literal is not None:
            return self.constant(x.literal, x.dtype, lanes)
        return self.emit("splat", (x,), Type(x.dtype, lanes))

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

    def dot(self, total: Value, x: Value, y: Value) -> Value:
        """total + the products of neighbours: four uint8 by int8 into int32, or two bfloat16
        into float32. x and y have four (two) times as many lanes as `total`."""
        return self.emit("dot", (total, x, y), total.type)

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


_NOTHING = Value(Type(dt.bool_), "nothing")


def _values(given: Any, like: Sequence[Value]) -> tuple[Value, ...]:
    """What a body returned, as a tuple of the expected types."""
    values = () if given is None else given if isinstance(given, tuple) else (given,)
    if [v.type for v in values] != [v.type for v in like]:
        found = [str(v.type) for v in values]
        raise KernelError(f"a body yields {found}, not {[str(v.type) for v in like]}")
    return values


def pointer(dtype: DType, name: str = "") -> Value:
    """A parameter that points to elements."""
    return Value(Type(dtype, pointer=True), name)


def size(name: str = "") -> Value:
    """A parameter that is an extent, a stride or any other 64-bit integer."""
    return Value(INDEX, name)


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
