"""Collectives as NCCL's calls: what each of them moves, and how ops become calls.

A call moves dense stacks: one part per rank, in rank order. Ops that cut or join along another
axis than the first one have a generated kernel before or after the call, which changes the order
of axes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from treadle.backends.api import Support, no
from treadle.backends.cuda.libraries.joining import Joining
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.ops.bucket import AllReduceBucket
from treadle.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastRank,
    Collective,
    GatherTo,
    Recv,
    ReduceScatter,
    ReduceTo,
    ScatterFrom,
    Send,
)
from treadle.ops.movement import Transpose
from treadle.ops.op import Op
from treadle.runtime.comm.carriers import NCCL, why_not

PREFIX = f"{NCCL} "
SUMMED = (
    *(dt.float32, dt.float64, dt.float16, dt.bfloat16),
    *(dt.int8, dt.uint8, dt.int32, dt.int64, dt.uint32, dt.uint64),
)
"""Element types that NCCL reduces; what is only moved travels as bytes."""
BYTES = "uint8"
_WORDS = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}

Verb = Literal[
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
]
Generated = Callable[[Op, Sequence[TensorType]], Lowered | Support]
"""Generated kernels of an op."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of a group's ranks; its arguments are all results, then all operands.

    Attributes:
        verb: what is done.
        group, world: the group's name and size.
        dtype: NCCL's name of the element type.
        counts: elements of one rank's part, for each pair of result and operand.
        kind: of a reduction: "sum", "mean", "max" or "min".
        root: the rank that has the operand or gets the result, where there is one.
        what: is compared between ranks; empty for one of a series that was compared before.
    """

    verb: Verb
    group: str
    world: int
    dtype: str
    counts: tuple[int, ...]
    kind: str = ""
    root: int = 0
    what: str = ""

    @property
    def name(self) -> str:
        """Name of the exchange in reports and profiles."""
        kind = f" {self.kind}" if self.kind else ""
        return f"{PREFIX}{self.verb}{kind} of {self.group} {self.dtype}[{sum(self.counts)}]"

    @property
    def operand(self) -> int:
        """Number of parts of each operand."""
        return self.world if self.verb in ("reduce_scatter", "scatter", "all_to_all") else 1

    @property
    def result(self) -> int:
        """Number of parts of each result."""
        return self.world if self.verb in ("all_gather", "gather", "all_to_all") else 1

    @property
    def symbol(self) -> str:
        """All of it as text, from which `parsed` makes it again."""
        return PREFIX + json.dumps(dataclasses.astuple(self))


def parsed(symbol: str) -> Exchange:
    """The exchange of a symbol."""
    verb, group, world, dtype, counts, *rest = json.loads(symbol.removeprefix(PREFIX))
    return Exchange(verb, group, world, dtype, tuple(counts), *rest)


# -- lowering ----------------------------------------------------------------------------------


def lower_collective(
    op: Collective, types: Sequence[TensorType], generated: Generated, installed: bool
) -> Lowered | Support:
    """A collective by NCCL, or why its operands go through the host.

    Args:
        op: the collective.
        types: of its operands.
        generated: lowers what changes the order of axes.
        installed: whether this process has the library.
    """
    if isinstance(op, (Send, Recv)):
        return no("policy", "NCCL's messages wait for their receivers; ours do not")
    if not all(t.is_static for t in types):
        return no("dynamic-shape", "an operand has symbolic extents")
    if op.world == 1:
        return Lowered(views=tuple((i, i, 0) for i in range(len(types))))
    refusal = _refusal(op, types[0].dtype, installed)
    if refusal is not None:
        return refusal
    if isinstance(op, AllReduceBucket):
        return _bucket(op, types)
    return _single(op, types[0], generated)


def _refusal(op: Collective, dtype: DType, installed: bool) -> Support | None:
    if not installed:
        return no("device-feature", "NCCL is not installed: pip install 'treadle[nccl]'")
    why = why_not(NCCL, op.group)
    if why:
        return no("policy", f"NCCL does not carry the group {op.group!r}: {why}")
    if not isinstance(op, (AllReduce, AllReduceBucket, ReduceTo, ReduceScatter)):
        return None
    if dtype not in SUMMED:
        return no("dtype", f"NCCL does not reduce {dtype.name}")
    if op.attributes.get("kind") == "mean" and not dtype.is_float:
        return no("dtype", "NCCL has no mean of integers")
    return None


def _bucket(op: AllReduceBucket, types: Sequence[TensorType]) -> Lowered:
    """All reductions of a bucket, which NCCL runs as one; nothing is packed.

    The first bucket of a program has the ranks compared, for all of its buckets.
    """
    what = "" if op.number else f"{op.name} {op.series}"
    counts = tuple(map(_count, types))
    dtype = types[0].dtype.name
    call = Exchange("all_reduce", op.group, op.world, dtype, counts, op.kind, what=what)
    places = range(len(types))
    arguments = (*(Ref("output", i) for i in places), *(Ref("input", i) for i in places))
    nbytes = 2 * sum(t.nbytes for t in types)
    return Lowered(
        (Launch(call, arguments, nbytes=nbytes),), in_place=tuple((i, i) for i in places)
    )


def _single(op: Collective, x: TensorType, generated: Generated) -> Lowered | Support:
    """The call of an op, between kernels that change the order of axes where that is needed."""
    call, cut, joined = _call(op, x)
    made, source, target = Joining(), Ref("input", 0), Ref("output", 0)
    out = op.infer(x)[0]
    if cut > 0 and _outer(x, cut) > 1:
        turned = made.workspace(x.nbytes)
        order = (_outer(x, cut), op.world, _inner(x, cut) // op.world)
        refusal = _turn(made, order, x.dtype, (source, turned), generated)
        if refusal is not None:
            return refusal
        source = turned
    stack = target
    if joined > 0 and _outer(out, joined) > 1:
        stack = made.workspace(out.nbytes)
    made.launches.append(Launch(call, (stack, source), nbytes=x.nbytes + out.nbytes))
    if stack is not target:
        order = (op.world, _outer(out, joined), _inner(out, joined) // op.world)
        refusal = _turn(made, order, x.dtype, (stack, target), generated)
        if refusal is not None:
            return refusal
    whole = isinstance(op, (AllReduce, BroadcastRank, ReduceTo))
    return replace(made.lowered(), in_place=((0, 0),) if whole else ())


def _call(op: Collective, x: TensorType) -> tuple[Exchange, int, int]:
    """The call, the axis that operands are cut along, and that results are joined along."""
    what = f"{op} {x.dtype.numpy}{[int(d) for d in x.shape]}"
    part, whole = x.nbytes // op.world, x.nbytes
    base = Exchange("all_reduce", op.group, op.world, x.dtype.name, (_count(x),), what=what)
    if isinstance(op, AllReduce):
        return replace(base, kind=op.kind), 0, 0
    if isinstance(op, ReduceTo):
        return replace(base, verb="reduce", kind="sum", root=op.root), 0, 0
    if isinstance(op, ReduceScatter):
        count = (_count(x) // op.world,)
        return replace(base, verb="reduce_scatter", kind="sum", counts=count), op.axis, 0
    moved, cut = replace(base, dtype=BYTES, counts=(whole,)), replace(base, dtype=BYTES)
    cut = replace(cut, counts=(part,))
    if isinstance(op, BroadcastRank):
        return replace(moved, verb="broadcast", root=op.root), 0, 0
    if isinstance(op, AllGather):
        return replace(moved, verb="all_gather"), 0, op.axis
    if isinstance(op, GatherTo):
        return replace(moved, verb="gather", root=op.root), 0, op.axis
    if isinstance(op, ScatterFrom):
        return replace(cut, verb="scatter", root=op.root), op.axis, 0
    if isinstance(op, AllToAll):
        return replace(cut, verb="all_to_all"), op.split_axis, op.concat_axis
    raise TypeError(f"{op.name} is not a collective that NCCL has a call for")


def _turn(
    made: Joining,
    order: tuple[int, int, int],
    dtype: DType,
    places: tuple[Ref, Ref],
    generated: Generated,
) -> Support | None:
    """Swap the first two axes of an array by a transpose from one place to another."""
    if not math.prod(order):
        return None
    # One kernel serves all types of a size, complex ones as pairs.
    word = _WORDS[min(dtype.itemsize, 8)]
    first, second, inner = order
    type_ = TensorType(word, (first, second, inner * dtype.itemsize // word.itemsize))
    found = generated(Transpose((1, 0, 2)), (type_,))
    if isinstance(found, Support):
        return found
    return made.add(found, [places[0]], [places[1]])


def _count(x: TensorType) -> int:
    return math.prod(int(d) for d in x.shape)


def _outer(x: TensorType, axis: int) -> int:
    return math.prod(int(d) for d in x.shape[:axis])


def _inner(x: TensorType, axis: int) -> int:
    return math.prod(int(d) for d in x.shape[axis:])
