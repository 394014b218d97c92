"""From an op to its launches: the one entry of code generation.

Families register their generators in `LOWERINGS`; what has none is computed by loop nests where
that is possible. Ops that move no data are views, and results without elements take no launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.backends.api import Support, no
from treadle.backends.codegen import tuned
from treadle.backends.codegen.attention import lower_attention, lower_cached  # noqa: F401

# Imported so that their lowerings register.
from treadle.backends.codegen.block_products import lower_block_matmul  # noqa: F401
from treadle.backends.codegen.contraction import lower_contraction  # noqa: F401
from treadle.backends.codegen.irregular import (  # noqa: F401
    arg_reduce,
    cache,
    gather,
    index_check,
    joining,
    patches,
    pooling,
    random_bits,
    regions,
    remap,
    resample,
    scan,
    scatter,
    selection,
    sort,
    window,
)
from treadle.backends.codegen.irregular.rows import row_by_row
from treadle.backends.codegen.loops import lower_loops
from treadle.backends.codegen.lowering import LOWERINGS, TAKING_EMPTY, types_of
from treadle.backends.codegen.target import Target
from treadle.backends.program import Lowered
from treadle.base.guards import asking_nothing, remembered
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.ops.fused import Fused
from treadle.ops.op import Op

MOST_ELEMENTS = 1 << 36
"""Elements of a result from which lowerings are not asked: tables of its places would not fit."""
MOST_KEPT = 512
"""Answers that are remembered: the stages of one program ask the same several times."""


def lower(
    op: Op, types: Sequence[TensorType], frozen: Sequence[bool], target: Target
) -> Lowered | Support:
    """Launches that compute an op on dense row-major operands, or why there are none."""
    operands = types_of(types)
    constant = tuple(frozen) or (False,) * len(operands)
    return _lower(op, operands, constant, target, tuned.digest())


@remembered(MOST_KEPT)
def _lower(
    op: Op,
    operands: tuple[TensorType, ...],
    constant: tuple[bool, ...],
    target: Target,
    measured: str,  # what is remembered depends on it
) -> Lowered | Support:
    if not all(t.is_resolved for t in operands):
        return no("dynamic-shape", f"an operand of {op.name} has symbolic extents")
    if op.is_view:
        return Lowered(views=((0, 0, 0),))
    if any(t.dtype.kind == "complex" for t in operands):
        return no("dtype", f"{op.name} of complex numbers is not generated")
    with asking_nothing():
        results = op.infer(*operands)
    if not all(t.is_resolved for t in results):
        return no("dynamic-shape", f"data decides the shape of the result of {op.name}")
    if not any(all(t.shape) for t in results):
        return Lowered()
    if any(product(t.shape) >= MOST_ELEMENTS for t in results):
        return no("size-limit", f"a result of {op.name} is too large")
    if isinstance(op, Fused):
        return _lower_fused(op, operands, constant, target)
    own = LOWERINGS.get(op.name)
    if own is not None and (op.name in TAKING_EMPTY or all(all(t.shape) for t in operands)):
        try:
            return _grained(own(op, operands, constant, target), target)
        except MemoryError:
            return no("size-limit", f"tables of places of {op.name} do not fit into memory")
    return _lower_loops(op, operands, target)


def _grained(found: Lowered | Support, target: Target) -> Lowered | Support:
    """Items as small as they can be, where the target wants many."""
    if isinstance(found, Support) or not target.fine:
        return found
    launches, prelude = (
        tuple(row_by_row(launch) for launch in part) for part in (found.launches, found.prelude)
    )
    return replace(found, launches=launches, prelude=prelude)


def _lower_loops(op: Op, types: tuple[TensorType, ...], target: Target) -> Lowered | Support:
    """An op as a loop body of one node; composites are expanded in it."""
    if op.n_outputs < 0:
        return no("op", f"{op.name} has no generator")

    return lower_loops.lower_body(_body_of(op, types), target)


def _body_of(op: Op, types: tuple[TensorType, ...]) -> Graph:
    """The graph of one application of an op."""
    builder = GraphBuilder(op.name)
    inputs = tuple(builder.input(t).value for t in types)
    builder.output(*(builder.operand(v) for v in builder.add(op, inputs).outputs))
    return builder.build()


def _lower_fused(
    op: Fused, types: tuple[TensorType, ...], frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """A group, by what it was built around."""
    if not isinstance(op.body, Graph):
        return no("op", "the body of the group is not a graph")
    own = LOWERINGS.get(f"fused.{op.kind}")
    if own is not None:
        return own(op, types, frozen, target)
    return lower_loops.lower_body(op.body, target, group=len(op.body.nodes) > 1)
