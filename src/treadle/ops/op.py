"""The class `Op`: a frozen value that carries its attributes and every fact about itself.

The class body of an op is its documentation, type rule, NumPy oracle, scalar code, gradient,
ONNX mapping and list of samples. Tests, docs, tables and benchmarks are generated from it, so an
op is added by writing one class.

Operands, to which ops are applied, and samples, on which they are tried, speak of ops and ops of
them: all three are declared here.
"""

from __future__ import annotations

import abc
import threading
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, dataclass_transform

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import DType, float32
from treadle.base.errors import DTypeError, NoGradient, ShapeError, TreadleError
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, Expr
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.bounds import Range, Ranges
from treadle.ops.constructor import attribute_names, constant_of, constructor_of
from treadle.ops.orders import Orders

Types = Sequence[TensorType]
Selects = Literal["", "first", "any"]
Work = Literal[
    "product", "elementwise", "reduction", "data", "control", "update", "collective", "other"
]
IndexRange = tuple[int, Dim, Dim]
"""The number of an operand that is an index, the least index, and the first one beyond."""


V = TypeVar("V", bound="Operand")


class Operand(Protocol):
    """An input of an op: anything with a type that can apply ops to its own kind.

    `Tensor` runs an op at once, the graph builder's operand records it; gradient rules and
    composite bodies are written against this protocol and therefore work for both.
    """

    @property
    def type(self) -> TensorType:
        """Element type, shape and device."""
        ...

    @property
    def shape(self) -> Any:
        """The shape, as in `type`."""
        ...

    def apply(self: V, op: Op, inputs: tuple[V, ...], /) -> tuple[V, ...]:
        """Run or record `op` on operands of this kind."""
        ...

    def constant(self: V, value: Any, dtype: DType | None = None) -> V:
        """A constant (Python scalar or NumPy array) on this operand's device.

        A scalar takes this operand's element type unless `dtype` is given.
        """
        ...

    def astype(self: V, dtype: Any, /) -> V:
        """Cast; the operand itself where the type is the same."""
        ...

    def reshape(self: V, shape: Shape, /) -> V:
        """The same elements under another shape."""
        ...

    def transpose(self: V, permutation: Sequence[int], /) -> V:
        """Axes in another order."""
        ...

    def broadcast_to(self: V, shape: Shape, /) -> V:
        """NumPy's broadcast to exactly `shape`."""
        ...

    def sum_to(self: V, shape: Shape, /) -> V:
        """The transpose of `broadcast_to`: sums the axes along which `shape` was broadcast."""
        ...

    def sum(self: V, axis: Any = None, keepdims: bool = False) -> V:
        """Sum over axes; all of them for None."""
        ...

    def __add__(self: V, other: Any, /) -> V: ...
    def __radd__(self: V, other: Any, /) -> V: ...
    def __sub__(self: V, other: Any, /) -> V: ...
    def __rsub__(self: V, other: Any, /) -> V: ...
    def __mul__(self: V, other: Any, /) -> V: ...
    def __rmul__(self: V, other: Any, /) -> V: ...
    def __truediv__(self: V, other: Any, /) -> V: ...
    def __rtruediv__(self: V, other: Any, /) -> V: ...
    def __floordiv__(self: V, other: Any, /) -> V: ...
    def __mod__(self: V, other: Any, /) -> V: ...
    def __pow__(self: V, other: Any, /) -> V: ...
    def __matmul__(self: V, other: Any, /) -> V: ...
    def __neg__(self: V) -> V: ...
    def __abs__(self: V) -> V: ...
    def __and__(self: V, other: Any, /) -> V: ...
    def __or__(self: V, other: Any, /) -> V: ...
    def __xor__(self: V, other: Any, /) -> V: ...
    def __invert__(self: V) -> V: ...
    def __lt__(self: V, other: Any, /) -> V: ...
    def __le__(self: V, other: Any, /) -> V: ...
    def __gt__(self: V, other: Any, /) -> V: ...
    def __ge__(self: V, other: Any, /) -> V: ...


@dataclass(frozen=True, slots=True)
class Onnx:
    """The ONNX operator an op maps to one to one.

    `attributes` pairs our attribute names with ONNX's; `since` is the first opset with this form.
    """

    op_type: str
    since: int = 7
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Pullback(Generic[V]):
    """Operands of a gradient rule: cotangents, inputs, outputs, and which inputs need a gradient.

    `dys` holds None for an output nobody differentiated through.
    """

    dys: tuple[V | None, ...]
    inputs: tuple[V, ...]
    outputs: tuple[V, ...]
    needs: tuple[bool, ...]

    @property
    def dy(self) -> V:
        """The cotangent of the first output, which must be present."""
        if self.dys[0] is None:
            raise NoGradient("vjp", "the first output has no cotangent")
        return self.dys[0]


@dataclass(frozen=True, slots=True)
class Permuted:
    """An op that computes the same on permuted operands.

    Attributes:
        op: the op to apply.
        operands: for each operand, as how many axes it is to be permuted; 0 leaves it as it is.
        held: whether the axes of the result are permuted; if not, the result is the same.
    """

    op: Op
    operands: tuple[int, ...]
    held: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """One example call: an op and how to make its inputs.

    `dtypes` narrows the element types the sample is tried with (default: all of the op's);
    `gradient` False leaves it out of gradient checks (for example where the result is random).
    """

    op: Op
    args: tuple[Arg, ...]
    dtypes: tuple[DType, ...] = ()
    gradient: bool = True
    label: str = ""

    def element_types(self) -> tuple[DType, ...]:
        """The element types this sample is tried with."""
        if all(a.dtype is not None for a in self.args):
            return (self.args[0].dtype or float32,) if self.args else (float32,)
        return self.dtypes or self.op.dtypes

    def arrays(self, dtype: DType) -> tuple[Array, ...]:
        """Deterministic input arrays for the element type `dtype`."""
        seed = zlib.crc32(f"{self.op}/{dtype.name}/{self.args}".encode())
        rng = np.random.default_rng(seed)
        return tuple(arg.make(dtype, rng) for arg in self.args)

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, a.shape)) or "0d" for a in self.args)
        return self.label or f"{self.op}({shapes})"


@dataclass(frozen=True, slots=True)
class BadSample:
    """A call that must raise: how to make the op, its inputs, the class and part of the message."""

    make: Callable[[], Op]
    args: tuple[Arg, ...]
    error: type[TreadleError]
    message: str
    dtype: DType = field(default=float32)


_T = TypeVar("_T", bound="Op")


class _OpType(abc.ABCMeta):
    """Abstract methods with the instance checks of plain classes, which take a part of the time.

    Nobody registers classes as virtual ops.
    """

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class Op(metaclass=_OpType):
    """A primitive operator with its attributes; compare by value.

    Class variables of a declaration:
        name: unique snake_case name, used in text, messages and caches.
        operands: names of the inputs; a name starting with `*` stands for any number of inputs.
        n_outputs: number of results.
        dtypes: element types the first input may have.
        onnx: the one-to-one ONNX operator, if there is one.
        torch: a PyTorch expression over the operand names and `op`, if PyTorch has the op.
        no_gradient: why the op has no gradient, where it has none.
        shape_free: whether an eager launch depends on element types alone.

    Facts that the engine goes by; tests hold them to what `reference` does:
        commutative: the two operands may be swapped, to the bit. The larger of two zeros depends on
            the order, so `maximum` and `minimum` are not.
        selects: results hold nothing but elements of the "first" operand, or of "any" of them
            (`pad`: and the filling).
        is_view: the result is the first operand's memory.
        strided: the result is, or may be, a strided view of its only operand.
        rearranges: the result holds every element of its only operand once.
        incidental: rewrites add and drop it as shapes ask for it, and it computes nothing, so
            reports leave it out where they name the ops of a group.
        converts: results stand for the numbers of the first operand, in another element type.
        contraction: sums of products of two operands, in floats or in wider integers: what kernels
            of products are built around.
        work: what kind of work it is, in the words of pictures; norms and pooling are reductions,
            what only moves or makes elements is "data".
        keeps_axes: results mean the same axes as operands; elementwise ops do in any case.
        rounded_once: an elementwise op whose result IEEE 754 fixes to the bit.
        homogeneous: f(s x, s y) = s f(x, y) for every s > 0, on integers that wrap around.
        by_sign: the result depends on where 0 is.
        costly: one element takes many instructions, so it is read rather than computed again.
        amp: what mixed precision computes it in: "low" are contractions, which gain the most and
            accumulate in float32 anyway; "high" are functions whose range or slope needs more than
            16 bits, and normalizations over one sample; "statistics" have the first operand in few
            bits, and statistics and parameters in many; "" leaves the operands' type.
    """

    name: ClassVar[str]
    operands: ClassVar[tuple[str, ...]] = ("x",)
    n_outputs: ClassVar[int] = 1
    dtypes: ClassVar[tuple[DType, ...]]
    onnx: ClassVar[Onnx | None] = None
    torch: ClassVar[str] = ""
    no_gradient: ClassVar[str] = ""
    shape_free: ClassVar[bool] = False
    commutative: ClassVar[bool] = False
    selects: ClassVar[Selects] = ""
    is_view: ClassVar[bool] = False
    strided: ClassVar[bool] = False
    rearranges: ClassVar[bool] = False
    incidental: ClassVar[bool] = False
    converts: ClassVar[bool] = False
    contraction: ClassVar[bool] = False
    work: ClassVar[Work] = "other"
    keeps_axes: ClassVar[bool] = False
    rounded_once: ClassVar[bool] = False
    homogeneous: ClassVar[bool] = False
    by_sign: ClassVar[bool] = False
    costly: ClassVar[bool] = False
    amp: ClassVar[Literal["", "low", "high", "statistics"]] = ""
    _fields: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def infer(self, *types: Any) -> tuple[TensorType, ...]:
        """Result types from operand types; the only type rule. Its errors are the user's errors."""

    @abc.abstractmethod
    def reference(self, *arrays: Any) -> Any:
        """The NumPy oracle: one array, or a tuple where `n_outputs` is not 1."""

    @classmethod
    @abc.abstractmethod
    def samples(cls) -> tuple[Sample, ...]:
        """Example calls that drive tests, docs and benchmarks."""

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        """Calls that must raise a given error, besides those every family generates."""
        return ()

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        """Operands that are indices, with their ranges.

        `reference` raises `IndexRangeError` for any other index.
        """
        return ()

    def bounded(self, types: Types) -> Op | None:
        """An op that gives the same within known extents, for one whose extent data decide.

        Its first result has the rows in front, as many as the only element of the second one says.
        None: there is no such op.
        """
        return None

    def bounds(self, of: Ranges, types: Types, output: int = 0) -> Range | None:
        """Return the range of an integer result; None where it is not known.

        Args:
            of: ranges of the operands.
            types: of the operands.
            output: number of the result.
        """
        return of[0] if self.selects == "first" else None

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        """Return what computes the same on operands whose axes are in another order, if it can.

        Args:
            types: of the operands as they are.
            result: the type of the result as it is.
            orders: of the axes, by rank.
        """
        return None

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        """Vector-Jacobian product: one cotangent per input, None where none is needed.

        Written in ops over operands, so it runs eagerly, in graphs, and differentiates again.
        """
        reason = self.no_gradient or "has no gradient rule"
        raise NoGradient(self.name, reason, hint="detach() the input to treat it as a constant")

    def __call__(self, *inputs: V) -> V:
        """Apply to operands: a tensor runs, a graph operand records. One result only."""
        return inputs[0].apply(self, inputs)[0]

    def outputs(self, *inputs: V) -> tuple[V, ...]:
        """Apply to operands and return every result."""
        return inputs[0].apply(self, inputs)

    # -- value semantics -------------------------------------------------------------------

    @property
    def attributes(self) -> dict[str, Any]:
        """Attribute names and values, in declaration order."""
        return {name: getattr(self, name) for name in self._fields}

    def replace(self: _T, **changes: Any) -> _T:
        """The same op with some attributes changed; `TypeError` names one it does not have."""
        for name in changes:
            if name not in self._fields:
                has = ", ".join(self._fields) or "none"
                raise TypeError(f"{self.name} has no attribute {name!r}; its attributes: {has}")
        return type(self)(**(self.attributes | changes))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.name} is frozen: its attribute {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.name} is frozen: its attribute {name} cannot be deleted")

    def _key(self) -> tuple[Hashable, ...]:
        """Return the key of equality and hash, made once."""
        own = self.__dict__
        key: tuple[Hashable, ...] | None = own.get("_exact")
        if key is None:
            key = tuple(map(own.__getitem__, self._fields))
            for value in key:
                if type(value) not in _EXACT:
                    key = tuple(map(exact_key, key))
                    break
            own["_exact"] = key
        return key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        own = self.__dict__
        found: int | None = own.get("_hash")
        if found is None:
            found = own["_hash"] = hash((self.name, self._key()))
        return found

    def __reduce__(self) -> tuple[object, ...]:
        # Through the constructor: a cached hash means nothing in another process.
        return type(self), tuple(self.attributes.values())

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.attributes.items())
        return f"{type(self).__name__}({inside})"

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.attributes.items())
        return f"{self.name}{{{inside}}}" if inside else self.name

    # -- checks that declarations share ----------------------------------------------------

    def saw(self, types: tuple[TensorType, ...]) -> str:
        """The operands' names and types, as messages print them."""
        names = list(self.operands[: len(types)])
        names += [f"input {i}" for i in range(len(names), len(types))]
        return ", ".join(f"{n.lstrip('*')} {t}" for n, t in zip(names, types, strict=True))

    def check_dtype(self, types: tuple[TensorType, ...], index: int = 0) -> None:
        """Raise `DTypeError` unless operand `index` has one of the op's element types."""
        if types[index].dtype not in self.dtypes:
            raise DTypeError(
                self.name,
                f"does not take {types[index].dtype.name}",
                saw=self.saw(types),
                hint="cast with astype() to one of " + ", ".join(d.name for d in self.dtypes),
            )

    def check_same_dtype(self, types: tuple[TensorType, ...]) -> None:
        """Raise `DTypeError` unless all operands share one element type."""
        if any(t.dtype is not types[0].dtype for t in types):
            raise DTypeError(
                self.name,
                "operands differ in element type",
                saw=self.saw(types),
                hint="cast one of them with astype()",
            )

    def check_ndim(self, types: tuple[TensorType, ...], index: int, *allowed: int) -> None:
        """Raise `ShapeError` unless operand `index` has one of the allowed numbers of axes."""
        if types[index].ndim not in allowed:
            wanted = " or ".join(str(n) for n in allowed)
            raise ShapeError(
                self.name,
                f"expects {wanted} axes for {self.operands[index]}, got {types[index].ndim}",
                saw=self.saw(types),
                hint="reshape the operand",
            )

    def check_positions(self, x: TensorType, axes: Iterable[int]) -> None:
        """Raise `ShapeError` where int32 does not hold the positions along an axis."""
        for axis in axes:
            extent = x.shape[axis]
            if isinstance(extent, int) and extent > 1 << 31:
                raise self.error(
                    f"axis {axis} has {extent} elements, and int32 holds no position beyond 2**31",
                    (x,),
                    "look at parts of it, and add where they begin in int64",
                )

    def error(self, problem: str, types: tuple[TensorType, ...] = (), hint: str = "") -> ShapeError:
        """A `ShapeError` of this op, to be raised by the caller."""
        return ShapeError(self.name, problem, saw=self.saw(types), hint=hint)


_EXACT = frozenset((int, str, type(None), DType))
"""Types of attributes that are their own keys: equal values are the same, and of the same type."""


def exact_key(value: Any) -> Any:
    """A key for an attribute's value that tells 1, 1.0 and True apart, and 0.0 from -0.0.

    NaN is equal to itself.
    """
    kind = type(value)
    if kind is tuple:
        # Most tuples are shapes, axes or windows, and one of ints is its own key.
        for v in value:
            if type(v) is not int:
                return tuple([exact_key(v) for v in value])
        return value
    if kind in _EXACT:
        return value
    if kind is float or kind is complex:
        return kind, repr(value)
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    if kind is Expr:
        return kind, value.terms  # No call is asked whether two ops are the same.
    return kind, value


REGISTRY: dict[str, type[Op]] = {}
_REGISTERING = threading.Lock()


@dataclass_transform(frozen_default=True, eq_default=False)
def family(cls: type[_T]) -> type[_T]:
    """Class decorator for an abstract op with attributes, so that type checkers see them."""
    return cls


@dataclass_transform(frozen_default=True, eq_default=False)
def op(cls: type[_T]) -> type[_T]:
    """Class decorator that makes a declaration an op: frozen, compared by value, registered.

    Annotations that are not ClassVar, inherited ones first, become attributes and parameters of
    the constructor. An op without attributes has a single instance, so `Add() is Add()`.
    """
    cls._fields = attribute_names(cls)
    if cls._fields:
        cls.__init__ = constructor_of(cls)  # type: ignore[method-assign]
    else:
        only = object.__new__(cls)
        cls.__new__ = constant_of(only)  # type: ignore[method-assign, assignment]
        # One instance: identity is equality, and object's slots keep eager dispatch short.
        cls.__eq__ = object.__eq__  # type: ignore[method-assign]
        cls.__hash__ = object.__hash__  # type: ignore[method-assign]
    _register(cls)
    return cls


def _register(cls: type[Op]) -> None:
    """Make a finished class known under its name, which another one must not have.

    A class may replace one of its own module and name: modules are reloaded, cells run again.
    """
    with _REGISTERING:
        known = REGISTRY.setdefault(cls.name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"two ops are named {cls.name}: {known.__module__}.{known.__qualname__} "
                f"and {cls.__module__}.{cls.__qualname__}"
            )
        REGISTRY[cls.name] = cls


def as_tuple(results: Any) -> tuple[Array, ...]:
    """Return the results of `reference` as a tuple of arrays."""
    if isinstance(results, tuple):
        return tuple(np.asarray(r) for r in results)
    return (np.asarray(results),)
