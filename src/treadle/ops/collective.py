"""Collectives: ops in which every process of a group takes part.

Each op carries the name of its group and the group's size, `world`, which fixes the result shapes.
All processes apply the same ops in the same order; where only one rank receives the result
(`ReduceTo`, `GatherTo`), the others get a value of the same type whose elements mean nothing.
In a group of one every op is that of its oracle; in a larger one the oracle asks the group's
communicator (`runtime/comm`), after the ranks have agreed on op, shape and element type.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import NoGradient, ShapeError, UnsupportedOp
from treadle.base.shape import Shape, require_equal
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Pullback, Sample, V, family, op
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import Communicator

REDUCTIONS = ("sum", "mean", "max", "min")
_SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (0, 3), (1, 1))


@lru_cache(maxsize=4096)
def _intent(op: Op, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return in words what a rank is about to do, for comparison with others; equal ops give equal
    text.
    """
    return f"{op} {dtype}{list(shape)}"


def _pieces(x: Array, axis: int, count: int) -> Array:
    """Equal pieces of x along an axis, stacked."""
    extent = x.shape[axis] // count
    cut = x.reshape(*x.shape[:axis], count, extent, *x.shape[axis + 1 :])
    return np.moveaxis(cut, axis, 0)


def _joined(stack: Array, axis: int) -> Array:
    """A stack of arrays joined along an axis of theirs."""
    count, *shape = stack.shape
    shape[axis] *= count
    return np.ascontiguousarray(np.moveaxis(stack, 0, axis)).reshape(shape)


@family
class Collective(Op):
    """One operand per process of the group `group`, which has `world` processes."""

    work = "collective"
    dtypes = dt.ALL
    group: str = "world"
    world: int = 1

    def check_group(self, x: TensorType, rank: int = 0) -> None:
        """Raise unless the group has processes, `rank` among them, and takes x's element type."""
        self.check_dtype((x,))
        if self.world < 1:
            raise self.error(
                f"a group has 1 or more processes, not {self.world}",
                (x,),
                "pass the group's size as world",
            )
        if not 0 <= rank < self.world:
            raise self.error(
                f"rank {rank} is not in the group {self.group!r} of {self.world}",
                (x,),
                f"use a rank from 0 to {self.world - 1}",
            )

    def reference(self, x: Array) -> Array:
        """Compute the collective among the processes of the group; in a group of one, copy x."""
        if self.world == 1:
            return np.array(x)
        comm = self.communicator()
        comm.agree(_intent(self, x.dtype, x.shape))
        return self.together(comm, x)

    def together(self, comm: Communicator, x: Array) -> Array:
        """Compute the part of this process in a group of several."""
        raise NotImplementedError(self.name)

    def communicator(self) -> Communicator:
        """The group's.

        Raises:
            UnsupportedOp: this process is in no such group.
        """
        comm = groups.find(self.group)
        if comm is None or comm.size != self.world:
            raise UnsupportedOp(
                self.name,
                f"needs the {self.world} processes of the group {self.group!r}",
                saw="" if comm is None else f"a group of {comm.size}",
                hint="ranks were lost since this program was made: capture it anew"
                if groups.losses()
                else "start them with distributed.launcher and call init_process_group",
            )
        return comm

    def _axis(self, axis: int, x: TensorType) -> int:
        if not 0 <= axis < x.ndim:
            raise self.error(
                f"axis {axis} is out of range for {x.ndim} axes", (x,), "name an axis of x"
            )
        return axis

    def scaled(self, x: TensorType, axis: int, factor: int) -> TensorType:
        """The type of `world` pieces like x, joined along `axis`."""
        at = self._axis(axis, x)
        shape: list[Dim] = list(x.shape)
        shape[at] = shape[at] * factor
        return x.with_shape(tuple(shape))

    def divided(self, x: TensorType, axis: int) -> TensorType:
        """The type of one of `world` equal pieces of x along `axis`."""
        at = self._axis(axis, x)
        extent = x.shape[at]
        require_equal(
            extent % self.world,
            0,
            lambda: self.error(
                f"axis {axis} of extent {extent} does not split into {self.world} equal parts",
                (x,),
                "pad the axis to a multiple of the group's size",
            ),
        )
        shape: list[Dim] = list(x.shape)
        shape[at] = extent // self.world
        return x.with_shape(tuple(shape))


@op
class AllReduce(Collective):
    """Every process gets the elementwise `kind` ("sum", "mean", "max", "min") of all operands.

    Compiled programs put those of one `bucket` into one message, and no others beside them.
    """

    kind: str = "sum"
    bucket: str = ""

    name = "all_reduce"
    dtypes = dt.REALS
    shape_free = True

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x)
        if self.kind not in REDUCTIONS:
            raise self.error(
                f"{self.kind!r} is not a reduction", (x,), "use one of " + ", ".join(REDUCTIONS)
            )
        return (x,)

    def reference(self, x: Array) -> Array:
        if self.world == 1:
            return np.array(x)
        return self.communicator().all_reduce(x, self.kind, self)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        if self.kind not in ("sum", "mean"):
            raise NoGradient(
                self.name, f"the {self.kind} over processes has no gradient rule", hint="use sum"
            )
        return (self(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        kinds = tuple(
            Sample(cls(kind=k), (Arg((2, 3)),), gradient=k in ("sum", "mean")) for k in REDUCTIONS
        )
        named = Sample(cls(bucket="head"), (Arg((2, 3)),))
        return (*kinds, named, *(Sample(cls(), (Arg(s),)) for s in ((), (0, 3), (1, 1))))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(lambda: cls(kind="median"), (Arg((2,)),), ShapeError, "not a reduction"),
            BadSample(lambda: cls(world=0), (Arg((2,)),), ShapeError, "1 or more processes"),
        )


@op
class AllGather(Collective):
    """Every process gets the operands of all ranks, joined along `axis` in rank order."""

    axis: int = 0

    name = "all_gather"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x)
        return (self.scaled(x, self.axis, self.world),)

    def together(self, comm: Communicator, x: Array) -> Array:
        return _joined(comm.all_gather(x), self.axis)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (ReduceScatter(self.group, self.world, self.axis)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axis=1), (Arg(s),)) for s in _SHAPES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(axis=2), (Arg((2, 3)),), ShapeError, "out of range"),)


@op
class ReduceScatter(Collective):
    """The sum of all operands, of which rank r keeps part r of `world` along `axis`."""

    axis: int = 0

    name = "reduce_scatter"
    dtypes = dt.REALS

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x)
        return (self.divided(x, self.axis),)

    def together(self, comm: Communicator, x: Array) -> Array:
        return comm.reduce_scatter(_pieces(x, self.axis, self.world))

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (AllGather(self.group, self.world, self.axis)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axis=1), (Arg(s),)) for s in _SHAPES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(world=2), (Arg((3,)),), ShapeError, "into 2 equal parts"),)


@op
class BroadcastRank(Collective):
    """Every process gets the operand of rank `root`."""

    root: int = 0

    name = "broadcast_rank"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x, self.root)
        return (x,)

    def together(self, comm: Communicator, x: Array) -> Array:
        return comm.broadcast(x, self.root)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (ReduceTo(self.group, self.world, self.root)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(), (Arg(s),)) for s in ((), *_SHAPES))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(root=1), (Arg((2,)),), ShapeError, "rank 1 is not in"),)


@op
class ReduceTo(Collective):
    """Rank `root` gets the sum of all operands."""

    root: int = 0

    name = "reduce_to"
    dtypes = dt.REALS

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x, self.root)
        return (x,)

    def together(self, comm: Communicator, x: Array) -> Array:
        total = comm.reduce(x, self.root)
        return np.zeros_like(x) if total is None else total

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (BroadcastRank(self.group, self.world, self.root)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(), (Arg(s),)) for s in ((), *_SHAPES))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(root=-1), (Arg((2,)),), ShapeError, "rank -1 is not in"),)


@op
class GatherTo(Collective):
    """Rank `root` gets the operands of all ranks, joined along `axis` in rank order."""

    root: int = 0
    axis: int = 0

    name = "gather_to"
    selects = "any"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x, self.root)
        return (self.scaled(x, self.axis, self.world),)

    def together(self, comm: Communicator, x: Array) -> Array:
        every = comm.gather(x, self.root)
        if every is None:
            every = np.zeros((self.world, *x.shape), x.dtype)
        return _joined(every, self.axis)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (ScatterFrom(self.group, self.world, self.root, self.axis)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axis=1), (Arg(s),)) for s in _SHAPES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(root=3), (Arg((2,)),), ShapeError, "rank 3 is not in"),)


@op
class ScatterFrom(Collective):
    """Rank r gets part r of `world` along `axis` of the operand of rank `root`."""

    root: int = 0
    axis: int = 0

    name = "scatter_from"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x, self.root)
        return (self.divided(x, self.axis),)

    def together(self, comm: Communicator, x: Array) -> Array:
        return comm.scatter(_pieces(x, self.axis, self.world), self.root)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (GatherTo(self.group, self.world, self.root, self.axis)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(axis=1), (Arg(s),)) for s in _SHAPES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(world=4), (Arg((6,)),), ShapeError, "into 4 equal parts"),)


@op
class AllToAll(Collective):
    """Rank r sends part s along `split_axis` to rank s and joins what it gets on `concat_axis`."""

    split_axis: int = 0
    concat_axis: int = 0

    name = "all_to_all"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x)
        return (self.scaled(self.divided(x, self.split_axis), self.concat_axis, self.world),)

    def together(self, comm: Communicator, x: Array) -> Array:
        return _joined(comm.all_to_all(_pieces(x, self.split_axis, self.world)), self.concat_axis)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        back = AllToAll(self.group, self.world, self.concat_axis, self.split_axis)
        return (back(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(split_axis=0, concat_axis=1), (Arg(s),)) for s in _SHAPES)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(world=2), (Arg((3,)),), ShapeError, "into 2 equal parts"),)


@op
class Send(Collective):
    """x is sent to rank `dest`; the result is an empty token [0] of x's element type.

    The token's cotangent makes this process receive the cotangent of x, so a sender that does not
    own the loss still takes part in the backward pass. In a group of one the message goes nowhere.
    """

    dest: int = 0

    name = "send"

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        self.check_group(x, self.dest)
        return (x.with_shape((0,)),)

    def reference(self, x: Array) -> Array:
        if self.world != 1:
            self.communicator().send(x, self.dest)
        return np.zeros(0, x.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x = at.inputs[0].type
        return (Recv(self.group, self.world, self.dest, x.shape, x.dtype)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(Sample(cls(), (Arg(s),)) for s in ((), *_SHAPES))

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(dest=2), (Arg((2,)),), ShapeError, "rank 2 is not in"),)


@op
class Recv(Collective):
    """Receive what rank `source` sends: `shape` and `dtype` must be those of its operand.

    The operand is an empty token [0] of that element type, which orders the op and carries the
    gradient. In a group of one there is no message and the result is zero.
    """

    source: int = 0
    shape: Shape = ()
    dtype: DType = dt.float32

    name = "recv"
    operands = ("token",)

    def infer(self, token: TensorType) -> tuple[TensorType, ...]:
        self.check_group(token, self.source)
        if token.shape != (0,) or token.dtype is not self.dtype:
            raise self.error(
                f"its token is an empty {self.dtype.name} vector",
                (token,),
                "pass zeros of shape (0,)",
            )
        return (TensorType(self.dtype, self.shape, token.device),)

    def reference(self, token: Array) -> Array:
        fixed: Any = self.shape
        if self.world == 1:
            return np.zeros(fixed, self.dtype.numpy)
        return self.communicator().recv(fixed, self.dtype.numpy, self.source)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        return (Send(self.group, self.world, self.source)(at.dy),)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        cases: tuple[tuple[Shape, DType], ...] = (
            ((2, 3), dt.float32),
            ((), dt.int32),
            ((0, 2), dt.bfloat16),
            ((1,), dt.bool_),
        )
        typed = tuple(Sample(cls(shape=s, dtype=d), (Arg((0,), d),)) for s, d in cases)
        real = Sample(cls(shape=(2,), dtype=dt.float64), (Arg((0,)),), dtypes=(dt.float64,))
        return (*typed, real)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (BadSample(lambda: cls(shape=(2,)), (Arg((1,)),), ShapeError, "token is an empty"),)
