"""Turning what users pass into tensors that ops accept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from treadle.base.dtype import DType, float32, float_for, promote
from treadle.base.errors import DTypeError, TreadleError
from treadle.base.modes import ACTIVE, LOCAL, casting
from treadle.base.process import RUNTIME
from treadle.base.shape import Shape, normalize_axis
from treadle.base.spelling import none_operand
from treadle.base.symbol import Expr
from treadle.engine.eager.dispatch import EagerType, Launch, eager_type, lookup
from treadle.ops.gather import as_index
from treadle.ops.methods import as_shape
from treadle.ops.op import Op
from treadle.ops.operators import binary as promoted
from treadle.tensor import Tensor, wrap


def as_tensor(x: Any, like: Tensor | None = None) -> Tensor:
    """A tensor: itself, or a constant made of numbers or array data beside `like`."""
    if isinstance(x, Tensor):
        return x
    if x is None:
        raise none_operand()
    return Tensor(x) if like is None else like.constant(np.asarray(x))


def plain_product(x: Any, y: Any) -> Tensor | None:
    """x @ y where both are stacks of matrices of one element type without scales, else None."""
    try:
        kind, other = x._kind, y._kind
        alike = kind.dtype is other.dtype and kind.quantized is other.quantized is None
        if alike and len(x._data.shape) > 1 < len(y._data.shape):
            product: Tensor = x @ y
            return product
    except AttributeError:
        pass  # Data to be made tensors of, or nothing that has a product.
    return None


_KNOWN: dict[tuple[Op, EagerType], tuple[Launch, EagerType]] = RUNTIME.table(
    "launches of functions of one tensor", "launches"
)


def _known(op: Op, x: Any) -> Tensor | None:
    """The result of an elementwise op on one tensor where its launch is known, else None.

    What `tensor._operator` is to the arithmetic operators; `_learn` makes a launch known.
    """
    try:
        launch, kind = _KNOWN[op, x._kind]
        if ACTIVE.count:
            if LOCAL.casting is not None:
                return None
            hook = LOCAL.hook
            if hook is not None:
                made: Tensor = hook.apply(op, (x,))[0]
                return made
        data = launch(x._data)
    except (AttributeError, KeyError, ValueError, MemoryError):
        return None  # The general path finds the launch, or raises an error that explains.
    return wrap(data, kind)


def _learn(op: Op, x: Tensor) -> None:
    """Remember the launch that an op without attributes was just run with, for `_known`."""
    found = lookup((op, (x._kind,)))
    if found is not None and not op._fields:
        _KNOWN[op, x._kind] = (found.launch, found.results[0])


def unary(op: Op, x: Any) -> Tensor:
    """Apply an op to one tensor."""
    # Ops with attributes are never learnt.
    result = None if op._fields else _known(op, x)
    return _general(op, as_tensor(x)) if result is None else result


def _general(op: Op, x: Tensor) -> Tensor:
    """Apply an op whose launch for this kind of tensor is not known yet."""
    result = x.apply(op, (x,))[0]
    _learn(op, x)
    return result


def call(name: str, op: Op, *inputs: Tensor) -> Tensor:
    """Apply an op whose name users do not know; errors give that of the function they called."""
    try:
        return inputs[0].apply(op, inputs)[0]
    except TreadleError as error:
        if error.where == op.name:
            error.rename(name)
        raise


def as_float(x: Any) -> Tensor:
    """A tensor of a floating type: integers and bools become float32."""
    operand = as_tensor(x)
    wanted = float_for(operand._kind.dtype)
    return operand if wanted is operand._kind.dtype else operand.astype(wanted)


def widened(x: Tensor) -> Tensor:
    """An operand of a function of several ops: floats of 16 bits in float32, as one op has them.

    Squares and differences overflow or cancel in 16 bits where the function's result does not.
    """
    dtype = x._kind.dtype
    return x.astype(float32) if dtype.is_float and dtype.itemsize == 2 else x


def narrowed(result: Tensor, dtype: DType) -> Tensor:
    """The result of such a function in the type of its operand; mixed precision leaves it wide."""
    few = dtype.is_float and dtype.itemsize == 2
    return result.astype(dtype) if few and casting() is None else result


def on_own_scale(compute: Callable[[Tensor], Tensor], x: Any) -> Tensor:
    """Apply a function whose results lie among its operand's values.

    A quantized operand is computed in float32, and the result rounded to the operand's own type.
    """
    operand = as_tensor(x)
    if operand._kind.quantized is None:
        return compute(as_float(operand))
    return compute(operand.astype("float32")).astype(operand.dtype)


def stored(x: Tensor) -> Tensor:
    """The integers that a quantized tensor holds, as a plain tensor."""
    plain = x.reshape(x.shape)
    plain._kind = eager_type(x._kind.dtype, x._kind.device)
    return plain


def unary_float(op: Op, x: Any) -> Tensor:
    """Apply a function of real numbers: integers and bools are computed in float32."""
    result = _known(op, x)
    return _general(op, as_float(x)) if result is None else result


def binary(op: Op, x: Any, y: Any) -> Tensor:
    """Apply an op to two operands after promotion; one of them may be a number or an array."""
    if isinstance(x, Tensor):
        return promoted(op, x, y)
    if isinstance(y, Tensor):
        return promoted(op, y, x, swap=True)
    return promoted(op, as_tensor(x), y)


def check_conv_mode(conv_mode: object) -> None:
    """Raise `AssertionError`, as MegEngine does, for the mode that nothing offers."""
    if str(conv_mode).lower() != "cross_correlation":
        raise AssertionError(f"conv_mode must be 'cross_correlation', got {conv_mode!r}")


def promote_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Cast tensors to the one element type they promote to; equal types stay as they are."""
    wanted = common_dtype(t._kind.dtype for t in tensors)
    return [t if t._kind.dtype is wanted else t.astype(wanted) for t in tensors]


def common_dtype(dtypes: Iterable[DType]) -> DType:
    """Return the element type that several promote to; bools among themselves stay bool."""
    distinct = list(dict.fromkeys(dtypes))
    wanted = distinct[0]
    for dtype in distinct[1:]:
        wanted = promote(wanted, dtype)
    return wanted


def indices_of(x: Any, like: Tensor, op: str) -> Tensor:
    """Class numbers or positions as an int32 or int64 tensor; floats must be whole numbers."""
    found = as_tensor(x, like)
    if found._kind.dtype.is_float:
        _require_whole(found, op)
    return as_index(found)


def _require_whole(x: Tensor, op: str) -> None:
    """Raise `DTypeError` where a cast to integers would lose something."""
    values = x.numpy().astype(np.float64, copy=False).reshape(-1)
    broken = values[values != np.trunc(values)]  # NaN is among them
    if broken.size:
        raise DTypeError(
            op,
            f"{broken[0]:g} is not a whole number",
            saw=str(x.type),
            hint="class numbers and positions are integers; round() them, or cast with astype()",
        )


def axis_of(axis: int, x: Tensor, op: str) -> int:
    """An axis counted from the front; `ShapeError` where it is out of range."""
    return normalize_axis(index(axis), x.ndim, op)


def ints(value: Any) -> tuple[int, ...]:
    """A shape or list of sizes given as an int, a sequence of ints, or a tensor."""
    if isinstance(value, Tensor):
        value = value.tolist()
        if isinstance(value, list):  # MegEngine's shapes may be computed in floats.
            value = [int(v) if isinstance(v, float) and v.is_integer() else v for v in value]
    if isinstance(value, (int, np.integer)):
        return (int(value),)
    if isinstance(value, Expr):
        return (int(value),)
    try:
        return tuple([index(v) for v in value])
    except TypeError:
        raise TypeError(f"expected an int or a sequence of ints, got {value!r}") from None


def extents(value: Any) -> Shape:
    """A shape given as `ints` takes it; symbolic extents stay what they are."""
    if isinstance(value, Expr):
        return (value,)
    if isinstance(value, (tuple, list)) and any([isinstance(v, Expr) for v in value]):
        return as_shape((value,))
    return ints(value)


def both_sides(padding: Any, n: int) -> tuple[tuple[int, int], ...]:
    """(before, after) per axis from one int or a sequence of `n`."""
    return tuple((p, p) for p in pair(padding, n))


def pair(value: Any, count: int = 2) -> tuple[int, ...]:
    """`count` ints from one int or a sequence of that many."""
    found = ints(value)
    if isinstance(value, (int, np.integer)):
        return found * count
    if len(found) != count:
        raise ValueError(f"expected one number or {count}, got {value!r}")
    return found
