"""Elements picked, added and replaced by integer indices (NumPy's advanced indexing).

Indices are int32 or int64; negative ones count from the end; one that is out of range raises
`IndexRangeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.shape import (
    Shape,
    broadcast_shapes,
    format_shape,
    is_static,
    normalize_axis,
    product,
    require_equal,
    size_of,
)
from treadle.base.symbol import Dim, Expr, symbol
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.creation import Iota, allocate
from treadle.ops.elementwise import Minimum
from treadle.ops.families import NUMBERS
from treadle.ops.index_numpy import accumulating, add_rows, check_bounds, linear_over, writable
from treadle.ops.op import (
    BadSample,
    IndexRange,
    Onnx,
    Op,
    Permuted,
    Pullback,
    Sample,
    Types,
    V,
    family,
    op,
)
from treadle.ops.orders import Orders, inverse
from treadle.ops.select import Where

INDICES = (dt.int32, dt.int64)


def check_index(op: Op, types: tuple[TensorType, ...], position: int) -> None:
    """Raise `DTypeError` unless an operand is an index tensor."""
    if types[position].dtype not in INDICES:
        raise DTypeError(
            op.name,
            f"an index is {types[position].dtype.name}, not int32 or int64",
            saw=op.saw(types),
            hint="cast the index with astype('int32')",
        )


def as_index(x: V) -> V:
    """Integers as int32 or int64, as large as they were.

    Of uint64, what int64 does not hold becomes its largest number, at which no axis has an element.
    """
    dtype = x.type.dtype
    if dtype in INDICES:
        return x
    if dtype is dt.uint64:
        x = Minimum()(x, x.constant(np.iinfo(np.int64).max))
    return x.astype(dt.int64 if dtype in (dt.uint32, dt.uint64) else dt.int32)


@op
class Take(Op):
    """Slices of x along `axis`: result[i, j..., k] = x[i, index[j...], k].

    Embeddings are this with axis 0. The index's axes stand where `axis` was.
    """

    axis: int

    work = "data"
    name = "take"
    operands = ("x", "index")
    dtypes = dt.ALL
    onnx = Onnx("Gather", since=11, attributes=(("axis", "axis"),))
    torch = "x[(slice(None),) * op.axis + (index.long(),)]"
    selects = "first"

    def permuted(self, types: Types, result: TensorType, orders: Orders) -> Permuted | None:
        x, places = types
        if places.ndim != 1:
            return None
        return Permuted(self.replace(axis=inverse(orders(x.ndim))[self.axis]), (x.ndim, 0))

    def infer(self, x: TensorType, index: TensorType) -> tuple[TensorType, ...]:
        check_index(self, (x, index), 1)
        axis = normalize_axis(self.axis, x.ndim, self.name)
        return (x.with_shape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        extent = types[0].shape[self.axis]
        return ((1, -extent, extent),)

    def reference(self, x: Array, index: Array) -> Array:
        extent = x.shape[self.axis]
        check_bounds(self, (x, index), index, self.axis, extent, -extent)
        return np.asarray(np.take(x, index, self.axis))

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, index = at.inputs
        zeros = at.dy.constant(0.0).broadcast_to(x.type.shape)
        return IndexAdd((self.axis,))(zeros, at.dy, index), None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(0), (Arg((4, 3)), Arg((2, 2), dt.int32, values=((1, 3), (-4, 1))))),
            Sample(cls(1), (Arg((2, 3, 2)), Arg((4,), dt.int64, low=0, high=3))),
            Sample(cls(0), (Arg((3,)), Arg((), dt.int32, values=2))),
            Sample(cls(0), (Arg((3, 2)), Arg((0,), dt.int32))),
            Sample(cls(0), (Arg((0, 2)), Arg((0, 3), dt.int32))),
            Sample(cls(1), (Arg((1, 1)), Arg((1,), dt.int32, values=(0,)))),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, above = Arg((2, 3)), Arg((2,), dt.int32, values=(0, 3))
        below = Arg((1,), dt.int32, values=(-4,))
        empty = Arg((1,), dt.int32, values=(0,))
        return (
            BadSample(lambda: cls(1), (x, above), IndexRangeError, "index 3 is out of range for a"),
            BadSample(lambda: cls(1), (x, below), IndexRangeError, "index -4 is out of range"),
            BadSample(lambda: cls(0), (Arg((0,)), empty), IndexRangeError, "0 with extent 0"),
            BadSample(lambda: cls(0), (x, Arg((2,))), DTypeError, "an index is float32"),
            BadSample(lambda: cls(2), (x, below), ShapeError, "axis 2 is out of range"),
        )


@family
class Indexing(Op):
    """An op on the elements that broadcast indices name together, one index for each of `axes`.

    `axes` is increasing. The indices' common shape stands at the first of them where they are
    neighbors, else in front of all other axes (NumPy's rule).
    """

    work = "data"
    dtypes = dt.ALL
    axes: tuple[int, ...]

    @property
    def position(self) -> int:
        """The first result axis that belongs to the indices."""
        neighbors = self.axes[-1] - self.axes[0] == len(self.axes) - 1
        return self.axes[0] if neighbors else 0

    def region(
        self, x: TensorType, indices: tuple[TensorType, ...], types: tuple[TensorType, ...]
    ) -> Shape:
        """Shape of the indexed region."""
        increasing = sorted(set(self.axes)) == list(self.axes) and min(self.axes, default=-1) >= 0
        if not increasing or len(indices) != len(self.axes):
            raise self.error(
                f"has {len(indices)} indices for the axes {self.axes}",
                types,
                "give one index for each of one or more increasing axes",
            )
        normalize_axis(self.axes[-1], x.ndim, self.name)
        for i in range(len(types) - len(indices), len(types)):
            check_index(self, types, i)
        common = broadcast_shapes(self.name, *(t.shape for t in indices))
        rest = tuple(d for i, d in enumerate(x.shape) if i not in self.axes)
        return (*rest[: self.position], *common, *rest[self.position :])

    def key(self, *indices: Any) -> tuple[Any, ...]:
        """Return the index in NumPy's form: arrays at `axes`, full slices before and
        between them.
        """
        found: list[Any] = [slice(None)] * (self.axes[-1] + 1)
        for axis, index in zip(self.axes, indices, strict=True):
            found[axis] = index
        return tuple(found)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        extents = [types[0].shape[axis] for axis in self.axes]
        first = len(types) - len(extents)
        return tuple([(first + i, -extent, extent) for i, extent in enumerate(extents)])

    def check(self, operands: tuple[Array, ...], indices: tuple[Array, ...]) -> None:
        """Raise `IndexRangeError` for the first index that is out of range."""
        for axis, index in zip(self.axes, indices, strict=True):
            extent = operands[0].shape[axis]
            check_bounds(self, operands, index, axis, extent, -extent)


@op
class Index(Indexing):
    """x[..., index, ...]: the elements that broadcast indices name, as NumPy picks them."""

    name = "index"
    operands = ("x", "*indices")
    torch = "x[op.key(*(i.long() for i in indices))]"
    selects = "first"
    keeps_axes = True

    def infer(self, x: TensorType, *indices: TensorType) -> tuple[TensorType, ...]:
        return (x.with_shape(self.region(x, indices, (x, *indices))),)

    def reference(self, x: Array, *indices: Array) -> Array:
        self.check((x, *indices), indices)
        return np.asarray(x[self.key(*indices)])

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, *indices = at.inputs
        zeros = at.dy.constant(0.0).broadcast_to(x.type.shape)
        return (IndexAdd(self.axes)(zeros, at.dy, *indices), *(None for _ in indices))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axes), (x, *indices)) for axes, x, _, *indices in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return _bad_samples(cls, ())


@op
class IndexAdd(Indexing):
    """x with v added at the indexed elements; where indices repeat, all of them count.

    float16 and bfloat16 accumulate in float32.
    """

    name = "index_add"
    operands = ("x", "v", "*indices")
    dtypes = NUMBERS

    def infer(self, x: TensorType, v: TensorType, *indices: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x, v, *indices))
        return _check_value(self, x, v, indices)

    def reference(self, x: Array, v: Array, *indices: Array) -> Array:
        self.check((x, v, *indices), indices)
        chosen = tuple(x.shape[a] for a in self.axes)
        positions = linear_over(indices, chosen)
        front = range(len(chosen))
        moved = accumulating(np.moveaxis(x, self.axes, front))
        width = int(np.prod(moved.shape[len(chosen) :]))
        count = positions.ndim
        rows = np.moveaxis(v, range(self.position, self.position + count), range(count))
        table = moved.reshape(int(np.prod(chosen)), width)
        dense = rows.reshape(positions.size, width).astype(table.dtype, copy=False)
        add_rows(table, positions.reshape(-1), dense)
        return np.moveaxis(moved, front, self.axes).astype(x.dtype, copy=False)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        _, _, *indices = at.inputs
        dv = Index(self.axes)(at.dy, *indices) if at.needs[1] else None
        return (at.dy if at.needs[0] else None, dv, *(None for _ in indices))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axes), tuple(args)) for axes, *args in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return _bad_samples(cls, (Arg((2, 3)),))


@op
class IndexUpdate(Indexing):
    """x with the indexed elements replaced by v; where indices repeat, the last write stays.

    A value that was overwritten gets no gradient.
    """

    name = "index_update"
    operands = ("x", "v", "*indices")
    selects = "any"
    keeps_axes = True

    def infer(self, x: TensorType, v: TensorType, *indices: TensorType) -> tuple[TensorType, ...]:
        return _check_value(self, x, v, indices)

    def reference(self, x: Array, v: Array, *indices: Array) -> Array:
        self.check((x, v, *indices), indices)
        result = writable(x)
        result[self.key(*indices)] = v
        return result

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, v, *indices = at.inputs
        zero, dx, dv = at.dy.constant(0.0), None, None
        if at.needs[0]:
            dx = self(at.dy, zero.broadcast_to(v.type.shape), *indices)
        if at.needs[1]:
            stays = last_writes(
                v,
                x.type.shape,
                lambda marks, order: self(marks, order, *indices),
                lambda marks: Index(self.axes)(marks, *indices),
            )
            dv = Where()(stays, Index(self.axes)(at.dy, *indices), zero)
        return (dx, dv, *(None for _ in indices))

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axes), tuple(args)) for axes, *args in _CASES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return _bad_samples(cls, (Arg((2, 3)),))


def last_writes(v: V, shape: Shape, write: Callable[[V, V], V], read: Callable[[V], V]) -> V:
    """Select the elements of v that remain after all of them were written into an array of `shape`.

    Every element writes its number; those that read their own number back were not overwritten.
    """
    size = product(v.type.shape)
    (numbers,) = v.apply(Iota(0, 1, size, dt.int64), ())
    order = numbers.reshape(v.type.shape)
    marks = v.constant(0, dt.int64).broadcast_to(shape)
    return read(write(marks, order)) <= order


def _check_value(
    op: Indexing, x: TensorType, v: TensorType, indices: tuple[TensorType, ...]
) -> tuple[TensorType, ...]:
    """The type rule of updates: v has the shape of the region."""
    types = (x, v, *indices)
    op.check_same_dtype((x, v))
    region = op.region(x, indices, types)

    def otherwise() -> ShapeError:
        return op.error(
            f"cannot write {format_shape(v.shape)} to a region of {format_shape(region)}",
            types,
            "broadcast the value to the shape of the region",
        )

    if v.ndim != len(region):
        raise otherwise()
    for mine, theirs in zip(region, v.shape, strict=True):
        require_equal(mine, theirs, otherwise)
    return (x.with_shape(x.shape),)


# Axes, x, v, indices.
_CASES: tuple[tuple[Any, ...], ...] = (
    ((0,), Arg((4, 3)), Arg((3, 3)), Arg((3,), dt.int32, values=(1, -1, 1))),
    (
        (0, 1),
        Arg((3, 4, 2)),
        Arg((2, 3, 2)),
        Arg((2, 1), dt.int32, low=0, high=3),
        Arg((3,), dt.int32, low=0, high=4),
    ),
    (
        (0, 2),
        Arg((2, 3, 4)),
        Arg((2, 3)),
        Arg((2,), dt.int64, low=0, high=2),
        Arg((2,), dt.int64, low=0, high=4),
    ),
    (
        (1, 2),
        Arg((2, 3, 4)),
        Arg((2, 3)),
        Arg((), dt.int32, values=-1),
        Arg((3,), dt.int32, low=0, high=4),
    ),
    ((0,), Arg((3,)), Arg(()), Arg((), dt.int32, values=1)),
    ((1,), Arg((2, 3)), Arg((2, 0)), Arg((0,), dt.int32)),
    ((0,), Arg((1, 1)), Arg((1, 1)), Arg((1,), dt.int32, values=(0,))),
)


def _bad_samples(cls: type[Any], value: tuple[Arg, ...]) -> tuple[BadSample, ...]:
    x, two = Arg((4, 3)), Arg((2,), dt.int32, values=(0, 4))
    good = Arg((2,), dt.int32, values=(0, 1))
    three = Arg((3,), dt.int32, values=(0, 1, 2))
    common = (
        BadSample(lambda: cls((0,)), (x, *value, two), IndexRangeError, "index 4 is out of range"),
        BadSample(lambda: cls((0,)), (x, *value, Arg((2,))), DTypeError, "an index is float32"),
        BadSample(lambda: cls((0, 1)), (x, *value, good), ShapeError, "1 indices for the axes"),
        BadSample(lambda: cls((2,)), (x, *value, good), ShapeError, "axis 2 is out of range"),
        BadSample(lambda: cls((0, 1)), (x, *value, good, three), ShapeError, "2 against 3"),
    )
    if not value:
        return common
    wide, other = Arg((2, 4)), Arg((2, 3), dt.bool_)
    return (
        *common,
        BadSample(lambda: cls((0,)), (x, wide, good), ShapeError, "cannot write [2,4]"),
        BadSample(lambda: cls((0,)), (x, other, good), DTypeError, "differ in element type"),
    )


@op
class OneHot(Op):
    """1 at position x[i] of a new last axis of extent `num_classes`, 0 elsewhere; x's own type."""

    num_classes: int | Expr

    work = "data"
    name = "one_hot"
    dtypes = INDICES
    torch = "F.one_hot(x.long(), op.num_classes).to(x.dtype)"
    no_gradient = "takes class numbers, which are integers"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        if self.num_classes < 0:
            raise self.error(
                f"cannot have {self.num_classes} classes", (x,), "num_classes is 0 or more"
            )
        return (x.with_shape((*x.shape, self.num_classes)),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        return ((0, 0, self.num_classes),)

    def reference(self, x: Array) -> Array:
        classes = int(self.num_classes)
        check_bounds(self, (x,), x, x.ndim, classes)
        result = allocate(self, (*x.shape, classes), dt.as_dtype(x.dtype))
        result[...] = 0
        flat = result.reshape(x.size, classes)
        flat[np.arange(x.size), x.reshape(-1)] = 1
        return result

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(4), (Arg((2, 3), low=0, high=4),)),
            Sample(cls(3), (Arg((), low=0, high=3),)),
            Sample(cls(2), (Arg((0, 3)),)),
            Sample(cls(1), (Arg((1, 1), low=0, high=1),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        high, low = Arg((2,), values=(0, 3)), Arg((1,), values=(-1,))
        return (
            BadSample(lambda: cls(3), (high,), IndexRangeError, "index 3 is out", dt.int32),
            BadSample(lambda: cls(3), (low,), IndexRangeError, "index -1 is out", dt.int32),
            BadSample(lambda: cls(-1), (low,), ShapeError, "cannot have -1 classes", dt.int32),
            BadSample(lambda: cls(3), (Arg((2,)),), DTypeError, "does not take float32"),
        )


class Numbering:
    """Ends of names of extents that data decide; `taken` is how many there are so far."""

    def __init__(self, mark: str = ".") -> None:
        self._mark = mark
        self.taken = 0

    def fresh(self) -> str:
        """The next one."""
        number, self.taken = self.taken, self.taken + 1
        return f"{self._mark}{number}"


_FRESH = Numbering("")
_ANEW: ContextVar[Numbering] = ContextVar("fresh", default=_FRESH)


def numbering() -> Numbering:
    """The names that are given here."""
    return _ANEW.get()


@contextmanager
def numbering_anew() -> Iterator[None]:
    """Number extents that data decide anew in the block, so that all such blocks give equal names.

    What is remembered of types in one is then found in the next one.
    """
    before = _ANEW.set(Numbering())
    try:
        yield
    finally:
        _ANEW.reset(before)


@op
class Nonzero(Op):
    """Positions of the elements that are not zero: int32 [count, axes of x], in row-major order.

    The count is known only to the data: as a type it is a new symbol.
    """

    name = "nonzero"
    dtypes = (dt.bool_, *NUMBERS)
    torch = "torch.nonzero(x).int()"
    no_gradient = "gives positions, which are integers"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        self.check_positions(x, range(x.ndim))
        most = size_of(x.shape) if is_static(x.shape) else None
        count: Dim = symbol(f"nonzero{_ANEW.get().fresh()}", 0, most) if most != 0 else 0
        return (TensorType(dt.int32, (count, x.ndim), x.device),)

    def bounded(self, types: Types) -> Op | None:
        return NonzeroPlaces() if types[0].ndim else None

    def reference(self, x: Array) -> Array:
        return np.argwhere(x).astype(np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((3, 4), values=((0, 1, 0, 2), (0, 0, 0, 0), (3, 0, 0, 1))),)),
            Sample(cls(), (Arg(()),)),
            Sample(cls(), (Arg((0, 3)),)),
            Sample(cls(), (Arg((1, 1)),)),
        )


@op
class Counted(Op):
    """0, 1, ..., n - 1 for a number n, of its element type; none where n is not above 0.

    The extent is known only to the data: as a type it is a new symbol.
    """

    name = "counted"
    operands = ("n",)
    dtypes = (dt.int32, dt.int64)
    torch = "torch.arange(max(int(n), 0), dtype=n.dtype)"
    no_gradient = "gives positions, which are integers"

    def infer(self, n: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((n,))
        if n.ndim:
            raise self.error("takes one number", (n,), "reshape it to ()")
        count = symbol(f"counted{_ANEW.get().fresh()}", 0)
        return (n.with_shape((count,)),)

    def reference(self, n: Array) -> Array:
        return np.arange(max(int(n), 0), dtype=n.dtype)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        given = [Arg((), d, values=n) for d in cls.dtypes for n in (3, 0, -2, 1)]
        return tuple(Sample(cls(), (n,)) for n in given)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(cls, (Arg((2,), dt.int64),), ShapeError, "takes one number"),)


@op
class NonzeroPlaces(Op):
    """(positions, count) of the elements of x that are not zero: int32 [elements, axes] and [1].

    Positions come in row-major order; rows behind the last one are zero.
    """

    name = "nonzero_places"
    dtypes = (dt.bool_, *NUMBERS)
    n_outputs = 2
    work = "data"
    no_gradient = "gives positions, which are integers"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        self.check_positions(x, range(x.ndim))
        if not x.ndim:
            raise self.error("a number has no axes", (x,), "reshape it to [1]")
        places = TensorType(dt.int32, (product(x.shape), x.ndim), x.device)
        return places, TensorType(dt.int32, (1,), x.device)

    def reference(self, x: Array) -> tuple[Array, Array]:
        found = np.argwhere(x).astype(np.int32)
        places = np.zeros((x.size, x.ndim), np.int32)
        places[: len(found)] = found
        return places, np.array([len(found)], np.int32)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (
            Sample(cls(), (Arg((3, 4), values=((0, 1, 0, 2), (0, 0, 0, 0), (3, 0, 0, 1))),)),
            Sample(cls(), (Arg((2, 1, 3), low=0),)),
            Sample(cls(), (Arg((0, 3)),)),
            Sample(cls(), (Arg((1, 1)),)),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(), (Arg(()),), ShapeError, "has no axes"),)
