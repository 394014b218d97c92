"""Attention and its gradient by cuDNN, alone or with the movement around it.

The gradient starts from the result and from statistics of the weights, which the op does not have:
the forward pass is run again for them, into scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from treadle.backends.api import Support, no
from treadle.backends.codegen.attention.lower_attention import (
    BatchAxis,
    Views,
    broadcast_batch,
    dense_views,
    merged,
    read_body,
)
from treadle.backends.codegen.loops import lower_loops
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Strided
from treadle.backends.cuda.libraries.cudnn import calls
from treadle.backends.cuda.libraries.cudnn.calls import Call, CudnnOperand, dense, stats_of
from treadle.backends.cuda.libraries.cudnn.convolutions import ALIGNED, Accepts
from treadle.backends.cuda.libraries.joining import Joining
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.ir import Graph
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.fused import Fused
from treadle.ops.op import Op
from treadle.ops.select import Where

TYPES = (dt.float16, dt.bfloat16)
MOST_COLUMNS = 128
"""The largest head that the library computes forward and backward on every GPU."""
MULTIPLE = 8
"""Columns of a head are a multiple of it."""


class _Refused(Exception):
    """The library is not asked; `args` are a reason's code and message."""


def lower_attention(
    op: Op, types: Sequence[TensorType], accepts: Accepts, target: Target
) -> Lowered | Support:
    """The library's calls for attention or its gradient, or why it is not asked."""
    if not all(t.is_static for t in types):
        return no("dynamic-shape", "an operand has symbolic extents")
    if isinstance(op, Attention | AttentionGrad):
        read: tuple[Attention | AttentionGrad, Views] | Support
        read = op, dense_views(op, tuple(types))
    elif isinstance(op, Fused) and op.kind == "attention" and isinstance(op.body, Graph):
        read = read_body(op.body)
    else:
        read = no("op", f"cuDNN does not compute {op.name}")
    if isinstance(read, Support):
        return read
    try:
        return _Lowering(*read, types, accepts, target).lowered()
    except _Refused as refusal:
        return no(*refusal.args)


class _Lowering:
    """One attention or gradient.

    Args:
        op: what is computed.
        views: where its operands and results lie.
        given: types of the arrays that `views` are views of.
        accepts: whether the library has a plan for a call.
        target: of generated kernels.
    """

    def __init__(
        self,
        op: Attention | AttentionGrad,
        views: Views,
        given: Sequence[TensorType],
        accepts: Accepts,
        target: Target,
    ) -> None:
        self.op = op
        self.views = views
        self.given = given
        self.accepts = accepts
        self.target = target
        self.joining = Joining()
        self.dtype = views.types[0].dtype
        shapes = [view.shape for view in views.inputs]
        self.count = 3 if isinstance(op, Attention) else 4
        self.queries, self.columns = shapes[0][-2:]
        self.keys, self.wide = shapes[2][-2:]
        self.batch = broadcast_batch([s[:-2] for s in shapes[:3]])
        self._check(shapes)
        self.operands = [self._broadcast(v) for v in views.inputs[: self.count]]
        self.results = [
            None if view is None else self._broadcast(view)
            for view in views.outputs[: self.count - 1]
        ]
        self.mask = None
        if len(shapes) > self.count:
            scores = (*self.batch, self.queries, self.keys)
            self.mask = views.inputs[self.count].broadcast_to(scores)
        self.axes = self._axes()

    def _check(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Refuse what the library does not do, or does otherwise."""
        if self.dtype not in TYPES:
            raise _Refused("dtype", f"cuDNN's attention does not compute {self.dtype.name}")
        heads = (self.columns, self.wide)
        if any(n % MULTIPLE or not 0 < n <= MOST_COLUMNS for n in heads):
            raise _Refused("shape", f"heads have {MULTIPLE}, 16 ... {MOST_COLUMNS} columns")
        if not self.queries * self.keys * math.prod(self.batch):
            raise _Refused("shape", "there is no query or no key")
        if isinstance(self.op, AttentionGrad):
            if any(s[:-2] != self.batch for s in shapes[:3]):
                raise _Refused("shape", "the gradient of an operand that is repeated is a sum")
            if self.queries == self.keys == 1:
                raise _Refused("shape", "the gradient of one query and one key")

    def _broadcast(self, view: Strided) -> Strided:
        return view.broadcast_to((*self.batch, *view.shape[-2:]))

    def _axes(self) -> list[BatchAxis]:
        """Two axes of the batch: strides of the operands, of the results, then of the mask."""
        views = [*self.operands, *(r for r in self.results if r is not None)]
        views += [] if self.mask is None else [self.mask]
        found = merged(self.batch, views)
        if len(found) > 2:
            raise _Refused("layout", f"{len(found)} batch axes that do not merge")
        return [BatchAxis(1, (0,) * len(views))] * (2 - len(found)) + found

    # -- arrays ----------------------------------------------------------------------------

    def _array(self, number: int, view: Strided, shared: bool = False) -> CudnnOperand:
        """A matrix per entry and head; `shared` ones may be the same for all heads."""
        outer, heads = self.axes
        extents = [int(outer.extent), int(heads.extent)]
        steps = [outer.strides[number], heads.strides[number]]
        if shared and not steps[1]:
            extents[1] = 1
        *_, rows, columns = view.shape
        down, along = view.strides[-2:]
        if along != 1:
            raise _Refused("layout", "columns of a head are not adjacent")
        for axis in (1, 0):
            if extents[axis] == 1:  # any step will do
                steps[axis] = (rows * columns, extents[1] * steps[1])[axis == 0]
        strides = (*steps, down if rows > 1 else columns, 1)
        places = (view.offset, *strides[:-1])
        if min(strides) < 1 or any(p * self.dtype.itemsize % ALIGNED for p in places):
            raise _Refused("layout", "an operand is repeated, turned, or at an odd place")
        return CudnnOperand((*extents, rows, columns), strides, self.dtype.name)

    def _operand(self, number: int) -> CudnnOperand:
        shared = isinstance(self.op, Attention) and number in (1, 2)
        return self._array(number, self.operands[number], shared)

    def _ref(self, number: int) -> Ref:
        view = self.operands[number]
        return Ref("input", view.index, view.offset * self.dtype.itemsize)

    def _result(self, number: int) -> tuple[CudnnOperand, Ref]:
        """A result, in scratch memory where nobody wants it."""
        view = self.results[number]
        if view is None:
            rows, columns = self.operands[number].shape[-2:]
            array = self._dense(rows, columns)
            return array, self.joining.workspace(_nbytes(array))
        before = sum(r is not None for r in self.results[:number])
        ref = Ref("output", view.index, view.offset * self.dtype.itemsize)
        return self._array(len(self.operands) + before, view), ref

    def _dense(self, rows: int, columns: int) -> CudnnOperand:
        return dense((*(int(a.extent) for a in self.axes), rows, columns), self.dtype)

    def _added(self) -> tuple[CudnnOperand, Ref] | None:
        """Return the summand of the scores; a mask of truth values becomes 0 and -infinity."""
        view = self.mask
        if view is None:
            return None
        steps = [a.strides[-1] for a in self.axes]
        extents = [1 if not s else int(a.extent) for s, a in zip(steps, self.axes, strict=True)]
        down, along = view.strides[-2:]
        rows = self.queries if down else 1
        if along != 1 or min(view.strides) < 0:
            raise _Refused("layout", "a mask's keys are not adjacent")
        own = dense((*extents, rows, self.keys), self.dtype)
        strides = (*steps, down, along)
        kept = tuple(s if s else d for s, d in zip(strides, own.strides, strict=True))
        array = replace(own, strides=kept)
        source = Ref("input", view.index)
        if self.views.types[self.count].dtype is dt.bool_:
            source = self._converted(view.index)
        return array, replace(source, offset=view.offset * self.dtype.itemsize)

    def _converted(self, index: int) -> Ref:
        """A mask of truth values as what is added; strides stay those of the mask."""
        given = self.given[index]
        dtype = self.dtype

        def added(mask: Any) -> Any:
            seen = mask.astype(dtype)
            return Where()(mask, seen.constant(0.0), seen.constant(-math.inf))

        lowered = lower_loops.lower_body(trace_body(added, [given]), self.target)
        if isinstance(lowered, Support):
            raise _Refused(lowered.reason, lowered.message)
        made = self.joining.workspace(math.prod(map(int, given.shape)) * dtype.itemsize)
        refusal = self.joining.add(lowered, [Ref("input", index)], [made])
        if refusal is not None:
            raise _Refused(refusal.reason, refusal.message)
        return made

    # -- calls -----------------------------------------------------------------------------

    def lowered(self) -> Lowered:
        """The launches, if the library takes all of them."""
        added = self._added()
        if isinstance(self.op, Attention):
            if self.results[0] is None:
                raise _Refused("layout", "the result of attention is not an output of its group")
            self._forward(self._result(0), None, added)
        else:
            y = self._dense(self.queries, self.wide)
            stats = stats_of(y)
            made = y, self.joining.workspace(_nbytes(y))
            kept = stats, self.joining.workspace(_nbytes(stats))
            self._forward(made, kept, added)
            self._backward(made, kept, added)
        return self.joining.lowered()

    def _forward(
        self,
        result: tuple[CudnnOperand, Ref],
        stats: tuple[CudnnOperand, Ref] | None,
        added: tuple[CudnnOperand, Ref] | None,
    ) -> None:
        q, k, v = (self._operand(i) for i in range(3))
        call = calls.Attention(
            result[0],
            q,
            k,
            v,
            causal=self.op.causal,
            scale=self._scale(),
            stats=None if stats is None else stats[0],
            mask=None if added is None else added[0],
        )
        rest = (ref for given in (stats, added) if given is not None for ref in given[1:])
        self._launch(call, [result[1], *map(self._ref, range(3)), *rest], 2)

    def _backward(
        self,
        made: tuple[CudnnOperand, Ref],
        stats: tuple[CudnnOperand, Ref],
        added: tuple[CudnnOperand, Ref] | None,
    ) -> None:
        results = [self._result(i) for i in range(3)]
        dq, dk, dv = (array for array, _ in results)
        q, k, v = (self._operand(i) for i in range(3))
        call = calls.AttentionGrad(
            dq,
            dk,
            dv,
            q,
            k,
            v,
            y=made[0],
            dy=self._operand(3),
            stats=stats[0],
            causal=self.op.causal,
            scale=self._scale(),
            mask=None if added is None else added[0],
        )
        given = [*map(self._ref, range(3)), made[1], self._ref(3), stats[1]]
        mask = [] if added is None else [added[1]]
        self._launch(call, [*(ref for _, ref in results), *given, *mask], 5)

    def _scale(self) -> float:
        scale = self.op.scale
        return 1.0 / math.sqrt(self.columns) if scale is None else scale

    def _launch(self, call: Call, places: Sequence[Ref], products: int) -> None:
        answer = self.accepts(call)
        if not answer:
            raise _Refused(answer.reason, answer.message)
        entries = math.prod(self.batch)
        pairs = entries * self.queries * self.keys // (2 if self.op.causal else 1)
        nbytes = sum(math.prod(a.shape) * a.type.itemsize for a in calls.named(call).values())
        flops = products * pairs * (self.columns + self.wide)
        self.joining.launches.append(Launch(call, tuple(places), flops=flops, nbytes=nbytes))


def _nbytes(array: CudnnOperand) -> int:
    return math.prod(array.shape) * array.type.itemsize
