"""Lowering of attention and its gradient, alone or with movement around it.

Operands are read and results written where they lie, as strided views, so heads that are split
from a packed projection and merged again afterwards cost no copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from treadle.backends.api import Support, no
from treadle.backends.codegen.attention.backward import Chunks, backward_kernel, row_multiple
from treadle.backends.codegen.attention.forward import AttentionBlocks, forward_kernel
from treadle.backends.codegen.attention.operands import (
    AttentionProblem,
    Chunking,
    Parameters,
    Stack,
    round_up,
)
from treadle.backends.codegen.attention.row import row_kernel
from treadle.backends.codegen.kernel.records import RecordedKernel
from treadle.backends.codegen.lowering import LOWERINGS, lowers
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Dims, Strided, dense, is_reversible, strided_input
from treadle.backends.program import Lowered, Ref
from treadle.base.dtype import DType
from treadle.base.estimates import at_most, estimate
from treadle.base.shape import product
from treadle.base.symbol import Dim, is_identical, minimum
from treadle.base.types import TensorType
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.fused import Fused
from treadle.ops.movement import Concat

MOST_COLUMNS = 512
"""Head sizes beyond are left to separate products: rows of tiles no longer fit the cache."""
AREA_BYTES = 640 << 10
"""Scratch for something that is as long as the keys; a kernel has up to five of them."""
MANY_KEYS = 4096
"""The most keys whose gradients are summed in scratch."""
CHUNK_WEIGHTS = 32 << 10
"""Weights the gradient holds at a time, twice: a quarter of a second-level cache of 512 KiB."""
FEW_QUERIES = 4
"""Up to so many queries keys are not packed: packing costs as much as two products with them."""
SERIAL_FLOPS = 200_000
"""Less work than this is over before other threads have woken up."""
ENOUGH_ITEMS = 16
"""Chunks of queries are made smaller until there are this many items."""


@dataclass(frozen=True, slots=True)
class Views:
    """Views of the operands and results of one call; None for a result nobody wants."""

    inputs: tuple[Strided, ...]
    outputs: tuple[Strided | None, ...]
    types: tuple[TensorType, ...]


@lowers(Attention, AttentionGrad)
def lower_attention(
    op: Attention | AttentionGrad,
    types: tuple[TensorType, ...],
    frozen: tuple[bool, ...],
    target: Target,
) -> Lowered | Support:
    """Attention of dense operands."""
    return _lower(op, dense_views(op, types), target)


def dense_views(op: Attention | AttentionGrad, types: tuple[TensorType, ...]) -> Views:
    """Arrays in row-major order."""
    inputs = tuple(dense(i, t.shape) for i, t in enumerate(types))
    outputs = tuple(dense(i, t.shape) for i, t in enumerate(op.infer(*types)))
    return Views(inputs, outputs, types)


def lower_body(
    body: Graph, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """One attention or attention gradient with nothing but movement before and after it."""
    found = read_body(body)
    return found if isinstance(found, Support) else _lower(*found, target)


def read_body(body: Graph) -> tuple[Attention | AttentionGrad, Views] | Support:
    """The one attention of a body that holds but movement besides, and where its arrays lie."""
    found = [
        (node, op) for node in body.nodes if isinstance(op := node.op, Attention | AttentionGrad)
    ]
    if len(found) != 1:
        return no("op", f"the group holds {len(found)} attentions, not one")
    ((node, op),) = found
    inputs = [strided_input(body, v) for v in node.inputs]
    if any(view is None for view in inputs):
        return no("layout", "an operand of attention is not a strided view of an input")
    outputs = _outputs(body, node)
    if isinstance(outputs, Support):
        return outputs
    views = Views(
        tuple(view for view in inputs if view is not None),
        outputs,
        tuple(v.type for v in node.inputs),
    )
    return op, views


def _outputs(body: Graph, node: Node) -> tuple[Strided | None, ...] | Support:
    """Return the place of each result of the node."""
    found: list[Strided | None] = [None] * len(node.outputs)
    for index, output in enumerate(body.outputs):
        pieces = _pieces(output, dense(index, output.type.shape))
        if pieces is None or any(value not in node.outputs for value, _ in pieces):
            return no("layout", f"output {index} is not a strided view of a result of attention")
        for value, view in pieces:
            if found[value.index] is not None:
                return no("layout", "a result of attention is wanted in two places")
            found[value.index] = view
    return tuple(found)


def _pieces(value: Value, view: Strided) -> list[tuple[Value, Strided]] | None:
    """Return the pieces that movement and concatenation made a value of, and where they lie.

    `view` is where the value itself lies. None where movement takes a copy.
    """
    node = value.producer
    if node is not None and isinstance(node.op, Concat):
        axis = node.op.axis % value.type.ndim
        start: Dim = 0
        found: list[tuple[Value, Strided]] = []
        for part in node.inputs:
            stop = start + part.type.shape[axis]
            pieces = _pieces(part, _between(view, axis, start, stop))
            if pieces is None:
                return None
            found += pieces
            start = stop
        return found
    if node is not None and is_reversible(node.op):
        moved = view.before(node)
        return None if moved is None else _pieces(node.inputs[0], moved)
    return [(value, view)]


def _between(view: Strided, axis: int, start: Dim, stop: Dim) -> Strided:
    """A range of one axis."""
    shape = (*view.shape[:axis], stop - start, *view.shape[axis + 1 :])
    return replace(view, shape=shape, offset=view.offset + start * view.strides[axis])


def _lower_fused(
    op: Fused, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    if not isinstance(op.body, Graph):
        return no("op", "the body of the group is not a graph")
    return lower_body(op.body, types, frozen, target)


LOWERINGS["fused.attention"] = _lower_fused


def _lower(op: Attention | AttentionGrad, views: Views, target: Target) -> Lowered | Support:
    """The launch for operands and results that lie where `views` says."""
    if max(int(t.shape[-1]) for t in views.types[:3]) > MOST_COLUMNS:
        return no("size-limit", f"heads of more than {MOST_COLUMNS} columns are not generated")
    call = _Call(op, views, target)
    if isinstance(op, Attention):
        return call.forward()
    if not all(_is_same(t.shape[:-2], call.batch) for t in views.types[:3]):
        return no("shape", "the gradient of an operand that is broadcast is a sum over the batch")
    return call.backward()


@dataclass(frozen=True, slots=True)
class _Stack:
    """A stack of matrices of one call: memory, element type, and strides of every axis."""

    kind: Literal["input", "output"]
    dtype: DType
    view: Strided

    @property
    def ref(self) -> Ref:
        """The place of the first element."""
        return Ref(self.kind, self.view.index, self.view.offset * self.dtype.itemsize)

    @property
    def unit(self) -> bool:
        """True where columns are adjacent."""
        return is_identical(self.view.strides[-1], 1) or is_identical(self.view.shape[-1], 1)


class _Call:
    """Sizes, arguments and schedule of one call."""

    def __init__(self, op: Attention | AttentionGrad, views: Views, target: Target) -> None:
        self.op = op
        self.views = views
        self.target = target
        count = 3 if isinstance(op, Attention) else 4
        shapes = [view.shape for view in views.inputs]
        self.dtype: DType = views.types[0].dtype
        self.queries: Dim = shapes[0][-2]
        self.keys: Dim = shapes[2][-2]
        self.d, self.e = int(shapes[0][-1]), int(shapes[2][-1])
        self.batch = broadcast_batch([s[:-2] for s in shapes[:3]])
        self.mask = views.types[count].dtype if len(shapes) > count else None
        self.stacks = self._stacks(count)
        self.axes = merged(self.batch, [s.view for s in self.stacks])
        self.entries = product(self.batch)

    def _stacks(self, count: int) -> list[_Stack]:
        """Operands, results and the mask, each broadcast over the batch."""
        found = [_Stack("input", self.dtype, view) for view in self.views.inputs[:count]]
        for view, operand in zip(self.views.outputs, self.views.inputs, strict=False):
            # What nobody wants is never written: anything may stand for it.
            kind: Literal["input", "output"] = "input" if view is None else "output"
            found.append(_Stack(kind, self.dtype, operand if view is None else view))
        stacks = [
            replace(s, view=s.view.broadcast_to((*self.batch, *s.view.shape[-2:]))) for s in found
        ]
        if self.mask is not None:
            scores = (*self.batch, self.queries, self.keys)
            view = self.views.inputs[count].broadcast_to(scores)
            stacks.append(_Stack("input", self.mask, view))
        return stacks

    def problem(self) -> AttentionProblem:
        """The constants of the kernel."""
        scale = self.op.scale if self.op.scale is not None else 1.0 / math.sqrt(self.d)
        return AttentionProblem(
            self.dtype,
            self.d,
            self.e,
            self.op.causal,
            scale,
            self.mask,
            len(self.axes),
            tuple(s.unit for s in self.stacks),
            self.target,
        )

    def launch(
        self,
        kernel: RecordedKernel,
        chunking: Chunking[Ref, Dim] | None,
        items: Dim,
        products: int = 2,
    ) -> Lowered:
        """The launch; `products` is how many are made of queries with keys."""
        stacks = []
        for i, given in enumerate(self.stacks):
            batch, (row, step) = tuple([a.strides[i] for a in self.axes]), given.view.strides[-2:]
            stacks.append(Stack[Ref, Dim](given.ref, batch, row, step))
        extents = tuple([axis.extent for axis in self.axes])
        parameters = Parameters((*stacks,), self.queries, self.keys, chunking, extents)
        flops = products * self.entries * self.pairs * (self.d + self.e)
        nbytes: Dim = sum(t.open_nbytes for t in self.views.types)
        serial = is_identical(items, 1) or estimate(flops) < SERIAL_FLOPS
        described: Any = {"items": items, "serial": serial, "flops": flops, "nbytes": nbytes}
        return Lowered((kernel.launch(parameters, **described),))

    @property
    def pairs(self) -> Dim:
        """The number of pairs of a query and a key that it sees, in one entry of the batch."""
        if not self.op.causal:
            return self.queries * self.keys
        n = minimum(self.queries, self.keys)
        return n * (n + 1) // 2 + (self.queries - n) * self.keys

    # -- schedules -------------------------------------------------------------------------

    def forward(self) -> Lowered | Support:
        if self.views.outputs[0] is None:
            return no("layout", "the result of attention is not an output of its group")
        p = self.problem()
        longest = AREA_BYTES // p.compute.itemsize - p.lanes
        if self.queries <= FEW_QUERIES and self.keys <= longest:
            held = (MANY_KEYS if self.keys <= MANY_KEYS else longest) + p.lanes
            return self.launch(row_kernel(p, held), None, self.entries * self.queries)
        blocks = _blocks(p, self.keys)
        rows = _rows(p, blocks.rows, estimate(self.queries), estimate(self.entries))
        chunks = -(-self.queries // rows)
        chunking = Chunking[Ref, Dim](rows, chunks)
        return self.launch(forward_kernel(p, blocks), chunking, self.entries * chunks)

    def backward(self) -> Lowered | Support:
        p = self.problem()
        widest = max(p.d_pitch, p.e_pitch) * p.compute.itemsize
        limit = MANY_KEYS
        while limit > 64 and (limit + p.tile_rows) * widest > AREA_BYTES:
            limit //= 2
        keys = max(128, 1 << (_most(self.keys, limit) - 1).bit_length())
        if keys > limit:
            return no("size-limit", f"{self.keys} keys are too many for the gradient's scratch")
        multiple = row_multiple(p)
        rows = min(max(CHUNK_WEIGHTS // keys, 2 * multiple), 256) // multiple * multiple
        chunks = Chunks(rows, keys, *(view is not None for view in self.views.outputs))
        return self.launch(backward_kernel(p, chunks), None, self.entries, 5)


def _most(keys: Dim, limit: int) -> int:
    """The most keys that there may be; where that is too many, there may be `limit`, or these."""
    most = at_most(keys)
    if most is not None and most <= limit:
        return most
    return limit if keys <= limit else limit + 1


def _blocks(p: AttentionProblem, keys: Dim) -> AttentionBlocks:
    """Scratch of the forward kernel: q, k and v, each at most a quarter of 512 KiB."""
    widest = max(p.d_pitch, p.e_pitch) * p.compute.itemsize
    most = (128 << 10) // widest
    held = max(1, min(512, most) // p.tile_columns) * p.tile_columns
    rows = max(1, min(256, most) // p.tile_rows) * p.tile_rows
    return AttentionBlocks(rows, held, keys > held)


def _rows(p: AttentionProblem, most: int, queries: int, entries: int) -> int:
    """Rows of a chunk of queries.

    Smaller chunks give more items, but each packs the keys again.
    """
    chunks = -(-queries // most)
    wanted = -(-ENOUGH_ITEMS // entries)
    chunks = max(chunks, min(wanted, queries // (8 * p.tile_rows)))
    return round_up(-(-queries // chunks), p.tile_rows)


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """A batch axis and the stride along it of each operand and result."""

    extent: Dim
    strides: Dims


def merged(batch: Dims, stacks: Sequence[Strided]) -> list[BatchAxis]:
    """The batch with as few axes as all strides allow, and at least one."""
    found: list[BatchAxis] = []
    for i, extent in enumerate(batch):
        axis = BatchAxis(extent, tuple(s.strides[i] for s in stacks))
        if is_identical(extent, 1):
            continue
        if found and all(
            is_identical(outer, inner * extent)
            for outer, inner in zip(found[-1].strides, axis.strides, strict=True)
        ):
            axis = BatchAxis(found.pop().extent * extent, axis.strides)
        found.append(axis)
    return found or [BatchAxis(1, (0,) * len(stacks))]


def broadcast_batch(shapes: Sequence[Dims]) -> Dims:
    """The shape that all of these broadcast to; they are known to fit."""
    rank = max(map(len, shapes))
    filled = [(1,) * (rank - len(s)) + s for s in shapes]
    longer = ([d for d in axis if not is_identical(d, 1)] for axis in zip(*filled, strict=True))
    return tuple(found[0] if found else 1 for found in longer)


def _is_same(x: Dims, y: Dims) -> bool:
    return len(x) == len(y) and all(map(is_identical, x, y))
