"""NumPy indexing, for every kind of operand: `x[index]` and its update as compositions of ops.

An index is split into what slicing does (slices, new axes, integers standing alone) and what
gathering does (integer arrays and masks, with integers beside them), in that order.
Source of the rules: NumPy user guide, "Indexing on ndarrays".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from operator import index as as_int
from typing import Any, TypeVar

import numpy as np

from treadle.base.dtype import bool_, float32, int32, int64
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.guards import data_decide, require
from treadle.base.shape import (
    Shape,
    broadcast_shapes,
    format_shape,
    is_same,
    is_static,
    require_equal,
)
from treadle.base.symbol import Dim, Expr, is_identical, less_equal, maximum, minimum
from treadle.base.types import TensorType
from treadle.ops.abstract import TypeOperand
from treadle.ops.gather import Index, IndexUpdate, Nonzero, as_index
from treadle.ops.movement import Reshape
from treadle.ops.op import Op
from treadle.ops.operators import Operators, as_array
from treadle.ops.select import Where
from treadle.ops.slicing import Slice, SliceUpdate

T = TypeVar("T", bound=Operators)
_WHOLE = slice(None)


@dataclass
class _IndexPlan:
    """An index taken apart.

    `cuts` has one slice per axis of x; `view` is the shape after slicing with new axes put in and
    lone integers still there as size 1; `dropped` are axes of `view` that lone integers remove;
    `gathered` maps axes of `view` to index operands; `split` tells that a ... without axes stands
    between them.
    """

    cuts: list[slice] = field(default_factory=list)
    view: list[Dim] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    gathered: dict[int, Any] = field(default_factory=dict)
    split: bool = False

    @property
    def kept(self) -> Shape:
        """The sliced shape without the axes that lone integers remove."""
        return tuple(d for i, d in enumerate(self.view) if i not in self.dropped)

    @property
    def front(self) -> int:
        """Number of axes made by gathering that must still move to the front, over `before` axes.

        Arrays that stand apart give the first axes of the result; `Index` sees that of all but
        those that only a ... without axes divides.
        """
        axes = sorted(self.gathered)
        apart = axes != list(range(axes[0], axes[0] + len(axes)))
        return 0 if apart or not self.split else max(i.type.ndim for i in self.gathered.values())

    @property
    def before(self) -> int:
        """Number of axes before the first gathered one."""
        return min(self.gathered)


def getitem(x: T, index: Any) -> T:
    """`x[index]`; never a view.

    Raises:
        IndexRangeError: an integer is out of range, or there are more indices than axes.
        DTypeError: an index is neither integer nor bool.
    """
    key = _plain_key(index)
    if key is not None:
        try:
            ops = _cuts(x.shape, key)
        except (ShapeError, IndexRangeError, TypeError):
            ops = ()  # Below, where a message can say what x is.
        for op in ops:
            x = op(x)
        if ops:
            return x
    plan = _parse(x, index)
    part = _sliced(x, plan)
    if not is_same(plan.kept, part.type.shape) or (part is x and not plan.gathered):
        part = part.reshape(plan.kept)
    if not plan.gathered:
        return part
    picked: T = Index(tuple(plan.gathered))(part, *plan.gathered.values())
    return _rotated(picked, plan.before, plan.front)


def between(x: T, start: Any, stop: Any, step: Any) -> T:
    """Return `x[start:stop:step]`."""
    return getitem(x, slice(start, stop, step))


def _plain_key(index: Any) -> tuple[Any, ...] | None:
    """A hashable form of an index of ints, slices of ints, `...` and None; else None."""
    parts: list[Any] = []
    for item in index if type(index) is tuple else (index,):
        kind = type(item)
        if kind is int or item is None or item is Ellipsis:
            parts.append(item)
        elif kind is slice:
            bounds = item.start, item.stop, item.step
            if any([b is not None and type(b) is not int for b in bounds]):
                return None
            parts.append(bounds)
        else:
            return None
    return tuple(parts)


@lru_cache(maxsize=4096)
def _cuts(shape: Shape, key: tuple[Any, ...]) -> tuple[Op, ...]:
    """The ops of a basic index on a shape, kept for repeated calls: a slice, a reshape, or both.

    `TypeError`, which is not kept, where the shape is symbolic.
    """
    if not is_static(shape):
        raise TypeError("a symbolic shape")
    index = tuple(slice(*k) if isinstance(k, tuple) else k for k in key)
    plan = _parse(TypeOperand(TensorType(float32, shape)), index)
    ops: list[Op] = []
    sliced = shape
    if any(cut != _WHOLE for cut in plan.cuts):
        cut_op = Slice(*_bounds(plan, shape))
        sliced = cut_op.infer(TensorType(float32, shape))[0].shape
        ops.append(cut_op)
    if plan.kept != sliced or not ops:
        ops.append(Reshape(plan.kept))
    return tuple(ops)


def _rotated(x: T, before: int, front: int) -> T:
    """`front` axes that stand behind `before` others moved to the front."""
    if not front or not before:
        return x
    order = [*range(before, before + front), *range(before), *range(before + front, x.type.ndim)]
    return x.transpose(order)


def setitem(x: T, index: Any, value: Any) -> T:
    """x with the elements at `index` replaced; duplicates keep the last write.

    `value` is cast to x's element type and broadcast. `x[...] = value` replaces everything,
    shape and element type included.
    """
    if index is Ellipsis:
        return value if x.is_operand(value) else x.constant(as_array(Index(()), value))
    source = _as_operand(x, value)
    if source.type.dtype is not x.type.dtype:
        source = source.astype(x.type.dtype)
    mask = _mask_of_rows(x, index, source)
    if mask is not None:
        return Where()(mask, source, x)
    plan = _parse(x, index)
    sliced = _sliced(x, plan)
    if plan.gathered:
        part = sliced.reshape(plan.kept)
        axes, indices = tuple(plan.gathered), tuple(plan.gathered.values())
        wanted = Index(axes).infer(part.type, *(i.type for i in indices))[0].shape
        n, front = plan.before, plan.front
        seen = (*wanted[n : n + front], *wanted[:n], *wanted[n + front :])
        value = _rotated(_fit(source, seen), front, n) if front else _fit(source, wanted)
        part = IndexUpdate(axes)(part, value, *indices)
    else:
        part = _fit(source, plan.kept)
    starts, stops, steps = _bounds(plan, x.type.shape)
    return SliceUpdate(starts, stops, steps)(x, part.reshape(sliced.type.shape))


def _mask_of_rows(x: T, index: Any, source: T) -> T | None:
    """A mask over leading axes in a shape that broadcasts, if every True gets the same value.

    How many there are then does not matter, so that compiled programs can hold it.
    """
    mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not x.is_operand(mask) or mask.type.dtype is not bool_ or not mask.type.shape:
        return None
    own, rank = x.type.shape, len(mask.type.shape)
    rows, rest = own[:rank], own[rank:]
    given = source.type.shape
    if mask.type.shape != rows or len(given) > len(rest):
        return None
    if any(g not in (1, d) for g, d in zip(given[::-1], rest[::-1], strict=False)):
        return None
    found: T = mask.reshape((*rows, *[1] * len(rest)))
    return found


def _as_operand(x: T, value: Any) -> T:
    if x.is_operand(value):
        operand: T = value
        return operand
    scalar = isinstance(value, (bool, int, float)) and not isinstance(value, np.generic)
    return x.constant(value if scalar else as_array(Index(()), value))


def _fit(value: T, shape: Shape) -> T:
    """Broadcast to a region; leading axes of size 1 may be in excess, as in NumPy."""
    have = value.type.shape
    while len(have) > len(shape) and have[0] == 1:
        have = have[1:]
    try:
        fits = is_same(broadcast_shapes("setitem", have, shape), shape)
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            "setitem",
            f"cannot write {format_shape(value.type.shape)} to {format_shape(shape)}",
            hint="the value must broadcast to the indexed region",
        )
    return value.reshape(have).broadcast_to(shape)


# -- taking an index apart ---------------------------------------------------------------------


def _parse(x: Operators, index: Any) -> _IndexPlan:
    items = _expanded(x, [_item(x, i) for i in (index if isinstance(index, tuple) else (index,))])
    advanced = any(isinstance(item, bool) or _is_array(item) for item in items)
    plan = _IndexPlan(split=advanced and _splits(items))
    items = [item for item in items if item is not Ellipsis]
    axis = 0
    for item in items:
        if item is None:
            plan.view.append(1)
        elif isinstance(item, bool):
            _choose(x, plan, item)
        elif isinstance(item, slice):
            plan.cuts.append(item)
            plan.view.append(_length(x, item, axis))
            axis += 1
        elif _is_array(item):
            axis += _gather(x, plan, item, axis)
        else:
            _pick(x, plan, item, axis, advanced)
            axis += 1
    return plan


def _item(x: Operators, given: Any) -> Any:
    """One index item as None, Ellipsis, a slice, a bool, an int, an array or an operand."""
    if given is None or given is Ellipsis or isinstance(given, bool):
        return given
    if isinstance(given, slice):
        # Plain bounds can be compared: a tensor's `==` is an op.
        bounds = given.start, given.stop, given.step
        return slice(*(b if b is None else _integer(x, b) for b in bounds))
    if isinstance(given, (list, tuple)):
        given = np.asarray(given) if given else np.zeros(0, np.int32)
    if _is_array(given):
        return given if given.shape or not _is_mask(given) else bool(given)
    if isinstance(given, np.bool_):
        return bool(given)
    return _integer(x, given)


def _integer(x: Operators, given: Any) -> Dim:
    """The Python int, or the symbolic extent, that an index or a bound of a slice stands for."""
    if isinstance(given, Expr):
        return given
    try:
        return as_int(given)
    except TypeError:
        raise DTypeError(
            "index",
            f"cannot index with a {type(given).__name__}",
            saw=str(x.type),
            hint="use integers, slices, ..., None, or integer and bool arrays",
        ) from None


def _expanded(x: Operators, items: list[Any]) -> list[Any]:
    """Index items with slices for missing axes in place of the Ellipsis, unless none is missing."""
    used = sum(_axes_used(i) for i in items)
    ndim = x.type.ndim
    if used > ndim:
        raise IndexRangeError(
            "index", f"{used} indices for {ndim} axes", saw=str(x.type), hint="use fewer indices"
        )
    at = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(at) > 1:
        raise IndexRangeError("index", "an index holds more than one ...")
    place = at[0] if at else len(items)
    missing: list[Any] = [_WHOLE] * (ndim - used) or [...] * len(at)
    return items[:place] + missing + items[place + bool(at) :]


def _splits(items: list[Any]) -> bool:
    """Return whether a ... that stands for no axes has gathering items on both sides."""
    at = next((n for n, i in enumerate(items) if i is Ellipsis), 0)
    gathers = [not (i is None or i is Ellipsis or isinstance(i, slice)) for i in items]
    return any(gathers[:at]) and any(gathers[at:])


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if _is_array(item) and _is_mask(item):
        return len(item.shape)
    return 1


def _is_array(item: Any) -> bool:
    """Return whether an item gathers: an operand or array that is not a Python-like integer."""
    return isinstance(item, (Operators, np.ndarray))


def _is_mask(item: Any) -> bool:
    if isinstance(item, Operators):
        return item.type.dtype is bool_
    return bool(item.dtype == np.bool_)


def _length(x: Operators, cut: slice, axis: int) -> Dim:
    extent = x.type.shape[axis]
    if cut == _WHOLE:
        return extent
    start, stop, step = bounds_of(cut, extent)
    return (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step


def _choose(x: Operators, plan: _IndexPlan, kept: bool) -> None:
    """A truth value: a new axis, and an array beside the others that keeps all of it or nothing."""
    plan.gathered[len(plan.view)] = x.constant(np.zeros(int(kept), np.int32))
    plan.view.append(1)


def _pick(x: Operators, plan: _IndexPlan, at: Dim, axis: int, advanced: bool) -> None:
    """An integer: a cut of length 1 that is dropped, or an index beside arrays."""
    extent = x.type.shape[axis]
    looked_at_later = advanced or data_decide(extent)  # A gathered one, when it is known.
    if isinstance(at, int):
        least = at + 1 if at >= 0 else -at
        if isinstance(extent, Expr):
            if not looked_at_later:
                require(less_equal(least, extent), lambda: _beyond(x, at, axis))
        elif extent < least:
            raise _beyond(x, at, axis)
    if looked_at_later:
        plan.gathered[len(plan.view) - len(plan.dropped)] = x.constant(np.asarray(at, np.int32))
        plan.cuts.append(_WHOLE)
        plan.view.append(extent)
        return
    plan.cuts.append(_one_place(at, extent))
    plan.dropped.append(len(plan.view))
    plan.view.append(1)


def _beyond(x: Operators, at: int, axis: int) -> IndexRangeError:
    extent = x.type.shape[axis]
    return IndexRangeError(
        "index",
        f"index {at} is out of range for axis {axis} of size {extent}",
        saw=str(x.type),
        hint="the axis is empty" if is_identical(extent, 0) else f"use {-extent} to {extent - 1}",
    )


def _gather(x: Operators, plan: _IndexPlan, item: Any, axis: int) -> int:
    """An index array or mask; returns how many axes of x it uses."""
    arrays = _mask_indices(x, item, axis) if _is_mask(item) else [_integers(x, item)]
    for offset, array in enumerate(arrays):
        plan.gathered[len(plan.view)] = array
        plan.cuts.append(_WHOLE)
        plan.view.append(x.type.shape[axis + offset])
    return len(arrays)


def _integers(x: Operators, item: Any) -> Any:
    operand = item if isinstance(item, Operators) else _constant_index(x, item)
    if not operand.type.dtype.is_integer:
        raise DTypeError(
            "index",
            "an index must be integer or bool",
            saw=str(operand.type),
            hint='cast it with astype("int32")',
        )
    return as_index(operand)


def _constant_index(x: Operators, item: np.ndarray[Any, Any]) -> Any:
    """An index array as an operand; what no int32 holds stays int64, to be out of range there."""
    if item.dtype.kind not in "iu":
        return x.constant(item)
    widest = max(abs(int(item.min())), abs(int(item.max()))) if item.size else 0
    kind = int64 if widest > np.iinfo(np.int32).max else int32
    if item.dtype == np.uint64:
        item = np.minimum(item, np.uint64(np.iinfo(np.int64).max))
    return x.constant(item.astype(kind.numpy), kind)


def _mask_indices(x: Operators, mask: Any, axis: int) -> list[Any]:
    shape = mask.shape if isinstance(mask, np.ndarray) else mask.type.shape
    wanted = x.type.shape[axis : axis + len(shape)]

    def misfit() -> IndexRangeError:
        return IndexRangeError(
            "index",
            f"a mask of shape {format_shape(shape)} does not fit axes of {format_shape(wanted)}",
            saw=str(x.type),
            hint="a mask has the shape of the axes it selects from",
        )

    if len(shape) != len(wanted):
        raise misfit()
    for mine, other in zip(shape, wanted, strict=True):
        require_equal(mine, other, misfit)
    if isinstance(mask, np.ndarray):
        return [x.constant(i.astype(np.int32)) for i in np.nonzero(mask)]
    found = Nonzero()(mask)
    return [_column(found, i) for i in range(len(shape))]


def _column(x: T, at: int) -> T:
    """`x[:, at]` of a table."""
    rows = x.type.shape[0]
    column: T = Slice((0, at), (rows, at + 1), (1, 1))(x)
    return column.reshape((rows,))


# -- applying the slicing part -----------------------------------------------------------------


def _bounds(
    plan: _IndexPlan, shape: Shape
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[int, ...]]:
    """Starts, stops and steps per axis, counted from the front; a stop of -1 means "past 0"."""
    starts, stops, steps = [], [], []
    for cut, extent in zip(plan.cuts, shape, strict=True):
        start, stop, step = bounds_of(cut, extent)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    return tuple(starts), tuple(stops), tuple(steps)


def bounds_of(cut: slice, extent: Dim) -> tuple[Dim, Dim, int]:
    """Compute `slice.indices`, for symbols as well; the stop never lies before the start."""
    if cut == _WHOLE:
        return 0, extent, 1
    step = 1 if cut.step is None else int(cut.step)
    if not any(isinstance(v, Expr) for v in (extent, cut.start, cut.stop)):
        start, stop, step = slice(cut.start, cut.stop, step).indices(int(extent))
        return start, max(start, stop) if step > 0 else min(start, stop), step
    if step == 0:
        raise ValueError("slice step cannot be zero")
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first, last = (low, high) if step > 0 else (high, low)
    begin = first if cut.start is None else _inside(cut.start, extent, low, high)
    end = last if cut.stop is None else _inside(cut.stop, extent, low, high)
    return begin, maximum(begin, end) if step > 0 else minimum(begin, end), step


def _inside(bound: Dim, extent: Dim, low: Dim, high: Dim) -> Dim:
    """A bound of a slice counted from the front, moved to the nearest place that there is."""
    return maximum(bound + extent, low) if bound < 0 else minimum(bound, high)


def _one_place(at: Dim, extent: Dim) -> slice:
    """The slice that an integer cuts out; on a symbolic axis `Slice` states that it is there."""
    if isinstance(extent, Expr) and at < 0:
        at = at + extent
    return slice(at, at + 1 if isinstance(at, Expr) or at != -1 else None)


def _sliced(x: T, plan: _IndexPlan) -> T:
    if all(cut == _WHOLE for cut in plan.cuts):
        part = x
    else:
        part = Slice(*_bounds(plan, x.type.shape))(x)
    return part
