"""Values of the kernel language, with Python's operators.

`(p * height + row) * width` writes three instructions where the function is being built that the
values belong to. `Value` computes: scalars, and vectors of a fixed number of lanes. `Pointer` moves
(`panel + k * step`), reads (`panel[k]`, `panel.load(k, lanes)`) and writes (`panel[k] = x`).

A Python number beside a value takes its type, a scalar beside a vector is splat. `//` and `%` are
of integers and truncate, as in C; `/` is of floats; `==` compares, as `<` does. A value has no
truth until its kernel runs: `select` chooses between values, `Builder.when` between statements.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar, cast

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


class KernelError(TypeError):
    """A generator wrote a kernel that the language does not allow: a defect of Treadle."""


class Emitter(ABC):
    """A function that is being built, to which values write their instructions."""

    flushes = False
    """True where casts to bfloat16 may take subnormal numbers for 0."""

    def __init__(self) -> None:
        self.widened: dict[Value, Value] = {}
        self.exact: set[Value] = set()

    @abstractmethod
    def emit(
        self,
        code: str,
        arguments: Iterable[InstructionOperand],
        type_: Type | None,
        detail: Any = (),
    ) -> Value:
        """Append an instruction, or find the equal one already written; its result."""

    @abstractmethod
    def constant(self, value: Number, dtype: DType, lanes: int = 1) -> Value:
        """A literal, the same in every lane."""


@dataclass(slots=True, eq=False)
class InstructionOperand:
    """An operand of instructions: a result, a parameter, or (`literal` not None) a constant.

    A constant of a vector type is the same in every lane. `emitter` is where instructions with this
    operand are written; parameters have none until the function begins.
    """

    type: Type
    name: str = ""
    literal: Number | None = None
    emitter: Emitter | None = field(default=None, repr=False)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def lanes(self) -> int:
        """Number of lanes; 1 for scalars."""
        return self.type.lanes

    @property
    def home(self) -> Emitter:
        """The function to which instructions with this operand are written.

        Raises:
            KernelError: the operand is a parameter of a function that has not begun.
        """
        if self.emitter is None:
            raise KernelError(f"{self.name or 'a parameter'} is used before its function begins")
        return self.emitter

    def __bool__(self) -> NoReturn:
        raise KernelError("a value is known when its kernel runs: use select(), or Builder.when()")


class Value(InstructionOperand):
    """A scalar or a vector."""

    __slots__ = ()
    __hash__ = object.__hash__

    # -- arithmetic ------------------------------------------------------------------------

    def __add__(self, other: Value | Number) -> Value:
        return binary("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return binary("add", other, self)

    def __sub__(self, other: Value | Number) -> Value:
        return binary("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return binary("sub", other, self)

    def __mul__(self, other: Value | Number) -> Value:
        return binary("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return binary("mul", other, self)

    def __truediv__(self, other: Value | Number) -> Value:
        return binary("div", _of_floats(self), other)

    def __rtruediv__(self, other: Number) -> Value:
        return binary("div", other, _of_floats(self))

    def __floordiv__(self, other: Value | Number) -> Value:
        return binary("div", _of_integers(self), other)

    def __rfloordiv__(self, other: Number) -> Value:
        return binary("div", other, _of_integers(self))

    def __mod__(self, other: Value | Number) -> Value:
        return binary("rem", self, other)

    def __rmod__(self, other: Number) -> Value:
        return binary("rem", other, self)

    def __neg__(self) -> Value:
        return unary("neg", self)

    def __abs__(self) -> Value:
        return unary("abs", self)

    # -- bits ------------------------------------------------------------------------------

    def __and__(self, other: Value | Number) -> Value:
        return binary("and", self, other)

    def __or__(self, other: Value | Number) -> Value:
        return binary("or", self, other)

    def __xor__(self, other: Value | Number) -> Value:
        return binary("xor", self, other)

    def __lshift__(self, other: Value | Number) -> Value:
        return binary("shl", self, other)

    def __rshift__(self, other: Value | Number) -> Value:
        return binary("shr", self, other)

    def __invert__(self) -> Value:
        return binary("xor", self, True if self.dtype is dt.bool_ else -1)

    # -- comparisons -----------------------------------------------------------------------

    def __lt__(self, other: Value | Number) -> Value:
        return compare("lt", self, other)

    def __le__(self, other: Value | Number) -> Value:
        return compare("le", self, other)

    def __gt__(self, other: Value | Number) -> Value:
        return compare("lt", other, self)

    def __ge__(self, other: Value | Number) -> Value:
        return compare("le", other, self)

    def __eq__(self, other: Value | Number) -> Value:  # type: ignore[override]
        return compare("eq", self, other)

    def __ne__(self, other: Value | Number) -> Value:  # type: ignore[override]
        return compare("ne", self, other)

    # -- types and lanes -------------------------------------------------------------------

    def cast(self, dtype: DType) -> Value:
        """The value converted to another element type; the value itself where it has it.

        What a 16-bit float was widened to becomes that one again, without an instruction.
        """
        if self.dtype is dtype:
            return self
        home = self.home
        narrow = home.widened.get(self)
        if narrow is not None and narrow.dtype is dtype:
            return narrow
        if dtype is dt.bfloat16 and self in home.exact:
            return (self.bitcast(dt.uint32) >> 16).cast(dt.uint16).bitcast(dtype)
        if self.literal is not None and not (dtype is dt.bool_ or self.dtype is dt.bool_):
            number = _held(self.literal, self.dtype)
            if dtype.is_float or math.isfinite(number):
                number = float(number) if dtype.is_float else int(number)
                return home.constant(number, dtype, self.lanes)
        detail = ("flush",) if dtype is dt.bfloat16 and home.flushes else ()
        result = home.emit("cast", (self,), Type(dtype, self.lanes), detail)
        if self.dtype.is_float and self.dtype.itemsize == 2:
            home.widened[result] = self
        return result

    def holding(self, dtype: DType) -> Value:
        """The value, which is known to be one of a 16-bit float: it is cast without rounding."""
        if dtype is dt.bfloat16:
            self.home.exact.add(self)
        return self

    def bitcast(self, dtype: DType) -> Value:
        """The same bits as another element type, which need not have the same size."""
        bits = self.lanes * self.dtype.bits
        if bits % dtype.bits:
            raise KernelError(f"{self.type} has no whole number of {dtype.name}")
        return self.home.emit("bitcast", (self,), Type(dtype, bits // dtype.bits))

    def splat(self, lanes: int) -> Value:
        """A scalar in every lane; the value itself where it has that many lanes."""
        if self.lanes == lanes:
            return self
        if self.lanes != 1:
            raise KernelError(f"only scalars are splat, not {self.type}")
        if self.literal is not None:
            return self.home.constant(self.literal, self.dtype, lanes)
        return self.home.emit("splat", (self,), Type(self.dtype, lanes))

    def constant(self, number: Number, dtype: DType | None = None) -> Value:
        """A number in as many lanes, of this value's element type unless another one is given."""
        return self.home.constant(number, dtype or self.dtype, self.lanes)

    def extract(self, lane: int) -> Value:
        """One lane as a scalar."""
        return self.home.emit("extract", (self,), Type(self.dtype), (lane,))

    def insert(self, lane: int, scalar: Value) -> Value:
        """The vector with one lane replaced."""
        return self.home.emit("insert", (self, scalar), self.type, (lane,))

    def reduce(self, code: Reduction) -> Value:
        """All lanes combined, halves first; the number of lanes is a power of two."""
        if self.lanes == 1:
            return self
        return self.home.emit("reduce", (self,), Type(self.dtype), (code,))

    def lookup(self, table: Sequence[int]) -> Value:
        """Return entries of a table of 16 bytes at bytes below 16; unspecified for others."""
        if self.dtype is not dt.uint8 or len(table) != 16 or not all(0 <= n < 256 for n in table):
            raise KernelError(f"lookup of {self.type} in a table of {len(table)}")
        return self.home.emit("lookup", (self,), self.type, tuple(table))


class Pointer(Value):
    """A place in memory, before elements of one type; parameters, results of `stack`, or moved."""

    __slots__ = ()
    __iter__ = None  # what can be indexed is not therefore a sequence

    def __add__(self, index: Value | int) -> Pointer:  # type: ignore[override]
        """The pointer moved by `index` elements."""
        place = self._index(index)
        if place.literal == 0:
            return self
        return cast(Pointer, self.home.emit("offset", (self, place), self.type))

    def __getitem__(self, index: Value | int) -> Value:
        return self.load(index)

    def __setitem__(self, index: Value | int, value: Value | Number) -> None:
        self.store(index, value)

    def load(
        self,
        index: Value | int = 0,
        lanes: int = 1,
        mask: Value | None = None,
        *,
        aligned: bool = False,
    ) -> Value:
        """`lanes` elements from `index` on; 0 where the mask does not hold.

        `aligned`: the address is a multiple of the vector's bytes, or of 64 where those are more.
        """
        args = (self, self._index(index), *_given(mask))
        return self.home.emit("load", args, Type(self.dtype, lanes), (aligned,))

    def store(
        self,
        index: Value | int,
        value: Value | Number,
        mask: Value | None = None,
        *,
        aligned: bool = False,
        streaming: bool = False,
    ) -> None:
        """Write to `index` and on; `streaming` (aligned ones only) bypasses the cache."""
        args = (self, self._index(index), self._element(value), *_given(mask))
        self.home.emit("store", args, None, (aligned, streaming))

    def gather(self, indices: Value, mask: Value | None = None) -> Value:
        """One element per lane, by its index; indices are int32 or int64."""
        args = (self, indices, *_given(mask))
        return self.home.emit("gather", args, Type(self.dtype, indices.lanes))

    def scatter(self, indices: Value, value: Value, mask: Value | None = None) -> None:
        """One element per lane; where indices repeat, the last lane wins."""
        self.home.emit("scatter", (self, indices, value, *_given(mask)), None)

    def reinterpret(self, dtype: DType) -> Pointer:
        """The same address as a pointer to elements of another type."""
        if self.dtype is dtype:
            return self
        made = self.home.emit("reinterpret", (self,), Type(dtype, pointer=True))
        return cast(Pointer, made)

    def address(self) -> Value:
        """The address, in bytes, as an index."""
        return self.home.emit("address", (self,), INDEX)

    def prefetch(self, index: Value | int, *, write: bool = False) -> None:
        """Hint that the line at `index` will be read (written) soon."""
        self.home.emit("prefetch", (self, self._index(index)), None, (write,))

    def copy_from(self, source: Pointer, count: Value | int) -> None:
        """Copy `count` elements from another place, which is this one or does not overlap it."""
        self.home.emit("copy", (self, source, self._index(count)), None)

    def zero(self, count: Value | int) -> None:
        """Set `count` elements to zero bytes."""
        self.home.emit("zero", (self, self._index(count)), None)

    def _index(self, index: Value | int) -> Value:
        return index if isinstance(index, Value) else self.home.constant(index, dt.int64)

    def _element(self, value: Value | Number) -> Value:
        if not isinstance(value, Value):
            return self.home.constant(value, self.dtype)
        if value.dtype is not self.dtype:
            raise KernelError(f"store of {value.type} through {self.type}")
        return value


def pointer(dtype: DType, name: str = "") -> Pointer:
    """A parameter that points to elements."""
    return Pointer(Type(dtype, pointer=True), name)


def size(name: str = "") -> Value:
    """A parameter that is an extent, a stride or any other 64-bit integer."""
    return Value(INDEX, name)


V = TypeVar("V", bound=InstructionOperand)


def _given(mask: Value | None) -> tuple[Value, ...]:
    return () if mask is None else (mask,)


# -- instructions of several operands ----------------------------------------------------------


def unify(*given: Value | Number) -> tuple[Value, ...]:
    """The operands as values of one type: numbers become literals, scalars beside vectors splat.

    Raises:
        KernelError: all are numbers, or element types differ.
    """
    values = [v for v in given if isinstance(v, Value)]
    if not values:
        raise KernelError("an instruction needs at least one operand that is not a number")
    like = max(values, key=_lanes)
    made: list[Value] = []
    for v in given:
        if not isinstance(v, Value):
            v = like.constant(v)
        elif v.type.lanes != like.type.lanes and v.type.lanes == 1:
            v = v.splat(like.type.lanes)
        if v.type is not like.type and v.type != like.type:
            raise KernelError(f"operands differ in type: {v.type} and {like.type}")
        made.append(v)
    return tuple(made)


def _lanes(value: Value) -> int:
    return value.type.lanes


_FOLDED: dict[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "min": min,
    "max": max,
}


def binary(code: str, x: Value | Number, y: Value | Number) -> Value:
    """An instruction of `ARITHMETIC` or `BITWISE`."""
    a, b = unify(x, y)
    if code in _FOLDED and a.type == INDEX:
        folded = _fold(code, a, b)
        if folded is not None:
            return folded
    return a.home.emit(code, (a, b), a.type)


def _fold(code: str, x: Value, y: Value) -> Value | None:
    """Index arithmetic on literals, and what adds 0 or multiplies by 0 or 1."""
    if x.literal is not None and y.literal is not None:
        return x.constant(_FOLDED[code](int(x.literal), int(y.literal)))
    if code in ("add", "mul") and x.literal is not None:
        x, y = y, x
    if y.literal == 0 and code in ("add", "sub"):
        return x
    if code == "mul" and y.literal in (0, 1):
        return x if y.literal == 1 else y
    return None


def compare(code: str, x: Value | Number, y: Value | Number) -> Value:
    """An instruction of `COMPARE`: bool, with the operands' lanes."""
    a, b = unify(x, y)
    return a.home.emit(code, (a, b), Type(dt.bool_, a.lanes))


def unary(code: str, x: Value) -> Value:
    """An instruction of `UNARY`."""
    return x.home.emit(code, (x,), x.type)


def minimum(x: Value | Number, y: Value | Number) -> Value:
    """x where x < y, else y, also where an operand is NaN."""
    return binary("min", x, y)


def maximum(x: Value | Number, y: Value | Number) -> Value:
    """x where x > y, else y, also where an operand is NaN."""
    return binary("max", x, y)


def copysign(x: Value | Number, y: Value | Number) -> Value:
    """Magnitude of x, sign of y."""
    return binary("copysign", x, y)


def sqrt(x: Value) -> Value:
    """Square root of floats."""
    return unary("sqrt", x)


def floor(x: Value) -> Value:
    """The greatest whole number that is not above; floats."""
    return unary("floor", x)


def ceil(x: Value) -> Value:
    """The least whole number that is not below; floats."""
    return unary("ceil", x)


def trunc(x: Value) -> Value:
    """The whole number next to it towards 0; floats."""
    return unary("trunc", x)


def rint(x: Value) -> Value:
    """The nearest whole number, the even one of two; floats."""
    return unary("rint", x)


def fma(x: Value | Number, y: Value | Number, z: Value | Number, *, exact: bool = False) -> Value:
    """x * y + z, rounded once; floats.

    Targets without the instruction round twice, unless `exact` is set for what hangs on the digits
    that the first rounding would lose: there it takes three instructions for float32 and 24 for
    float64.
    """
    args = unify(x, y, z)
    return args[0].home.emit("fma", args, args[0].type, ("exact",) * exact)


def select(condition: Value, x: Value | Number, y: Value | Number) -> Value:
    """x where the condition holds, else y, lane by lane."""
    a, b = unify(x, y)
    if condition.lanes != a.lanes:
        lanes = max(condition.lanes, a.lanes)
        condition, a, b = (v.splat(lanes) for v in (condition, a, b))
    return a.home.emit("select", (condition, a, b), a.type)


def shuffle(x: Value, y: Value, order: Sequence[int]) -> Value:
    """Lanes of x followed by y, picked by number; -1 leaves a lane undefined."""
    if x.type != y.type:
        raise KernelError(f"shuffle of {x.type} and {y.type}")
    return x.home.emit("shuffle", (x, y), Type(x.dtype, len(order)), tuple(order))


def dot(total: Value, x: Value, y: Value, *, narrow: bool = False) -> Value:
    """total + the products of neighbours: four uint8 or int8 by int8 or two int16 by int16 into
    int32, or two bfloat16 into float32. x and y have four (two) times as many lanes as `total`.

    `narrow` claims, for bytes, that the sums of the first two and of the last two products
    fit in int16: that is faster where nothing multiplies four bytes at once.
    """
    return total.home.emit("dot", (total, x, y), total.type, ("narrow",) * narrow)


def _of_integers(x: Value) -> Value:
    if not x.dtype.is_integer:
        raise KernelError(f"// of {x.dtype.name}: / divides floats")
    return x


def _of_floats(x: Value) -> Value:
    if not x.dtype.is_float:
        raise KernelError(f"/ of {x.dtype.name}: // divides integers")
    return x


def _held(number: Number, dtype: DType) -> int | float:
    """Return a number as an element type holds it."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return float(np.asarray(number, np.float64).astype(dtype.numpy))
    sign = 1 << (dtype.bits - 1) if dtype.kind == "int" else 0
    return (int(number) + sign) % (1 << dtype.bits) - sign
