"""The class `Op`: a frozen value that carries its attributes and every fact about itself.

The class body of an op is its documentation, type rule, NumPy oracle, scalar code, gradient,
ONNX mapping and list of samples. Tests, docs, tables and benchmarks are generated from it, so an
op is added by writing one class.
"""

from __future__ import annotations

import abc
import inspect
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, dataclass_transform

import numpy as np
import numpy.typing as npt

from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, NoGradient, ShapeError
from treadle.base.symbol import Dim, Expr
from treadle.base.types import TensorType
from treadle.ops.bounds import Range, Ranges
from treadle.ops.operand import V
from treadle.ops.orders import Orders

if TYPE_CHECKING:
    from treadle.ops.sample import BadSample, Sample

Array = npt.NDArray[Any]
Types = Sequence[TensorType]
Selects = Literal["", "first", "any"]
Work = Literal[
    "product", "elementwise", "reduction", "data", "control", "update", "collective", "other"
]
IndexRange = tuple[int, Dim, Dim]
"""The number of an operand that is an index, the least index, and the first one beyond."""


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

    Annotations that are no ClassVar, inherited ones first, become attributes and parameters of
    the constructor. An op without attributes has a single instance, so `Add() is Add()`.
    """
    cls._fields = _attribute_names(cls)
    if cls._fields:
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
    else:
        only = object.__new__(cls)
        cls.__new__ = _constant(only)  # type: ignore[method-assign, assignment]
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


def _attribute_names(cls: type[Op]) -> tuple[str, ...]:
    """Names of the attributes, in the order the constructor takes them."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            if "ClassVar" not in str(annotation):
                names[name] = None
    return tuple(names)


def _constructor(cls: type[Op]) -> Callable[..., None]:
    """`__init__` from the attributes' names and defaults.

    `dataclass` would do, at four times the cost: with some 120 ops it was a third of the time
    `import treadle` took.
    """
    defaults = {f"_{n}": getattr(cls, n) for n in cls._fields if n in _defaulted(cls)}
    parameters = [f"{n}=_{n}" if f"_{n}" in defaults else n for n in cls._fields]
    body = "\n".join(f"    d[{n!r}] = {n}" for n in cls._fields)
    if "__post_init__" in dir(cls):
        body += "\n    self.__post_init__()"
    source = f"def __init__(self, {', '.join(parameters)}):\n    d = self.__dict__\n{body}\n"
    # The name tells errors that this frame is no line of the user's.
    outside = {"__name__": __name__, **defaults}
    scope: dict[str, Any] = {}
    exec(source, outside, scope)  # the text is made of attribute names of our own classes
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _defaulted(cls: type[Op]) -> set[str]:
    """Attributes that some class in the hierarchy gives a default."""
    return {n for n in cls._fields if any(n in base.__dict__ for base in cls.__mro__)}


def _constant(value: _T) -> Callable[..., _T]:
    """A constructor that always returns `value`."""

    def new(cls: type[_T]) -> _T:
        return value

    new.__qualname__ = type(value).__qualname__
    return new


def as_tuple(results: Any) -> tuple[Array, ...]:
    """Return the results of `reference` as a tuple of arrays."""
    if isinstance(results, tuple):
        return tuple(np.asarray(r) for r in results)
    return (np.asarray(results),)
