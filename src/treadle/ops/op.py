"""What an op is: one frozen value that carries its attributes and every fact about itself.

The class body of an op is its documentation, type rule, NumPy oracle, scalar code, gradient,
ONNX mapping and list of samples. Tests, docs, tables and benchmarks are generated from it, so an
op is added by writing one class.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

import numpy as np
import numpy.typing as npt

from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, NoGradient, ShapeError
from treadle.base.types import TensorType
from treadle.ops.operand import V

if TYPE_CHECKING:
    from treadle.ops.sample import BadSample, Sample

Array = npt.NDArray[Any]


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
    """What a gradient rule sees: cotangents, inputs, outputs, and which inputs need a gradient.

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


class Op(abc.ABC):
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
    """

    name: ClassVar[str]
    operands: ClassVar[tuple[str, ...]] = ("x",)
    n_outputs: ClassVar[int] = 1
    dtypes: ClassVar[tuple[DType, ...]]
    onnx: ClassVar[Onnx | None] = None
    torch: ClassVar[str] = ""
    no_gradient: ClassVar[str] = ""
    shape_free: ClassVar[bool] = False
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

    def _key(self) -> tuple[Hashable, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._key() == other._key()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        cached = self.__dict__.get("_hash")
        if cached is None:
            cached = hash((self.name, self._key()))
            object.__setattr__(self, "_hash", cached)
        return int(cached)

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

    def error(
        self, problem: str, types: tuple[TensorType, ...] = (), hint: str = ""
    ) -> ShapeError:
        """A `ShapeError` of this op, to be raised by the caller."""
        return ShapeError(self.name, problem, saw=self.saw(types), hint=hint)


REGISTRY: dict[str, type[Op]] = {}
_T = TypeVar("_T", bound=Op)


@dataclass_transform(frozen_default=True, eq_default=False)
def op(cls: type[_T]) -> type[_T]:
    """Class decorator that makes a declaration an op: frozen, compared by value, registered.

    An op without attributes has a single instance, so `Add() is Add()`.
    """
    done = dataclass(frozen=True, eq=False, repr=False)(cls)
    done._fields = tuple(f.name for f in dataclasses.fields(done))
    if done.name in REGISTRY and REGISTRY[done.name].__qualname__ != done.__qualname__:
        raise ValueError(f"two ops are named {done.name}")
    REGISTRY[done.name] = done
    if not done._fields:
        only = object.__new__(done)
        done.__new__ = _constant(only)  # type: ignore[method-assign, assignment]
        # One instance: identity is equality, and object's slots keep eager dispatch short.
        done.__eq__ = object.__eq__  # type: ignore[method-assign]
        done.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]
    return done


def _constant(value: _T) -> Callable[..., _T]:
    """A constructor that always returns `value`."""

    def new(cls: type[_T]) -> _T:
        return value

    return new


def as_tuple(results: Any) -> tuple[Array, ...]:
    """What `reference` returned, always as a tuple of arrays."""
    if isinstance(results, tuple):
        return tuple(np.asarray(r) for r in results)
    return (np.asarray(results),)
