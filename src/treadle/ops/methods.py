"""The NumPy-like methods of tensors, as compositions of ops over any kind of operand."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import index
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from treadle.base.dtype import bool_, float32, int32
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.quantized import quantized_type_of
from treadle.base.shape import Shape, format_shape, normalize_axes, normalize_axis, product
from treadle.base.symbol import Dim, Expr
from treadle.ops import reduce
from treadle.ops.families import Reduce
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.operators import Operators

T = TypeVar("T", bound="ArrayMethods")


class ArrayMethods(Operators):
    """Shape methods that take varargs and -1, and reductions with MegEngine's dtype rules."""

    __slots__ = ()

    def reshape(self: T, *shape: Any) -> T:
        """The same elements under another shape, given as ints, a tuple or a tensor.

        One extent may be -1 and is computed.

        Raises:
            ShapeError: two extents are -1, or the numbers of elements differ.
        """
        # Also where nothing changes: a result is never the same handle as its operand.
        try:
            op = _reshaping(self.shape, shape[0] if len(shape) == 1 else shape)
        except TypeError:
            op = Reshape(resolve_shape(self.type.shape, as_shape(shape)))
        return self.apply(op, (self,))[0]

    def broadcast_to(self: T, *shape: Any) -> T:
        """NumPy's broadcast to exactly a shape, given as ints, a tuple or a tensor.

        Raises:
            ShapeError: an extent differs and is not 1.
        """
        return self.apply(Broadcast(as_shape(shape)), (self,))[0]

    def __pos__(self: T) -> T:
        return self.reshape(self.type.shape)

    def transpose(self: T, *pattern: Any) -> T:
        """Permute the axes; without arguments, reverse them.

        An `"x"` in the pattern inserts an axis of size 1.
        """
        ndim = self.type.ndim
        given = pattern[0] if len(pattern) == 1 and is_iterable(pattern[0]) else pattern
        order = list(given) or list(range(ndim))[::-1]
        axes = tuple(normalize_axis(int(p), ndim, "transpose") for p in order if p != "x")
        moved = self.apply(Transpose(axes), (self,))[0]
        if len(axes) == len(order):
            return moved
        rest = iter(moved.type.shape)
        return moved.reshape(tuple(1 if p == "x" else next(rest) for p in order))

    def flatten(self: T, start_axis: int = 0, end_axis: int = -1) -> T:
        """Merge the axes from `start_axis` to `end_axis` into one."""
        shape = self.type.shape
        if not shape:
            return self.reshape(1)
        first = normalize_axis(start_axis, len(shape), "flatten")
        last = normalize_axis(end_axis, len(shape), "flatten")
        if first > last:
            raise ShapeError("flatten", f"start axis {start_axis} lies behind {end_axis}")
        merged = product(shape[first : last + 1])
        return self.reshape((*shape[:first], merged, *shape[last + 1 :]))

    def sum(
        self: T, axis: Any = None, keepdims: bool = False, dim: Any = None, keepdim: Any = None
    ) -> T:
        """Sum over axes (all for None); bool counts as int32."""
        if dim is not None or keepdim is not None:
            axis, keepdims = over(axis, keepdims, dim, keepdim)
        return _counted(self)._reduce(reduce.Sum, axis, keepdims)

    def prod(
        self: T, axis: Any = None, keepdims: bool = False, dim: Any = None, keepdim: Any = None
    ) -> T:
        """Product over axes; bool counts as int32."""
        if dim is not None or keepdim is not None:
            axis, keepdims = over(axis, keepdims, dim, keepdim)
        return _counted(self)._reduce(reduce.Prod, axis, keepdims)

    def mean(
        self: T, axis: Any = None, keepdims: bool = False, dim: Any = None, keepdim: Any = None
    ) -> T:
        """Mean over axes; integers, bool and float16 give float32."""
        if dim is not None or keepdim is not None:
            axis, keepdims = over(axis, keepdims, dim, keepdim)
        dtype = self.type.dtype
        wide = self if dtype.is_float and dtype.itemsize > 2 else self.astype(float32)
        return wide._reduce(reduce.Mean, axis, keepdims)

    def max(
        self: T, axis: Any = None, keepdims: bool = False, dim: Any = None, keepdim: Any = None
    ) -> T:
        """Largest element over axes; its gradient goes to every element that is largest."""
        if dim is not None or keepdim is not None:
            raise TypeError(_ONE_RESULT.format("max"))
        return self._reduce(reduce.Max, axis, keepdims)

    def min(
        self: T, axis: Any = None, keepdims: bool = False, dim: Any = None, keepdim: Any = None
    ) -> T:
        """Smallest element over axes; its gradient goes to every element that is smallest."""
        if dim is not None or keepdim is not None:
            raise TypeError(_ONE_RESULT.format("min"))
        return self._reduce(reduce.Min, axis, keepdims)

    def _reduce(self: T, op: type[Reduce], axis: Any, keepdims: bool) -> T:
        if axis is None or type(axis) is int:
            reduction = _reduction(op, axis, keepdims, len(self.shape))
        else:
            reduction = op(reduced_axes(axis, len(self.shape), op.name), keepdims)
        try:
            return self.apply(reduction, (self,))[0]
        except DTypeError as error:
            refused = error
        return self._reduced_anew(refused, op, axis, keepdims)

    def _reduced_anew(
        self: T, refused: DTypeError, op: type[Reduce], axis: Any, keepdims: bool
    ) -> T:
        """Compute a reduction that does not take the element type by other ops."""
        kind = quantized_type_of(getattr(self, "dtype", None))
        if op is reduce.Sum and kind is not None and not kind.is_per_channel:
            return self.astype(float32)._reduce(op, axis, keepdims).astype(kind)
        if self.type.dtype is not bool_ or op not in _OF_TRUTH:
            raise refused
        return self._reduce(_OF_TRUTH[op], axis, keepdims)


_ONE_RESULT = (
    "{0}() takes axis= and keepdims= and gives values alone; PyTorch's dim=, which asks for values "
    "and indices, is F.{0}(x, axis) and F.arg{0}(x, axis)"
)

# What extrema of truth values are; asked for only where the first op has refused them.
_OF_TRUTH: dict[type[Reduce], type[Reduce]] = {reduce.Max: reduce.Any, reduce.Min: reduce.All}
for _member in vars(ArrayMethods).values():
    if isinstance(_member, FunctionType):
        # Python's own TypeErrors say which method got a wrong argument, and users call Tensor's.
        _member.__qualname__ = f"Tensor.{_member.__name__}"


@lru_cache(maxsize=4096)
def _reshaping(have: Shape, given: Any) -> Reshape:
    """The op for a repeated call; `TypeError`, which is not kept, where not all are plain ints."""
    wanted = (given,) if type(given) is int else given
    if type(wanted) is not tuple or any([type(d) is not int for d in (*have, *wanted)]):
        raise TypeError("not plain ints")
    return Reshape(resolve_shape(have, wanted))


@lru_cache(maxsize=4096)
def _reduction(op: type[Reduce], axis: int | None, keepdims: bool, ndim: int) -> Reduce:
    """The op for a repeated call."""
    return op(reduced_axes(axis, ndim, op.name), keepdims)


def _counted(x: T) -> T:
    """bool as int32, as sums and products count; other types as they are."""
    return x.astype(int32) if x.type.dtype is bool_ else x


def reduced_axes(axis: Any, ndim: int, op: str) -> tuple[int, ...]:
    """Sorted axes from an int, a sequence or None (all); a duplicate is an `AssertionError`."""
    if axis is None:
        return tuple(range(ndim))
    given = [index(a) for a in axis] if is_iterable(axis) else [index(axis)]
    if len({a % max(ndim, 1) for a in given}) != len(given):
        raise AssertionError(f"{op}: an axis appears twice in {given}")
    return normalize_axes(given, ndim, op)


def either(name: str, ours: Any, theirs: Any, default: Any = None) -> Any:
    """Return the argument that was given by our name or by PyTorch's; a `TypeError` if by both."""
    if ours is not default:
        raise TypeError(f"{name}= is given twice, once under PyTorch's name: leave that out")
    return theirs


def over(axis: Any, keepdims: bool, dim: Any, keepdim: bool | None) -> tuple[Any, bool]:
    """`axis` and `keepdims` of a reduction that was called with PyTorch's `dim` or `keepdim`."""
    axis = axis if dim is None else either("axis", axis, dim)
    kept = keepdims if keepdim is None else either("keepdims", keepdims, keepdim, False)
    return axis, bool(kept)


def is_iterable(x: Any) -> bool:
    """Return whether a value is a sequence of extents or axes rather than one of them."""
    if isinstance(x, (Operators, np.ndarray)):
        return len(x.shape) > 0
    return isinstance(x, Iterable) and not isinstance(x, str)


def as_shape(given: tuple[Any, ...]) -> Shape:
    """Extents from varargs, one sequence, or one array-like."""
    items: Any = given[0] if len(given) == 1 and is_iterable(given[0]) else given
    if isinstance(items, Operators):
        items = np.asarray(items)
    return tuple(as_extent(d) for d in items)


def as_extent(given: Any) -> Dim:
    """A symbolic extent as it is, anything else as an int."""
    return given if isinstance(given, Expr) else int(index(given))


def resolve_shape(have: Shape, wanted: Shape) -> Shape:
    """`wanted` with its -1, if any, computed from the elements there are."""
    at = [i for i, d in enumerate(wanted) if d == -1]
    if any(isinstance(d, int) and d < -1 for d in wanted):
        hint = "extents are 0 or more; one may be -1 and is computed"
        raise ShapeError("reshape", "an extent is negative", saw=format_shape(wanted), hint=hint)
    if not at:
        return wanted
    if len(at) > 1:
        raise ShapeError(
            "reshape",
            "only one extent may be -1",
            saw=format_shape(wanted),
            hint=f"x has the shape {format_shape(have)}: say every extent but one",
        )
    known = product(d for d in wanted if d != -1)
    total = product(have)
    if known == 0 or (isinstance(total, int) and isinstance(known, int) and total % known):
        raise ShapeError(
            "reshape",
            f"cannot reshape {format_shape(have)} to {format_shape(wanted)}",
            hint="the extent for -1 would not be whole",
        )
    missing: Dim = total // known
    return tuple(missing if d == -1 else d for d in wanted)
